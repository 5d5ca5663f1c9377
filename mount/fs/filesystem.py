"""The read-only file system over one snapshot: the answer to each question about it.

It knows nothing of FUSE, HTTP or processes. Everything that it caches can be asked for again.
Nodes are named by inode numbers. The mount's own root is always 1 (ROOT_INO), even if the mount
shows a directory inside the snapshot.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from lodefs.chunkstore.errors import InvalidInput, NotADirectory
from lodefs.chunkstore.format.names import NAME_BYTES_MAX
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.protocol.wire import Entry, Page, Snapshot
from lodefs.chunkstore.system.lru import Lru
from lodefs.chunkstore.types import Buffer
from lodefs.mount.kernel.fuse_abi import Attributes, Statistics
from lodefs.mount.shm.open_files import CACHED, Opened

if TYPE_CHECKING:
    from lodefs.mount.fs.passthrough import PassthroughFiles  # where some files are read past us

ROOT_INO = 1
# A bit in the numbers by which the kernel names files that may have a flat file of their own. All
# other files are opened in cached mode without any further check. Inode numbers have 63 bits.
LARGE = 1 << 63
NODES_MAX = 8192  # cached by one worker
PAGES_MAX = 32
PAGE_ENTRIES = 1024  # of a directory, in one request
BLOCK_BYTES = 65536  # st_blksize: what programs read at a time
STATFS_BLOCK_BYTES = 4096
TARGET_BYTES_MAX = 4095  # PATH_MAX without its NUL

MODE = 0o555  # the default
EXECUTABLE = 0o111
SYMLINK_MODE = stat.S_IFLNK | 0o777

# Cookies for the position after '.' and '..'. Bit 1 of every derived inode number is set
# (chunkstore.format.inodes), and in these it is not, so a cookie is never both.
START = 0
AFTER_SELF = 1
AFTER_PARENT = 4

XATTR_PREFIX = b"user.lodefs."
OPENED_CACHED = Opened(0, CACHED)


class Reader(Protocol):
    """The proxy, as the file system sees it. Methods raise errors.py's classes."""

    def node(self, ino: int) -> Entry:
        """Raises: NotFound for a number that the proxy does not know."""
        ...

    def lookup(self, parent_ino: int, name: bytes) -> Entry:
        """Raises: NotFound only if the directory certainly has no such name."""
        ...

    def children(self, ino: int, after: bytes, limit: int) -> Page:
        """Returns children whose names sort after ``after``."""
        ...

    def read(self, ino: int, first: int, size_bytes: int) -> Buffer:
        """Returns bytes of a file; fewer only at its end. Valid until the reader's next call."""
        ...


class Listed(NamedTuple):
    """One name of a directory. ``node`` is None for '.' and '..'; ``ino`` is the mount's number."""

    cookie: int
    name: bytes
    ino: int
    mode: int
    node: Entry | None


class MountView(msgspec.Struct, frozen=True):
    """The mounted snapshot, with its owner and modes: fixed for the life of the mount."""

    snapshot: Snapshot
    root: Entry
    uid: int
    gid: int
    pid: int = 0  # the process that answers for the mount
    passthrough: str = "off"  # the reason, if nothing is passed through
    mode: int | None = None  # of directories and programs; files have it without executable bits

    @property
    def is_below_overlay(self) -> bool:
        """Whether an overlay lies above it and lets the owner write: only permissions tell."""
        return self.mode is not None and bool(self.mode & stat.S_IWUSR)

    def mode_of(self, kind: int, *, executable: bool = False) -> int:
        """Returns type and permissions as stat shows them."""
        if kind == Kind.SYMLINK:
            return SYMLINK_MODE
        mode = MODE if self.mode is None else self.mode
        if kind == Kind.DIRECTORY:
            return stat.S_IFDIR | mode
        return stat.S_IFREG | (mode if executable else mode & ~EXECUTABLE)


class _Window(NamedTuple):
    page: Page
    positions: dict[int, int]  # ino -> place in the page


class Memory(msgspec.Struct, frozen=True):
    """The cache that the threads of one worker share. It may be lost at any time."""

    nodes: Lru[int, Entry] = msgspec.field(default_factory=lambda: Lru(NODES_MAX))
    windows: Lru[tuple[int, bytes], _Window] = msgspec.field(default_factory=lambda: Lru(PAGES_MAX))
    latest: Lru[int, _Window] = msgspec.field(default_factory=lambda: Lru(PAGES_MAX))


class FileSystem:
    """Answers for one thread: ``reader`` and ``opens`` are its own, ``memory`` is shared."""

    def __init__(
        self,
        reader: Reader,
        view: MountView,
        memory: Memory | None = None,
        opens: PassthroughFiles | None = None,
    ) -> None:
        self._reader = reader
        self._opens = opens
        self._view = view
        self._root = view.root.ino
        self._directory_mode = view.mode_of(Kind.DIRECTORY)
        self._program_mode = view.mode_of(Kind.FILE, executable=True)
        self._file_mode = view.mode_of(Kind.FILE)
        self._memory = memory or Memory()

    def lookup(self, parent: int, name: bytes) -> Attributes:
        """Returns the child of a directory. Raises: NotFound, NotADirectory."""
        node = self._reader.lookup(self._inside(parent), name)
        self._memory.nodes.put(node.ino, node)
        return self.attributes(node)

    def getattr(self, ino: int) -> Attributes:
        """Returns the attributes that stat shows for a node."""
        return self.attributes(self._node(ino))

    def readlink(self, ino: int) -> bytes:
        """Returns the target of a symlink. Raises: InvalidInput for anything else."""
        node = self._node(ino)
        if node.kind != Kind.SYMLINK:
            raise InvalidInput(f"inode {ino} is not a symlink")
        return node.target[:TARGET_BYTES_MAX]

    def open(self, ino: int, request: int) -> Opened | None:
        """Returns the way to open a file for the OPEN number ``request``; None: by the kernel
        alone."""
        opens = self._opens
        if opens is None:
            return OPENED_CACHED
        if opens.given_up:
            return None
        return opens.open(self._inside(ino), request) if ino & LARGE else OPENED_CACHED

    def release(self, handle: int) -> None:
        """Closes a file; ``handle`` is what ``open`` returned for it."""
        if handle and self._opens is not None:
            self._opens.release(handle)

    def read(self, ino: int, first: int, size_bytes: int) -> Buffer:
        """Returns bytes of a file; fewer than asked for only at its end. Valid until the next
        call."""
        return self._reader.read(self._inside(ino), first, size_bytes)

    def readdir(self, ino: int, cookie: int) -> Iterator[Listed]:
        """Yields the names of a directory after ``cookie``: '.', '..', and the others in byte
        order.

        The cookie of an entry is its inode number, so that any worker can continue from it at any
        time. The iterator asks the proxy for more while it is used; an entry that is not taken
        costs little.
        """
        directory = self._inside(ino)
        if cookie in (START, AFTER_SELF):
            node = self._node(ino)
            if node.kind != Kind.DIRECTORY:
                raise NotADirectory(f"inode {ino} is not a directory")
            if cookie == START:
                yield Listed(AFTER_SELF, b".", self._outside(directory), self._directory_mode, None)
            parent = directory if directory == self._root else node.parent
            yield Listed(AFTER_PARENT, b"..", self._outside(parent), self._directory_mode, None)
            cookie = AFTER_PARENT
        window, place = self._window(directory, cookie)
        while True:
            nodes = window.page.nodes
            for node in nodes[place:]:
                yield Listed(node.ino, node.name, node.ino, self._mode(node), node)
            if not (window.page.more and nodes):
                return
            window, place = self._load(directory, nodes[-1].name), 0

    def statfs(self) -> Statistics:
        """Returns the snapshot as a full file system."""
        snapshot = self._view.snapshot
        return Statistics(
            blocks=-(-snapshot.size_bytes // STATFS_BLOCK_BYTES),
            files=snapshot.files + snapshot.directories,
            block_bytes=STATFS_BLOCK_BYTES,
            name_bytes_max=NAME_BYTES_MAX,
        )

    def getxattr(self, ino: int, name: bytes) -> bytes | None:
        """Returns the value of an extended attribute; None without it."""
        if not name.startswith(XATTR_PREFIX):
            return None
        snapshot = self._view.snapshot
        match name[len(XATTR_PREFIX) :]:
            case b"commit":
                return snapshot.commit.encode()
            case b"repo":
                return snapshot.repo.encode()
            case b"digest":
                return self._node(ino).digest.hex().encode()
            case b"pid" if ino == ROOT_INO:
                return b"%d" % self._view.pid
            case b"passthrough" if ino == ROOT_INO:
                opens = self._opens
                return (opens.state if opens else self._view.passthrough).encode()
            case b"read_path":
                return self._read_path(ino)
            case _:
                return None

    def listxattr(self, ino: int) -> list[bytes]:
        """Returns names of a node's extended attributes. Below an overlay none are listed, since it
        would copy them with a changed file; nor are those of symlinks, which the kernel never
        reads."""
        kind = self._node(ino).kind
        if kind == Kind.SYMLINK or self._view.is_below_overlay:
            return []
        names = [XATTR_PREFIX + name for name in (b"commit", b"digest", b"repo")]
        return [*names, XATTR_PREFIX + b"read_path"] if kind == Kind.FILE else names

    def _read_path(self, ino: int) -> bytes | None:
        if self._node(ino).kind != Kind.FILE:
            return None
        passes = ino & LARGE and self._opens and self._opens.passes_through(self._inside(ino))
        return b"passthrough" if passes else b"daemon"

    def attributes(self, node: Entry) -> Attributes:
        """Returns the attributes that stat shows for an entry."""
        size = 0 if node.kind == Kind.DIRECTORY else node.size_bytes
        view = self._view
        ino = ROOT_INO if node.ino == self._root else node.ino
        return Attributes(
            ino | LARGE if size >= FLAT_SIZE_BYTES_MIN else ino,
            ino,
            size,
            -(-size // 512),
            view.snapshot.time_s,
            self._mode(node),
            1,  # in a directory this means "not counted", so that find(1) does not stop early
            view.uid,
            view.gid,
            BLOCK_BYTES,
        )

    def _inside(self, ino: int) -> int:
        """Returns the snapshot's number of a node of the mount."""
        return self._root if ino == ROOT_INO else ino & ~LARGE

    def _outside(self, ino: int) -> int:
        return ROOT_INO if ino == self._root else ino

    def _node(self, ino: int) -> Entry:
        inside = self._inside(ino)
        if inside == self._root:
            return self._view.root
        node = self._memory.nodes.get(inside)
        if node is None:
            node = self._reader.node(inside)
            self._memory.nodes.put(inside, node)
        return node

    def _window(self, directory: int, cookie: int) -> tuple[_Window, int]:
        """Returns the entries from which a listing continues after ``cookie``, and the position
        among them."""
        if cookie == AFTER_PARENT:
            return self._load(directory, b""), 0
        window = self._memory.latest.get(directory)
        if window is not None and cookie in window.positions:
            return window, window.positions[cookie] + 1
        node = self._node(cookie)
        if node.parent != directory:
            raise InvalidInput(f"{cookie} is not a position in the directory {directory}")
        return self._load(directory, node.name), 0

    def _load(self, directory: int, after: bytes) -> _Window:
        window = self._memory.windows.get((directory, after))
        if window is None:
            page = self._reader.children(directory, after, PAGE_ENTRIES)
            window = _Window(page, {node.ino: n for n, node in enumerate(page.nodes)})
            self._memory.windows.put((directory, after), window)
        self._memory.latest.put(directory, window)
        return window

    def _mode(self, node: Entry) -> int:
        if node.kind == Kind.FILE:
            return self._program_mode if node.executable else self._file_mode
        return self._directory_mode if node.kind == Kind.DIRECTORY else SYMLINK_MODE

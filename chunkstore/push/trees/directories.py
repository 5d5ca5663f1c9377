"""The directories of a push, from the scan until the digest of each is known.

A directory is done when its files are read and lie in packs that have ids, and all its
subdirectories are done. Then only a little of it is kept: its digest, and the tree of its files (a
stored form without directories). If nothing changed, only the digest is kept.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import LodefsError, SourceChanged
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN
from lodefs.chunkstore.format.names import ID_BYTES, Digest
from lodefs.chunkstore.format.tree import (
    EMPTY_DIGEST,
    EXECUTABLE_ROW,
    FILE_ROW,
    SAME_PACK,
    Kind,
    TreeEntry,
    decode_tree,
    encode_tree,
    files_digest,
    symlink,
    tree_digest,
)
from lodefs.chunkstore.push.fragmentation import Run, join
from lodefs.chunkstore.push.index.push_index import IndexBroken
from lodefs.chunkstore.push.index.stat_cache import (
    DirectoryDetails,
    DirectoryRow,
    DirectoryState,
    StatCache,
)
from lodefs.chunkstore.push.pack_writer import Placement
from lodefs.chunkstore.push.scanner import EXECUTABLE, SYMLINK, Columns, ScannedDirectory, Skipped
from lodefs.chunkstore.push.workers.pipeline import CutFile
from lodefs.chunkstore.push.workers.source_files import (
    FileStat,
    SourceFile,
    Stretch,
    show_path,
)

RACY_COARSE_NS = 2_000_000_000  # for file systems that keep whole or even seconds
RACY_FINE_NS = 100_000_000  # for all others: more than a tick of the kernel's clock
# Directories in one step of ``work``: workers must not run dry meanwhile
STEP_DIRECTORIES_MAX = 50
ROWS_MIN, ROWS_MAX = 250, 1000
BACKLOG_NAMES_MAX = 50_000  # directories and files that wait for idle time
ALL = sys.maxsize
ROWS_BYTES_MAX = 16 << 20
_UNTRUSTED = -1  # the recorded ctime of a file that must be read next time


class HashedDirectory:
    """A subdirectory that is done. ``node`` is None if nothing in it changed."""

    __slots__ = ("digest", "name", "node")

    def __init__(self, name: bytes, digest: Digest, node: DirectoryNode | None) -> None:
        self.name = name
        self.digest = digest
        self.node = node


class DirectoryNode:
    """One directory of a push."""

    __slots__ = (
        "children",
        "columns",
        "files",
        "key",
        "name",
        "old",
        "parent",
        "path",
        "read",
        "scanned_ns",
        "serial",
        "signature",
        "state",
        "subdirectories",
        "trusted",
        "waiting",
    )

    def __init__(
        self, directory: ScannedDirectory, key: bytes, parent: DirectoryNode | None
    ) -> None:
        self.key = key
        self.path = directory.path
        self.name = key.rpartition(b"\0")[2]
        self.parent = parent
        self.columns = directory.columns
        self.subdirectories = directory.subdirectories
        self.scanned_ns = directory.scanned_ns
        self.signature = b""
        self.state: DirectoryState | None = None  # the recorded state, if its files are unchanged
        self.old: _UnchangedFiles | None = None  # set if some of its files are unchanged
        self.read: _ReadFiles | None = None  # set if some of its files are read
        self.children: list[HashedDirectory] = []  # the subdirectories that are done
        self.waiting = 1  # number of files and directories, and one for the scan
        self.serial = 0  # all its new chunks have lower serials
        self.trusted = True
        self.files = b""  # the tree of its files, once it is done


class _UnchangedFiles:
    """The recorded files of a directory. ``numbers`` maps each file to a recorded one, or -1."""

    __slots__ = ("details", "entries", "numbers")

    def __init__(self, columns: Columns, details: DirectoryDetails) -> None:
        self.details = details
        self.entries = decode_tree(details.files, SAME_PACK)
        self.numbers = array("q", [-1]) * len(columns.names)

    @classmethod
    def match(cls, columns: Columns, details: DirectoryDetails) -> _UnchangedFiles:
        """Returns which of the scanned files are unchanged."""
        old = cls(columns, details)
        rows = len(old.entries)
        stats = array("q", details.stats)
        number_of = {entry.name: n for n, entry in enumerate(old.entries)}
        seen = zip(
            columns.names, columns.sizes, columns.mtimes_ns, columns.inodes, columns.ctimes_ns,
            columns.modes, strict=True,
        )  # fmt: skip
        for n, (name, size, mtime_ns, inode, ctime_ns, mode) in enumerate(seen):
            at = number_of.get(name)
            if (
                at is not None
                and stats[3 * rows + at] == ctime_ns
                and stats[2 * rows + at] == inode
                and stats[rows + at] == mtime_ns
                and stats[at] == size
                and (old.entries[at].kind is Kind.SYMLINK) == (mode == SYMLINK)
            ):
                old.numbers[n] = at
        return old


class _ReadFiles:
    """The results for the files of a directory that are read, by their number in it."""

    __slots__ = ("counts", "digests", "failed", "more", "places")

    def __init__(self, files: int) -> None:
        self.digests = bytearray(ID_BYTES * files)
        self.places = array("Q", bytes(8 * files))
        self.counts = array("Q", bytes(8 * files))
        self.more: dict[int, list[Run]] = {}  # for files in more than one run
        self.failed: set[int] = set()  # files left out of the commit

    def put(self, n: int, digest: bytes, runs: list[Run]) -> None:
        self.digests[n * ID_BYTES : (n + 1) * ID_BYTES] = digest
        if len(runs) == 1:
            self.places[n], self.counts[n], _ = runs[0]  # the run's size is the file's
        elif runs:
            self.more[n] = runs

    def runs(self, n: int, size_bytes: int) -> Sequence[Run]:
        """Returns the runs of a file with ``size_bytes``."""
        more = self.more.get(n)
        if more is not None:
            return more
        return (Run(self.places[n], self.counts[n], size_bytes),) if self.counts[n] else ()


@dataclass(slots=True)
class Totals:
    """The totals of the commit."""

    files: int = 0  # regular files
    symlinks: int = 0
    directories: int = 0
    size_bytes: int = 0
    large_files: int = 0  # regular files that count as large in a commit
    large_size_bytes: int = 0


@dataclass(slots=True)
class PushTree:
    """All directories of one push. For one thread."""

    memory: StatCache
    placement: Placement
    read_link: Callable[[bytes], bytes]
    skip_unreadable: bool
    skipped: list[Skipped]
    is_planned: bool = False  # a file must be as it was when it was scanned, maybe long ago
    # What is stored of the only file, if that is not all; then what the stored chunks have
    stretch: Stretch | None = None
    totals: Totals = field(default_factory=Totals)
    root: HashedDirectory | None = None  # set when all is done
    _open: list[DirectoryNode] = field(default_factory=list)  # from the root to the scan's position
    _tokens: dict[int, tuple[DirectoryNode, int]] = field(default_factory=dict)
    _token: int = 0
    _unsealed: list[DirectoryNode] = field(default_factory=list)
    _sealed: deque[DirectoryNode] = field(default_factory=deque)  # wait only for ``work``
    _sealed_names: int = 0  # number of them and their files
    _rows: list[tuple[int, DirectoryRow]] = field(default_factory=list)
    _stored: list[DirectoryRow] = field(default_factory=list)  # wait only for ``remember``
    _stored_bytes: int = 0
    # New trees by their digest: the tree of the files, and a serial above those of their chunks
    _files: dict[Digest, tuple[bytes, int]] = field(default_factory=dict)
    _settled: int = 0
    _uploaded: int = 0

    def files(self, scan: Iterator[ScannedDirectory]) -> Iterator[SourceFile]:
        """Takes a scan and yields the files that must be read."""
        for directory in scan:
            node = self._enter(directory)
            if node.state is None:
                yield from self._files_of(node)
        self._leave(0)
        self.memory.forget_gone()

    def done(self, file: CutFile, runs: list[Run], serial: int) -> None:
        """A file was read to its end, or failed. New chunks in its runs have serials below
        ``serial``. Raises the file's error unless unreadable files are skipped."""
        node, n = self._tokens.pop(file.token)
        assert node.read is not None
        has_changed = isinstance(file.error, SourceChanged) or (
            file.error is None and is_changed(node.columns, n, file.stat)
        )
        if self.is_planned and has_changed:
            self._fail(node, n, changed_since(_path(node, node.columns.names[n])))
        elif file.error is not None:
            self._fail(node, n, file.error)
        else:
            assert file.digest is not None and file.stat is not None
            assert file.size_bytes is not None
            node.read.put(n, file.digest, runs)
            node.serial = max(node.serial, serial)
            columns, stat = node.columns, file.stat
            if (columns.mtimes_ns[n], columns.ctimes_ns[n]) != (stat.mtime_ns, stat.ctime_ns):
                columns.ctimes_ns[n] = _UNTRUSTED  # its mode may have changed, too
                node.trusted = False
            columns.sizes[n] = file.size_bytes
            self.stretch = file.stretch
        self._release(node)

    def advance(self) -> None:
        """Finds directories that can proceed, since chunks went into packs or packs into the
        store."""
        sealed, uploaded = self.placement.sealed, self.placement.uploaded
        if sealed > self._settled:
            self._settled = sealed
            unsealed, self._unsealed = self._unsealed, []
            for node in unsealed:
                self._wait(node)
        if uploaded > self._uploaded:
            self._uploaded = uploaded
            rows, self._rows = self._rows, []
            for serial, row in rows:
                self._keep(serial, row)

    def work(self) -> bool:
        """Advances some directories, or records some whose chunks are in the store, while nothing
        waits for that. Returns False if there is nothing to do."""
        if self._sealed:
            for _ in range(min(STEP_DIRECTORIES_MAX, len(self._sealed))):
                self._go_on()
            return True
        if len(self._stored) >= ROWS_MIN:
            self.remember(ROWS_MAX)
            return True
        return False

    def finish(self) -> None:
        """Advances all directories, since all chunks are in packs."""
        self.advance()
        while self._sealed:
            self._go_on()

    def remember(self, rows_max: int = ALL) -> None:
        """Writes rows of directories whose chunks are in the store."""
        self.advance()
        rows, self._stored = self._stored[:rows_max], self._stored[rows_max:]
        if rows:
            self._stored_bytes -= sum(map(_size_of, rows))
            self.memory.remember(rows)

    def _enter(self, directory: ScannedDirectory) -> DirectoryNode:
        """Makes the node of a directory that the scan has entered, linked to its parent."""
        opened = self._open
        if len(opened) > directory.depth:
            self._leave(directory.depth)
        parent = opened[-1] if opened else None
        key = directory.path.replace(b"/", b"\0")
        node = DirectoryNode(directory, key, parent)
        if parent is not None:
            parent.waiting += 1
        opened.append(node)
        columns = node.columns
        signature = node.signature = columns.signature(directory.subdirectories)
        state = self.memory.state(key)
        if state is not None:
            if state.signature == signature:
                node.state = state
            elif columns.names:
                details = self.memory.details(key)
                if details is not None and details.stats:
                    node.old = _UnchangedFiles.match(columns, details)
        return node

    def _leave(self, depth: int) -> None:
        """Leaves all directories that are deeper, since the scan is past them."""
        while len(self._open) > depth:
            self._release(self._open.pop())

    def _files_of(self, node: DirectoryNode) -> Iterator[SourceFile]:
        columns = node.columns
        numbers = None if node.old is None else node.old.numbers
        todo = [
            n
            for n, mode in enumerate(columns.modes)
            if mode != SYMLINK and (numbers is None or numbers[n] < 0)
        ]
        if not todo:
            return
        node.read = _ReadFiles(len(columns.names))
        # The current file may finish while this generator is suspended
        node.waiting += len(todo)
        prefix = node.path + b"/" if node.path else b""
        for n in todo:
            self._token += 1
            self._tokens[self._token] = (node, n)
            name, size_bytes = columns.names[n], columns.sizes[n]
            yield SourceFile(prefix + name, size_bytes, self._token, self.stretch)

    def _release(self, node: DirectoryNode) -> None:
        node.waiting -= 1
        if node.waiting:
            return
        if node.read is None:
            self._complete(node)
        else:
            self._wait(node)

    def _wait(self, node: DirectoryNode) -> None:
        """Queues a directory whose files were read, since the workers come first."""
        if node.serial > self.placement.sealed:
            self._unsealed.append(node)
            return
        self._sealed.append(node)
        self._sealed_names += 1 + len(node.columns.names)
        while self._sealed_names > BACKLOG_NAMES_MAX:
            self._go_on()

    def _go_on(self) -> None:
        node = self._sealed.popleft()
        self._sealed_names -= 1 + len(node.columns.names)
        self._complete(node)

    def _complete(self, node: DirectoryNode | None) -> None:
        """Finishes a directory, and each parent that waited only for it."""
        while node is not None:
            if node.serial > self.placement.sealed:
                self._unsealed.append(node)
                return
            child, parent = self._finish(node), node.parent
            if parent is None:
                self.root = child
                return
            node.parent = None
            parent.children.append(child)
            parent.waiting -= 1
            node = None if parent.waiting else parent

    def _finish(self, node: DirectoryNode) -> HashedDirectory:
        """Computes the digest of a directory."""
        children = node.children
        if len(children) > 1:
            children.sort(key=lambda child: child.name)
        digests = b"".join([child.digest for child in children])
        state, columns = node.state, node.columns
        # Otherwise its row may have changed
        is_known = all(child.node is None for child in children)
        if state is not None and state.children == digests and is_known:
            self._count(columns)
            return HashedDirectory(node.name, state.digest, None)
        serial = node.serial
        if state is not None:
            stats, files = self._remembered(node)
            directories = [TreeEntry(c.name, Kind.DIRECTORY, digest=c.digest) for c in children]
            digest = tree_digest([*decode_tree(files, SAME_PACK), *directories])
        else:
            entries, digest = self._digest(node)
            stats = columns.stats()
            # Two directories with the same content share one stored tree. The row of this one may
            # name chunks of the first, so it is written only when those are in the store, too
            known = self._files.get(digest)
            if known is None:
                files = encode_tree(self._entries(node) if entries is None else entries)
                self._files[digest] = files, serial
            else:
                files, serial = known[0], max(known[1], serial)
        node.files = files
        self._count(columns)
        names = b"\0".join([child.name for child in children])
        signature = node.signature if node.trusted else b""
        row = DirectoryRow(
            node.key,
            DirectoryState(signature, digest, digests),
            DirectoryDetails(stats, files, names),
        )
        self._keep(serial, row)
        node.columns, node.old, node.read, node.subdirectories = _NO_COLUMNS, None, None, []
        return HashedDirectory(node.name, digest, node)

    def _keep(self, serial: int, row: DirectoryRow) -> None:
        """Keeps a row until it is written, at the earliest when all chunks below ``serial`` are
        stored."""
        if serial > self._uploaded:
            self._rows.append((serial, row))
        else:
            self._stored.append(row)
            self._stored_bytes += _size_of(row)
            if self._stored_bytes >= ROWS_BYTES_MAX:
                self.remember(ROWS_MAX)

    def _digest(self, node: DirectoryNode) -> tuple[list[TreeEntry] | None, Digest]:
        """Returns the entries of a directory's files, if they had to be built one by one, and its
        digest."""
        columns, read = node.columns, node.read
        entries = None
        is_plain = node.old is None and SYMLINK not in columns.modes
        if is_plain and not (read and read.failed):
            digests = read.digests if read else b""
            kinds = columns.modes.translate(_KINDS)
            directories = [(child.name, child.digest) for child in node.children]
            digest = files_digest(columns.names, kinds, columns.sizes, digests, directories)
        else:
            entries = self._entries(node)
            below = [TreeEntry(c.name, Kind.DIRECTORY, digest=c.digest) for c in node.children]
            digest = tree_digest([*entries, *below])
        if distrust_racy(columns, node.scanned_ns):
            node.trusted = False
        return entries, digest

    def _remembered(self, node: DirectoryNode) -> tuple[bytes, bytes]:
        """Returns the recorded stats and tree of the files of a directory with unchanged files."""
        details = self.memory.details(node.key)
        if details is None:
            raise IndexBroken("the push index has lost the files of a directory")
        return details.stats, details.files

    def _entries(self, node: DirectoryNode) -> list[TreeEntry]:
        """Returns the files and symlinks of a directory without unreadable ones."""
        columns = node.columns
        entries: dict[int, TreeEntry] = {}
        for n in range(len(columns.names)):
            entry = self._entry(node, n)
            if entry is not None:
                entries[n] = entry
        if len(entries) < len(columns.names):
            node.trusted = False
            columns.take(list(entries))
        return list(entries.values())

    def _entry(self, node: DirectoryNode, n: int) -> TreeEntry | None:
        """Returns one file or symlink; None if it is left out."""
        if node.old is not None and node.old.numbers[n] >= 0:
            return node.old.entries[node.old.numbers[n]]
        columns = node.columns
        name, mode = columns.names[n], columns.modes[n]
        if mode == SYMLINK:
            try:
                return symlink(name, self.read_link(_path(node, name)))
            except LodefsError as error:
                self._skip(_path(node, name), error)
                return None
        read = node.read
        assert read is not None
        if n in read.failed:
            return None
        size = columns.sizes[n]
        if not size:
            return TreeEntry(name, Kind.FILE, mode == EXECUTABLE, digest=EMPTY_DIGEST)
        digest = Digest(bytes(read.digests[n * ID_BYTES : (n + 1) * ID_BYTES]))
        segments = [
            segment for run in read.runs(n, size) for segment in self.placement.segments(run)
        ]
        return TreeEntry(name, Kind.FILE, mode == EXECUTABLE, size, digest, join(segments))

    def _fail(self, node: DirectoryNode, n: int, error: LodefsError) -> None:
        self._skip(_path(node, node.columns.names[n]), error)
        assert node.read is not None
        node.read.failed.add(n)

    def _skip(self, path: bytes, error: LodefsError) -> None:
        if not self.skip_unreadable:
            raise error
        self.skipped.append(Skipped(path, str(error)))

    def _count(self, columns: Columns) -> None:
        totals = self.totals
        totals.directories += 1
        if not columns.names:
            return
        symlinks = columns.modes.count(SYMLINK)
        totals.files += len(columns.names) - symlinks
        totals.size_bytes += sum(columns.sizes)
        if symlinks:
            totals.symlinks += symlinks
            totals.size_bytes -= sum(
                size
                for size, mode in zip(columns.sizes, columns.modes, strict=True)
                if mode == SYMLINK
            )
        if max(columns.sizes) >= LARGE_SIZE_BYTES_MIN:  # no symlink is that long
            large = [size for size in columns.sizes if size >= LARGE_SIZE_BYTES_MIN]
            totals.large_files += len(large)
            totals.large_size_bytes += sum(large)


def is_changed(columns: Columns, n: int, stat: FileStat | None) -> bool:
    """Whether a file that was read differs from the scanned one. Inode numbers do not count, since
    another machine may have scanned it, and have others for the same files."""
    seen = columns.sizes[n], columns.mtimes_ns[n], columns.ctimes_ns[n]
    return stat is None or seen != (stat.size_bytes, stat.mtime_ns, stat.ctime_ns)


def changed_since(path: bytes) -> SourceChanged:
    """Returns the error for a file that is not as the plan has it."""
    return SourceChanged(
        f"{show_path(path)} has changed since the plan was made: do the part with "
        "--skip-unreadable to leave such files out, or make another plan once the source is at rest"
    )


_NO_COLUMNS = Columns()
# Maps modes to kinds in a tree's digest
_KINDS = bytes((FILE_ROW, EXECUTABLE_ROW)).ljust(256, b"\0")


def distrust_racy(columns: Columns, scanned_ns: int) -> bool:
    """Marks files that may change after they were read without a change of their times: those that
    changed less than a tick of the file system's clock before the scan (git's "racy" files).
    Returns whether there are any.

    A change always sets the ctime. If all times are whole seconds, the clock counts as coarse.
    """
    ctimes_ns = columns.ctimes_ns
    if not ctimes_ns or max(ctimes_ns) < scanned_ns - RACY_COARSE_NS:
        return _UNTRUSTED in ctimes_ns
    racy = False
    for n, ctime_ns in enumerate(ctimes_ns):
        granule_ns = RACY_FINE_NS if ctime_ns % 1_000_000_000 else RACY_COARSE_NS
        if ctime_ns >= scanned_ns - granule_ns:
            ctimes_ns[n] = _UNTRUSTED
        racy = racy or ctimes_ns[n] == _UNTRUSTED
    return racy


def contents_of(
    child: HashedDirectory, key: bytes, memory: StatCache
) -> tuple[bytes, list[HashedDirectory]]:
    """Returns the tree of the files of a directory that is done, and its subdirectories by name.
    Unchanged parts come from the index. Raises: IndexBroken if the index has lost them."""
    node = child.node
    if node is not None:
        return node.files, node.children
    state, details = memory.lookup(key), memory.details(key)
    if state is None or details is None or state.digest != child.digest:
        raise IndexBroken("the push index has lost a directory that did not change")
    names = details.subdirectories.split(b"\0") if details.subdirectories else []
    digests = [state.children[at : at + ID_BYTES] for at in range(0, len(state.children), ID_BYTES)]
    return details.files, [
        HashedDirectory(name, Digest(digest), None)
        for name, digest in zip(names, digests, strict=True)
    ]


def key_of(above: bytes, name: bytes) -> bytes:
    """Returns the key of a directory whose parent has the key ``above`` (b"": the root)."""
    return above + b"\0" + name if above else name


def _path(node: DirectoryNode, name: bytes) -> bytes:
    return node.path + b"/" + name if node.path else name


def _size_of(row: DirectoryRow) -> int:
    return row.details.size_bytes() + len(row.key) + 200

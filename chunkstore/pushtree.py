"""The directories of a push, from the scan on until the digest of each is known.

A directory is done when its files are, and those are in packs that have ids, and all directories in
it are done. What is kept of it then is small: its digest, and the tree of its files (a stored form
without directories). Where nothing changed only the digest is kept.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chunkstore.commit import LARGE_SIZE_BYTES_MIN
from chunkstore.cutting import CutFile
from chunkstore.errors import LodefsError
from chunkstore.names import ID_BYTES, Digest
from chunkstore.pushindex import Details, IndexBroken, Remembered, SourceMemory, State
from chunkstore.scan import EXECUTABLE, SYMLINK, Columns, Directory, Skipped
from chunkstore.segments import Run, join
from chunkstore.source import SourceFile
from chunkstore.tree import (
    EMPTY_DIGEST,
    SAME_PACK,
    Entry,
    Kind,
    Segment,
    decode_tree,
    encode_tree,
    symlink,
    tree_digest,
)

RACY_COARSE_NS = 2_000_000_000  # of file systems that keep whole or even seconds
RACY_FINE_NS = 100_000_000  # of all others: more than a tick of the kernel's clock
# Directories gone on with, and remembered, at once: workers must not run dry meanwhile
SETTLED_MAX = 1000
ROWS_MAX = 1000
ALL = sys.maxsize
ROWS_BYTES_MAX = 16 << 20
_UNTRUSTED = -1  # the ctime that is remembered of a file that must be read next time


class Child:
    """A directory inside another one, done. ``node`` is None where nothing in it changed."""

    __slots__ = ("digest", "name", "node")

    def __init__(self, name: bytes, digest: Digest, node: Node | None) -> None:
        self.name = name
        self.digest = digest
        self.node = node


class Node:
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

    def __init__(self, directory: Directory, key: bytes, parent: Node | None) -> None:
        self.key = key
        self.path = directory.path
        self.name = key.rpartition(b"\0")[2]
        self.parent = parent
        self.columns = directory.columns
        self.subdirectories = directory.subdirectories
        self.scanned_ns = directory.scanned_ns
        self.signature = b""
        self.state: State | None = None  # what was remembered, where its own files are unchanged
        self.old: _OldFiles | None = None  # some of its files are unchanged
        self.read: _ReadFiles | None = None  # some of its files are read
        self.children: list[Child] = []  # those that are done
        self.waiting = 1  # for files, directories, and the scan to go past it
        self.serial = 0  # all its new chunks are below
        self.trusted = True
        self.files = b""  # the tree of its files, when it is done


class _OldFiles:
    """The remembered files of a directory; ``numbers`` says which of them each file is, or -1."""

    __slots__ = ("details", "entries", "numbers")

    def __init__(self, columns: Columns, details: Details) -> None:
        self.details = details
        self.entries = decode_tree(details.files, SAME_PACK)
        self.numbers = array("q", [-1]) * len(columns.names)

    @classmethod
    def match(cls, columns: Columns, details: Details) -> _OldFiles:
        """Which of the scanned files are as they were."""
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
    """What came of the files of a directory that are read, by their number in it."""

    __slots__ = ("counts", "digests", "failed", "more", "places")

    def __init__(self, files: int) -> None:
        self.digests = bytearray(ID_BYTES * files)
        self.places = array("Q", bytes(8 * files))
        self.counts = array("Q", bytes(8 * files))
        self.more: dict[int, list[Run]] = {}  # of files in more than one run
        self.failed: set[int] = set()  # not in the commit

    def put(self, n: int, digest: bytes, runs: list[Run]) -> None:
        self.digests[n * ID_BYTES : (n + 1) * ID_BYTES] = digest
        if len(runs) == 1:
            self.places[n], self.counts[n], _ = runs[0]  # its size is the file's
        elif runs:
            self.more[n] = runs

    def runs(self, n: int, size_bytes: int) -> Sequence[Run]:
        """Of a file that has ``size_bytes``."""
        more = self.more.get(n)
        if more is not None:
            return more
        return (Run(self.places[n], self.counts[n], size_bytes),) if self.counts[n] else ()


class Ledger(Protocol):
    """Where chunks lie."""

    @property
    def sealed(self) -> int:
        """New chunks below this serial are in packs with an id."""

    @property
    def uploaded(self) -> int:
        """New chunks below this serial are in the store."""

    def segments(self, run: Run) -> list[Segment]:
        """The segments of a run of places, all of them sealed."""


@dataclass(slots=True)
class Totals:
    """What is in the commit."""

    files: int = 0  # regular ones
    symlinks: int = 0
    directories: int = 0
    size_bytes: int = 0
    large_files: int = 0  # of the regular ones, as of the commit
    large_size_bytes: int = 0


@dataclass(slots=True)
class PushTree:
    """All directories of one push. One thread."""

    memory: SourceMemory
    ledger: Ledger
    read_link: Callable[[bytes], bytes]
    skip_unreadable: bool
    skipped: list[Skipped]
    totals: Totals = field(default_factory=Totals)
    root: Child | None = None  # when all is done
    _open: list[Node] = field(default_factory=list)  # from the root to where the scan is
    _tokens: dict[int, tuple[Node, int]] = field(default_factory=dict)
    _token: int = 0
    _unsealed: list[Node] = field(default_factory=list)
    _sealed: deque[Node] = field(default_factory=deque)  # wait for ``settle`` only
    _rows: deque[tuple[int, Remembered]] = field(default_factory=deque)
    _rows_bytes: int = 0
    _files: dict[Digest, bytes] = field(default_factory=dict)  # of new trees, by their digest
    _settled: int = 0

    def files(self, scan: Iterator[Directory]) -> Iterator[SourceFile]:
        """Goes through a scan; gives the files that have to be read."""
        for directory in scan:
            node = self._enter(directory)
            if node.state is None:
                yield from self._files_of(node)
        self._leave(0)
        self.memory.forget_gone()

    def done(self, file: CutFile, runs: list[Run], serial: int) -> None:
        """A file was read to its end, or not at all. New chunks in its runs are below
        ``serial``. Raises the file's error unless unreadable files are skipped."""
        node, n = self._tokens.pop(file.token)
        assert node.read is not None
        if file.error is not None:
            self._fail(node, n, file.error)
        else:
            assert file.digest is not None and file.stat is not None
            node.read.put(n, file.digest, runs)
            node.serial = max(node.serial, serial)
            columns, stat = node.columns, file.stat
            if (columns.mtimes_ns[n], columns.ctimes_ns[n]) != (stat.mtime_ns, stat.ctime_ns):
                columns.ctimes_ns[n] = _UNTRUSTED  # its mode may be another one too
                node.trusted = False
            columns.sizes[n] = stat.size_bytes
        self._release(node)

    def settle(self, directories_max: int = SETTLED_MAX) -> None:
        """Goes on with directories whose chunks are in sealed packs by now, and remembers some of
        those whose chunks are in the store."""
        sealed = self.ledger.sealed
        if sealed > self._settled:
            self._settled = sealed
            self._sealed += self._unsealed
            self._unsealed = []
        for _ in range(min(directories_max, len(self._sealed))):
            self._complete(self._sealed.popleft())
        if len(self._rows) >= ROWS_MAX or self._rows_bytes >= ROWS_BYTES_MAX:
            self.remember(ROWS_MAX)

    def remember(self, rows_max: int = ALL) -> None:
        """Writes rows of directories whose chunks are in the store."""
        rows: list[Remembered] = []
        while self._rows and len(rows) < rows_max and self._rows[0][0] <= self.ledger.uploaded:
            row = self._rows.popleft()[1]
            self._rows_bytes -= _size_of(row)
            rows.append(row)
        if rows:
            self.memory.remember(rows)

    def _enter(self, directory: Directory) -> Node:
        """The scan came to a directory: the node of it, linked to its parent."""
        opened = self._open
        if len(opened) > directory.depth:
            self._leave(directory.depth)
        parent = opened[-1] if opened else None
        key = directory.path.replace(b"/", b"\0")
        node = Node(directory, key, parent)
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
                    node.old = _OldFiles.match(columns, details)
        return node

    def _leave(self, depth: int) -> None:
        """The scan is past all directories that are deeper."""
        while len(self._open) > depth:
            self._release(self._open.pop())

    def _files_of(self, node: Node) -> Iterator[SourceFile]:
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
        # The file under way may finish while this generator stands still
        node.waiting += len(todo)
        prefix = node.path + b"/" if node.path else b""
        for n in todo:
            self._token += 1
            self._tokens[self._token] = (node, n)
            yield SourceFile(prefix + columns.names[n], columns.sizes[n], self._token)

    def _release(self, node: Node) -> None:
        node.waiting -= 1
        if not node.waiting:
            self._complete(node)

    def _complete(self, node: Node | None) -> None:
        """Finishes a directory, and its parents as far as they waited for it only."""
        while node is not None:
            if node.serial > self.ledger.sealed:
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

    def _finish(self, node: Node) -> Child:
        """Finds the digest of a directory."""
        children = node.children
        if len(children) > 1:
            children.sort(key=lambda child: child.name)
        digests = b"".join([child.digest for child in children])
        state, columns = node.state, node.columns
        if state is not None and state.children == digests:
            self._count(columns)
            return Child(node.name, state.digest, None)
        names = b"\0".join([child.name for child in children])
        directories = [Entry(c.name, Kind.DIRECTORY, digest=c.digest) for c in children]
        if state is not None:
            stats, files = self._remembered(node)
            digest = tree_digest([*decode_tree(files, SAME_PACK), *directories])
        else:
            entries = self._entries(node)
            stats = columns.stats()
            digest = tree_digest([*entries.values(), *directories])
            # Of two directories with the same content one tree is stored. This one's row may name
            # chunks of the first, because it is written after the first one's, or with it
            files = self._files.get(digest) or self._encode(node, entries)
            self._files[digest] = files
        node.files = files
        self._count(columns)
        signature = node.signature if node.trusted else b""
        row = Remembered(node.key, State(signature, digest, digests), Details(stats, files, names))
        self._rows.append((node.serial, row))
        self._rows_bytes += _size_of(row)
        node.columns, node.old, node.read, node.subdirectories = _NO_COLUMNS, None, None, []
        return Child(node.name, digest, node)

    def _remembered(self, node: Node) -> tuple[bytes, bytes]:
        """Stats and tree of the files of a directory whose own files did not change."""
        details = self.memory.details(node.key)
        if details is None:
            raise IndexBroken("the push index has lost the files of a directory")
        return details.stats, details.files

    def _entries(self, node: Node) -> dict[int, Entry]:
        """The files and symlinks of a directory, by number; without segments where they are new."""
        columns = node.columns
        entries: dict[int, Entry] = {}
        for n in range(len(columns.names)):
            entry = self._entry(node, n)
            if entry is not None:
                entries[n] = entry
        if len(entries) < len(columns.names):
            node.trusted = False
            columns.take(list(entries))
        if distrust_racy(columns, node.scanned_ns):
            node.trusted = False
        return entries

    def _encode(self, node: Node, entries: dict[int, Entry]) -> bytes:
        """The tree of a directory's files; says where those lie that were read."""
        placed = []
        for n, entry in entries.items():
            if entry.digest != EMPTY_DIGEST and not entry.segments and not entry.target:
                assert node.read is not None
                runs = node.read.runs(n, entry.size_bytes)
                segments = [segment for run in runs for segment in self.ledger.segments(run)]
                name, executable, size_bytes = entry.name, entry.executable, entry.size_bytes
                entry = Entry(name, Kind.FILE, executable, size_bytes, entry.digest, join(segments))
            placed.append(entry)
        return encode_tree(placed)

    def _entry(self, node: Node, n: int) -> Entry | None:
        """One file or symlink; None where it is left out."""
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
            return Entry(name, Kind.FILE, mode == EXECUTABLE, digest=EMPTY_DIGEST)
        digest = Digest(bytes(read.digests[n * ID_BYTES : (n + 1) * ID_BYTES]))
        return Entry(name, Kind.FILE, mode == EXECUTABLE, size, digest)

    def _fail(self, node: Node, n: int, error: LodefsError) -> None:
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
        if max(columns.sizes) >= LARGE_SIZE_BYTES_MIN:  # no symlink is as long
            large = [size for size in columns.sizes if size >= LARGE_SIZE_BYTES_MIN]
            totals.large_files += len(large)
            totals.large_size_bytes += sum(large)


_NO_COLUMNS = Columns()


def distrust_racy(columns: Columns, scanned_ns: int) -> bool:
    """Marks files that may change after they were read without a change of their times: those
    changed less than a tick of the file system's clock before the scan (git's "racy" files).
    Whether there are some.

    A change always sets the ctime. Whole seconds are taken for a sign of a coarse clock.
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


def _path(node: Node, name: bytes) -> bytes:
    return node.path + b"/" + name if node.path else name


def _size_of(row: Remembered) -> int:
    return row.details.size_bytes() + len(row.key) + 200

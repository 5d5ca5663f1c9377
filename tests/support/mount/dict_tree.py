"""A snapshot made of a dictionary, and a reader of it without HTTP."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.names import Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.nodecache.name_rows import content_id
from lodefs.chunkstore.protocol.read_client import WaitTimes
from lodefs.chunkstore.protocol.wire import Entry, Page, Snapshot


@dataclass(frozen=True, slots=True)
class Link:
    """A symlink."""

    target: bytes


@dataclass(frozen=True, slots=True)
class Program:
    """An executable file."""

    data: bytes


Tree = Mapping[bytes, "bytes | Link | Program | Tree"]


def entry_of(node: Entry) -> TreeEntry:
    """A file as a tree has it, with its content in one chunk of a pack that is not there."""
    digest = Digest(node.digest)
    segment = Segment(PackId(digest), 0, 1, node.size_bytes)
    return TreeEntry(
        node.name, Kind(node.kind), node.executable, node.size_bytes, digest, (segment,)
    )


class DictTree:
    """The nodes and bytes of a tree; ``begin``, ``node``, ``lookup``, ``children`` and ``read`` as
    chunkstore.protocol.read_client has them. ``calls`` counts what was asked."""

    def __init__(self, tree: Tree, *, repo: str = "demo", time_s: int = 1_700_000_000) -> None:
        self.waited = WaitTimes()
        self.nodes: dict[int, Entry] = {}
        self.names: dict[int, list[int]] = {}  # directory -> its children, by name
        self.data: dict[int, bytes] = {}
        self.calls: dict[str, int] = {}
        self._add(ROOT_INO, ROOT_INO, b"", tree)
        kinds = [node.kind for node in self.nodes.values()]
        self.snapshot = Snapshot(
            repo=repo,
            commit=digest_of(b"".join(n.name + n.digest for n in self.nodes.values())).hex(),
            root=self.nodes[ROOT_INO],
            time_s=time_s,
            files=kinds.count(Kind.FILE),
            directories=kinds.count(Kind.DIRECTORY),
            size_bytes=sum(len(data) for data in self.data.values()),
            large_size_bytes=sum(
                len(data) for data in self.data.values() if len(data) >= LARGE_SIZE_BYTES_MIN
            ),
        )

    def _add(self, ino: int, parent: int, name: bytes, what: bytes | Link | Program | Tree) -> None:
        kind, size, content, target = Kind.FILE, 0, b"", b""
        if isinstance(what, Mapping):
            kind = Kind.DIRECTORY
            numbers = {child: child_ino(ino, child) for child in sorted(what)}
            self.names[ino] = list(numbers.values())
            for child, number in numbers.items():
                self._add(number, ino, child, what[child])
        elif isinstance(what, Link):
            kind, target, size = Kind.SYMLINK, what.target, len(what.target)
        else:
            content = what.data if isinstance(what, Program) else what
            self.data[ino], size = content, len(content)
        digest = digest_of(target or content)
        program = isinstance(what, Program)
        node = Entry(ino, parent, name, kind, program, size, digest, target)
        named = content_id(entry_of(node)) if size >= FLAT_SIZE_BYTES_MIN else b""
        self.nodes[ino] = replace(node, content=named)

    def begin(self, waited_s: float = 0.0) -> None:
        """Nothing here takes time."""

    def cancel(self) -> None:
        """Nothing here waits."""

    def _count(self, what: str) -> None:
        self.calls[what] = self.calls.get(what, 0) + 1

    def node(self, ino: int) -> Entry:
        """NotFound."""
        self._count("node")
        try:
            return self.nodes[ino]
        except KeyError:
            raise NotFound(f"no inode {ino}") from None

    def lookup(self, parent_ino: int, name: bytes) -> Entry:
        """NotFound, NotADirectory."""
        self._count("lookup")
        self._listing(parent_ino)
        found = self.nodes.get(child_ino(parent_ino, name))
        if found is None:
            raise NotFound(f"no name {name!r}")
        return found

    def children(self, ino: int, after: bytes, limit: int) -> Page:
        """NotFound, NotADirectory."""
        self._count("children")
        names = self._listing(ino)
        start = bisect_right(names, after, key=lambda child: self.nodes[child].name)
        page = [self.nodes[child] for child in names[start : start + limit]]
        return Page(page, start + limit < len(names))

    def read(self, ino: int, first: int, size_bytes: int) -> bytes:
        """NotFound."""
        self._count("read")
        try:
            return self.data[ino][first : first + size_bytes]
        except KeyError:
            raise NotFound(f"no file {ino}") from None

    def _listing(self, ino: int) -> list[int]:
        if ino not in self.nodes:
            raise NotFound(f"no inode {ino}")
        if ino not in self.names:
            raise NotADirectory(f"{ino} is not a directory")
        return self.names[ino]

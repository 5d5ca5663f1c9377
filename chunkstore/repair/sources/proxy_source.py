"""A node's proxy as a source, through its HTTP interface: chunks of files in its cache, and the
trees of the directories that it knows.

What the node does not have, it requests from its store, which is mostly the one that has lost it.
So the bytes may come from any store that the node reads from, or from another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from lodefs.chunkstore.errors import (
    UNREADABLE,
    Corrupt,
    Denied,
    NotADirectory,
    Purged,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, digest_of
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.repair.sources.source import NoStore, Root, Search
from lodefs.chunkstore.repo.entry_set import EntrySet
from lodefs.chunkstore.repo.pack_reader import tree_of
from lodefs.chunkstore.repo.tree_walk import join
from lodefs.chunkstore.types import Buffer

READ_SIZE_BYTES_MAX = 8 * 1024 * 1024  # of one request
FAILURES_MAX = 8  # failed or refused requests, after which no more are made
_GONE = (*UNREADABLE, NotADirectory, Purged)
_FAILED = (Unavailable, Denied)


class DatasetReader(Protocol):
    """The parts of a proxy's client that are used (chunkstore.protocol.read_client.Client)."""

    def file_range(self, repo: str, rev: str, path: bytes, first: int, size_bytes: int) -> Buffer:
        """Returns bytes of the file at a path; valid until the next request."""
        ...

    def tree(self, repo: str, rev: str, path: bytes) -> Buffer:
        """Returns the stored form of the directory at a path; valid until the next request."""
        ...


class _Place(NamedTuple):
    """A file or directory that has wanted chunks: their offsets and ids."""

    repo: str
    commit: str
    path: bytes
    is_tree: bool
    offsets: list[int]
    ids: list[ChunkId]


class ProxySource(NoStore):
    """The proxy at ``url``. If it fails or refuses a repository, that is noted, and it counts as
    having nothing."""

    def __init__(self, url: str, reader: DatasetReader) -> None:
        self._url = url
        self._reader = reader
        self._search = Search({})
        self._places: list[_Place] = []
        self._of: dict[ChunkId, int] = {}  # the number of a place, by chunk
        self._untold: set[tuple[str, str, bytes]] = set()  # trees that the node could not list
        self._failures = 0
        self.notes: list[str] = []

    @property
    def url(self) -> str:
        return self._url

    def look(self, search: Search) -> None:
        """Walks through the trees of all commits, as the node knows them, until it has found all of
        the chunks."""
        self._search = search
        self._places.clear()
        self._of.clear()
        self._untold.clear()
        with EntrySet() as seen:
            for root in search.roots():
                waiting = [(b"", root.entry)]
                while waiting and len(self._of) < len(search.wanted):
                    path, entry = waiting.pop()
                    if seen.add(entry):
                        self._note(root, path, entry)
                        if entry.kind is Kind.DIRECTORY:
                            children = self._children(root, path, entry)
                            waiting += [(join(path, child.name), child) for child in children]

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        places = sorted({self._of[chunk_id] for chunk_id in wanted if chunk_id in self._of})
        for number in places:
            place = self._places[number]
            rows = [
                (offset, wanted[chunk_id], chunk_id)
                for offset, chunk_id in zip(place.offsets, place.ids, strict=True)
                if chunk_id in wanted and self._of[chunk_id] == number
            ]
            for chunk_id, raw in self._read(place, sorted(rows)):
                if ChunkId(digest_of(raw)) == chunk_id:
                    yield chunk_id, raw

    def _note(self, root: Root, path: bytes, entry: TreeEntry) -> None:
        """Notes which of the chunks an entry has, and at which of its offsets."""
        place = _Place(root.repo, root.commit.hex(), path, entry.kind is Kind.DIRECTORY, [], [])
        for offset, chunk_id in self._lying(entry.segments):
            if chunk_id not in self._of:
                self._of[chunk_id] = len(self._places)
                place.offsets.append(offset)
                place.ids.append(chunk_id)
        if place.ids:
            self._places.append(place)

    def _lying(self, segments: Iterable[Segment]) -> Iterator[tuple[int, ChunkId]]:
        begin = 0
        for segment in segments:
            columns = self._search.packs.get(segment.pack)
            if columns is not None:
                offset = begin
                for number in range(segment.first, segment.first + segment.count):
                    at = number * ID_BYTES
                    chunk_id = ChunkId(columns.ids[at : at + ID_BYTES])
                    if chunk_id in self._search.wanted:
                        yield offset, chunk_id
                    offset += columns.raw_sizes[number]
            begin += segment.size_bytes

    def _children(self, root: Root, path: bytes, entry: TreeEntry) -> Sequence[TreeEntry]:
        """Returns the files and directories in a directory; none if the node cannot list it."""
        where = (root.repo, root.commit.hex(), path)
        tree = self._asked(lambda: self._reader.tree(*where))
        if not tree:
            self._untold.add(where)
        try:
            found = tree_of(entry, [tree])
        except (Corrupt, UnknownFormat):
            return []
        return [child for child in found if child.kind is not Kind.SYMLINK and child.segments]

    def _read(
        self, place: _Place, rows: Sequence[tuple[int, int, ChunkId]]
    ) -> Iterator[tuple[ChunkId, Buffer]]:
        """Yields the bytes at some offsets. Consecutive chunks take one request; if it fails, each
        chunk takes one."""
        for run in _runs(rows):
            first, last = run[0][0], run[-1][0] + run[-1][1]
            data = self._bytes(place, first, last - first)
            for offset, size_bytes, chunk_id in run:
                raw: Buffer = data[offset - first : offset - first + size_bytes]
                if not data and len(run) > 1:
                    raw = self._bytes(place, offset, size_bytes)
                yield chunk_id, raw

    def _bytes(self, place: _Place, first: int, size_bytes: int) -> bytes:
        where = (place.repo, place.commit, place.path)
        if where in self._untold:
            return b""
        if place.is_tree:
            tree = self._asked(lambda: self._reader.tree(*where))
            return tree[first : first + size_bytes]
        return self._asked(lambda: self._reader.file_range(*where, first, size_bytes))

    def _asked(self, ask: Callable[[], Buffer]) -> bytes:
        """Returns an answer; b"" if the node has none."""
        if self._failures == FAILURES_MAX:
            return b""
        try:
            return bytes(ask())
        except _GONE:
            return b""
        except _FAILED as error:
            self._failures += 1
            rest = "; lodefs asks it no more" if self._failures == FAILURES_MAX else ""
            self.notes.append(f"{self._url}: {error}{rest}")
            return b""


def _runs(
    rows: Sequence[tuple[int, int, ChunkId]],
) -> Iterator[list[tuple[int, int, ChunkId]]]:
    """Groups consecutive chunks (offset, size, id), as many as one request may return."""
    run: list[tuple[int, int, ChunkId]] = []
    for row in rows:
        if run and (
            row[0] != run[-1][0] + run[-1][1] or row[0] + row[1] - run[0][0] > READ_SIZE_BYTES_MAX
        ):
            yield run
            run = []
        run.append(row)
    if run:
        yield run

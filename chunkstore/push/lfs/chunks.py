"""The chunks of the objects of Git LFS in one repository: which are there, and their bytes.

Only chunks that objects of the repository name count as there. So a client that names a chunk of
another repository gets the same answer as for a chunk that the store lacks.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import Conflict, NotFound, Purged
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.protocol.lfs_recipe import Hole
from lodefs.chunkstore.push.changes.branch_commits import read_living_head
from lodefs.chunkstore.push.index.push_index import IndexBroken, PushIndex, split
from lodefs.chunkstore.repo.pack_reader import LostPack
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.types import Buffer

RUN_BYTES_MAX = 8 << 20  # read at once, if clients are right about the sizes of chunks
RUN_MEMORY_BYTES_MAX = 32 << 20  # if they lie


class ChunkAt(NamedTuple):
    """The place of a chunk in the store."""

    pack: PackId
    number: int


class ObjectChunks:
    """The chunks of one repository's objects. It reads each directory of the branch once."""

    def __init__(self, store: Store, repo: str) -> None:
        self._store = store
        self._repo = repo
        self._masks: dict[PackId, int] = defaultdict(int)  # bits of the chunks in each pack
        self._seen: set[bytes] = set()  # digests of directories

    def find(self, index_dir: Path, ids: Sequence[bytes]) -> dict[bytes, ChunkAt]:
        """Returns where the chunks are that the repository's objects have."""
        self._learn()
        if not self._masks:
            return {}
        store_id = self._store.settings.store_id
        try:
            with closing(PushIndex(index_dir, store_id)) as index:
                index.load_shards(self._store.objects)
                return dict(self._of(index, ids))
        except IndexBroken as error:
            PushIndex.set_aside(index_dir, store_id, error)
            return {}

    def fill(self, index_dir: Path, file: Path, holes: Sequence[Hole]) -> None:
        """Writes chunks to their places in a file. Raises: Conflict if the repository lacks one, as
        it can after another client was told that it is there."""
        places = self.find(index_dir, [hole.chunk_id for hole in holes])
        if any(hole.chunk_id not in places for hole in holes):
            raise _gone()
        fd = os.open(file, os.O_WRONLY)
        try:
            chunk_bytes_max = self._store.settings.chunking.size_bytes_max
            chunks_max = max(1, RUN_MEMORY_BYTES_MAX // chunk_bytes_max)
            for run in _runs(holes, places, chunks_max):
                first = places[run[0].chunk_id]
                for hole, data in zip(run, self._read(first, len(run)), strict=True):
                    if len(data) != hole.size_bytes or digest_of(data) != hole.chunk_id:
                        raise _gone()
                    write_at(fd, hole.offset, [data])
        finally:
            os.close(fd)

    def _of(self, index: PushIndex, ids: Sequence[bytes]) -> Iterator[tuple[bytes, ChunkAt]]:
        # A pack that is read for others' chunks would make the answer slow: it would tell of them
        for chunk_id, places in index.find_all([*dict.fromkeys(ids)], self._masks).items():
            for place in places:
                number, chunk = split(place)
                pack = index.pack_id(number)
                if self._masks.get(pack, 0) >> chunk & 1:
                    yield chunk_id, ChunkAt(pack, chunk)
                    break

    def _read(self, first: ChunkAt, count: int) -> list[Buffer]:
        try:
            return self._store.packs.read(first.pack, first.number, count)
        except (LostPack, Purged) as error:
            raise _gone() from error

    def _learn(self) -> None:
        try:
            _, _, commit = read_living_head(self._store, self._repo, lfs.OBJECTS)
        except NotFound:
            return
        self._add(commit.root)

    def _add(self, directory: TreeEntry) -> None:
        if directory.digest in self._seen:
            return
        for entry in self._store.packs.read_tree(directory):
            if entry.kind is Kind.DIRECTORY:
                self._add(entry)
                continue
            for segment in entry.segments:
                self._masks[segment.pack] |= ((1 << segment.count) - 1) << segment.first
        self._seen.add(directory.digest)


def _gone() -> Conflict:
    return Conflict("the store has lost chunks that it had: send the whole object")


def _runs(
    holes: Iterable[Hole], places: dict[bytes, ChunkAt], chunks_max: int
) -> Iterator[list[Hole]]:
    """Yields holes whose chunks lie one after the other in a pack."""
    run: list[Hole] = []
    run_bytes = 0
    for hole in holes:
        if run:
            last = places[run[-1].chunk_id]
            follows = places[hole.chunk_id] == ChunkAt(last.pack, last.number + 1)
            is_full = len(run) == chunks_max or run_bytes + hole.size_bytes > RUN_BYTES_MAX
            if not follows or is_full:
                yield run
                run, run_bytes = [], 0
        run.append(hole)
        run_bytes += hole.size_bytes
    if run:
        yield run

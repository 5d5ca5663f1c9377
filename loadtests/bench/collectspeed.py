"""``./run bench gc-speed``: a collection of a store with 1,000 commits and 10 million chunks.

Trees, commits, index shards and the names of packs are real; data packs have no bytes, because a
collection reads none.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from loadtests.cli import Lodefs
from loadtests.results import Result
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.compression import RAW
from lodefs.chunkstore.format.index_shard import ShardPack, encode_shard
from lodefs.chunkstore.format.names import ChunkId, CommitId, Digest, PackId, digest_of
from lodefs.chunkstore.format.pack import pack_id_of_columns
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry, encode_tree, tree_digest
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from tests.support.chunkstore.packs import PackBuilder

COMMITS = 1000
DIRECTORIES = 1000
FILES = 1000  # in each directory
FILE_CHUNKS = 10
CHUNK_SIZE_BYTES = 65_536
PACK_CHUNKS = 500
GARBAGE_PACKS = 1000
TIME_S_MAX = 300
MEMORY_MIB_MAX = 500


def speed(scratch: Path) -> Result:
    """The time and memory of the run that tombstones, and of the one that deletes."""
    made = filled_store(scratch / "store")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    result = Result("gc-speed: 1,000 commits, 10 million chunks, 1 million files, a directory")
    result.add("packs", made.packs)
    first = lodefs.run("gc", "--json", watch_memory=True)
    _add(result, "condemning", first.seconds, first.memory_bytes)
    began_s = time.perf_counter()  # a day later; a command has no such clock
    options = CollectOptions(clock=lambda: time.time() + 25 * 3600)
    found = collect(open_store(DirectoryObjects(scratch / "store")), options)
    result.add("deleting: time", time.perf_counter() - began_s, "s", at_most=TIME_S_MAX)
    result.add("packs deleted", found.deleted.packs, at_least=GARBAGE_PACKS)
    third = lodefs.run("gc", "--json", watch_memory=True)
    _add(result, "nothing to do", third.seconds, third.memory_bytes)
    for count in (1, 2):  # trees are read by other processes
        run = lodefs.run("gc", "--json", "--executor", f"processes:{count}")
        result.add(f"nothing to do, --executor processes:{count}: time", run.seconds, "s")
    return result


def filled_store(directory: Path) -> _Made:
    """The store, made in a directory."""
    made = _Made(directory)
    made.fill()
    return made


def _add(result: Result, what: str, seconds: float, memory_bytes: int) -> None:
    result.add(f"{what}: time", seconds, "s", at_most=TIME_S_MAX)
    result.add(f"{what}: memory", memory_bytes / 2**20, "MiB", at_most=MEMORY_MIB_MAX)


@dataclass(frozen=True, slots=True)
class _Tree:
    """The place of a stored tree."""

    digest: Digest
    size_bytes: int
    segment: Segment


class _Made:
    """Makes the store with the encoders of the formats."""

    def __init__(self, directory: Path) -> None:
        self._store: Store = create_store(DirectoryObjects(directory))
        self._directory = directory
        self._random = Random(1)
        self._next_file = 0
        self._pack = PackId(b"")
        self._in_pack = PACK_CHUNKS
        self._new: list[ShardPack] = []
        self.packs = 0

    def fill(self) -> None:
        """Makes all commits on one branch, each with one changed directory; then garbage."""
        places = self._put_trees([self._directory_tree() for _ in range(DIRECTORIES)])
        parent: CommitId | None = None
        for n in range(COMMITS):
            if n:
                places[n % DIRECTORIES] = self._put_trees([self._directory_tree(10)])[0]
            entries = [
                _entry(b"%04d" % at, Kind.DIRECTORY, place) for at, place in enumerate(places)
            ]
            parent = self._commit(self._put_trees([entries])[0], parent, n)
            self._publish(n)
        assert parent is not None
        self._store.refs("r").advance("branches", "main", parent, expected_sequence=None)
        for _ in range(GARBAGE_PACKS):
            self._begin_pack()
        self._publish(COMMITS)

    def _directory_tree(self, new: int = FILES) -> list[TreeEntry]:
        """Makes files of ten chunks, ``new`` of them in packs of their own."""
        first = max(0, self._next_file - FILES)
        entries: list[TreeEntry] = []
        for n in range(FILES):
            if n < new:
                segment = self._file_place()
            name = b"image_%07d.jpg" % (first + n)
            digest = Digest(self._random.randbytes(32))
            place = _Tree(digest, segment.size_bytes, segment)
            entries.append(_entry(name, Kind.FILE, place))
        self._next_file += FILES
        return entries

    def _file_place(self) -> Segment:
        if self._in_pack + FILE_CHUNKS > PACK_CHUNKS:
            self._begin_pack()
            self._in_pack = 0
        first = self._in_pack
        self._in_pack += FILE_CHUNKS
        return Segment(self._pack, first, FILE_CHUNKS, FILE_CHUNKS * CHUNK_SIZE_BYTES)

    def _begin_pack(self) -> None:
        ids = self._random.randbytes(32 * PACK_CHUNKS)
        sizes = array("I", [CHUNK_SIZE_BYTES]) * PACK_CHUNKS
        self._pack = pack_id_of_columns(ids, sizes)
        self._new.append(ShardPack(self._pack, ids, sizes))
        self._put(keys.pack(self._pack), b"-")

    def _put_trees(self, trees: Sequence[list[TreeEntry]]) -> list[_Tree]:
        """Makes trees; each is a chunk of one pack."""
        builder = PackBuilder()
        encoded = [encode_tree(entries) for entries in trees]
        for data in encoded:
            builder.add(ChunkId(digest_of(data)), RAW, data, len(data))
        pack = builder.finish()
        self._put(keys.pack(pack.pack_id), b"".join(pack.buffers))
        return [
            _Tree(tree_digest(entries), len(data), Segment(pack.pack_id, n, 1, len(data)))
            for n, (entries, data) in enumerate(zip(trees, encoded, strict=True))
        ]

    def _commit(self, root: _Tree, parent: CommitId | None, time_s: int) -> CommitId:
        return self._store.put_commit(
            "r",
            Commit(
                root=_entry(b"", Kind.DIRECTORY, root),
                parents=() if parent is None else (parent,),
                author="",
                time_s=time_s,
                message="",
                files=DIRECTORIES * FILES,
                directories=DIRECTORIES + 1,
                size_bytes=DIRECTORIES * FILES * FILE_CHUNKS * CHUNK_SIZE_BYTES,
                large=Large(0, 0),
            ),
        )

    def _publish(self, number: int) -> None:
        if self._new:
            self._put(keys.shard(f"{number:016x}-00000000"), encode_shard(self._new))
            self._new = []

    def _put(self, key: str, data: bytes) -> None:
        """Writes without syncing each, since there are tens of thousands."""
        path = self._directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.packs += key.startswith(keys.PACKS)


def _entry(name: bytes, kind: Kind, place: _Tree) -> TreeEntry:
    return TreeEntry(
        name,
        kind,
        size_bytes=place.size_bytes,
        digest=place.digest,
        segments=(place.segment,),
    )

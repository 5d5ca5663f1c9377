"""Where lost bytes may be found: another store, a node's cache, the directory they came from.

Whatever a source gives is checked against its id before it is used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from lodefs.chunkstore.errors import Corrupt, LodefsError, NotFound, SourceChanged, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.commit import SIZE_BYTES_MAX as COMMIT_SIZE_BYTES_MAX
from lodefs.chunkstore.format.commit import Commit, commit_id_of, decode_commit
from lodefs.chunkstore.format.index_shard import PackChunks, ShardPack
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, CommitId, PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.verify import opened_index
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.repair.cached_trees import CachedTrees
from lodefs.chunkstore.repair.directory_trees import Listed, tree_chunks
from lodefs.chunkstore.repair.file_chunks import chunks_of_file
from lodefs.chunkstore.repo.pack_reader import PackReader, read_index
from lodefs.chunkstore.repo.refs import Refs
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.store import SIZE_BYTES_MAX as SETTINGS_SIZE_BYTES_MAX
from lodefs.chunkstore.repo.store import Settings, decode_settings
from lodefs.chunkstore.transfer.pack_copy import fetch_pack
from lodefs.chunkstore.types import Buffer

NOTES_MAX = 100
ABSENT = (NotFound, Corrupt, UnknownFormat)


class RepairSource(Protocol):
    """A place that may have the lost bytes. Its methods return None, or nothing, if it does not."""

    @property
    def url(self) -> str:
        """What it is, for people."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What people should know of the search: files that changed while they were read."""
        ...

    def pack(self, pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
        """A whole pack, checked."""
        ...

    def columns(self, pack_id: PackId) -> PackChunks | None:
        """The ids and raw sizes of a pack's chunks."""
        ...

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        """Those of the chunks (id and raw size) that it has, as raw bytes, checked."""
        ...

    def commit(self, repo: str, commit_id: CommitId) -> Commit | None:
        """A commit, checked."""
        ...

    def head(self, repo: str, kind: str, name: str) -> CommitId | None:
        """Where a branch or tag is there."""
        ...

    def settings(self) -> Settings | None:
        """Those of a store."""
        ...


class _Nothing:
    """A source without packs, commits and refs."""

    notes: Sequence[str] = ()

    def pack(self, _pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
        return None

    def columns(self, _pack_id: PackId) -> PackChunks | None:
        return None

    def commit(self, _repo: str, _commit_id: CommitId) -> Commit | None:
        return None

    def head(self, _repo: str, _kind: str, _name: str) -> CommitId | None:
        return None

    def settings(self) -> Settings | None:
        return None


class StoreSource:
    """Another store, whatever repositories it has."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._packs = PackReader(objects)
        self.notes: Sequence[str] = ()

    @property
    def url(self) -> str:
        return self._objects.url

    def pack(self, pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
        try:
            return fetch_pack(self._objects, pack_id)
        except ABSENT:
            return None

    def columns(self, pack_id: PackId) -> PackChunks | None:
        try:
            return read_index(self._objects, pack_id).index
        except ABSENT:
            return None

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        left = set(wanted)
        for pack in listed_packs(self._objects):
            for number, chunk_id in enumerate(_ids(pack)) if left else ():
                if chunk_id in left:
                    with contextlib.suppress(*ABSENT):
                        yield chunk_id, self._packs.read(pack.pack_id, number, 1)[0]
                        left.discard(chunk_id)

    def commit(self, repo: str, commit_id: CommitId) -> Commit | None:
        key = keys.commit(repo, commit_id)
        try:
            data = read_whole(self._objects, key, COMMIT_SIZE_BYTES_MAX).data
            return decode_commit(data, key) if commit_id_of(data) == commit_id else None
        except ABSENT:
            return None

    def head(self, repo: str, kind: str, name: str) -> CommitId | None:
        try:
            entry = Refs(self._objects, repo).latest(kind, name)
        except ABSENT:
            return None
        return None if entry is None else entry.commit

    def settings(self) -> Settings | None:
        try:
            part = read_whole(self._objects, keys.STORE, SETTINGS_SIZE_BYTES_MAX)
            return decode_settings(part.data)
        except ABSENT:
            return None


class CacheSource(_Nothing):
    """The cache of a node, also while its proxy runs: chunks of files that were read there, and
    trees of directories that were listed."""

    def __init__(self, directory: Path, params: ChunkingParams) -> None:
        self._directory = directory
        self._trees = CachedTrees(params)

    @property
    def url(self) -> str:
        return str(self._directory)

    def columns(self, pack_id: PackId) -> PackChunks | None:
        with opened_index(self._directory) as kv:
            row = kv.get(layout.pack_key(pack_id))
        try:
            return (
                None if row is None else PackIndex.decode(pack_id, layout.decode_pack_row(row)[1])
            )
        except ABSENT:
            return None

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        left = dict(wanted)
        with opened_index(self._directory) as kv:
            for chunk_id in wanted:
                row = kv.get(layout.chunk_key(chunk_id))
                if row is None:
                    continue
                number, offset, size_bytes = layout.decode_chunk_row(row)
                file = kv.get(layout.file_key(number))
                if file is None:
                    continue
                path = layout.file_path(self._directory, number, layout.decode_file_row(file))
                try:
                    with path.open("rb") as opened:
                        data = os.pread(opened.fileno(), size_bytes, offset)
                except OSError:  # evicted meanwhile
                    continue
                if bytes(digest_of(data)) == bytes(chunk_id):
                    left.pop(chunk_id)
                    yield chunk_id, data
            yield from self._trees.chunks(kv, left) if left else ()


class DirectorySource(_Nothing):
    """A directory with the files that were pushed, or some of them; and with the trees that a push
    of it as it is now has stored. ``listed``: all packs that the store's index shards name."""

    def __init__(self, directory: Path, params: ChunkingParams, listed: Listed = tuple) -> None:
        self._directory = directory
        self._params = params
        self._listed = listed
        self._trees: dict[ChunkId, bytes] | None = None  # their chunks
        self.notes: list[str] = []

    @property
    def url(self) -> str:
        return str(self._directory)

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        left = dict(wanted)
        if self._trees is not None:
            yield from self._of_trees(self._trees, left)
        yield from self._of_files(left)
        if left and self._trees is None:
            root = os.path.realpath(os.fsencode(self._directory))
            self._trees = tree_chunks(root, self._params, self._listed, self._note)
            yield from self._of_trees(self._trees, left)

    def _of_trees(
        self, trees: Mapping[ChunkId, bytes], left: dict[ChunkId, int]
    ) -> Iterator[tuple[ChunkId, Buffer]]:
        for chunk_id in trees.keys() & left.keys():
            del left[chunk_id]
            yield chunk_id, trees[chunk_id]

    def _of_files(self, left: dict[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        for folder, _, names in os.walk(os.fsencode(self._directory)):
            for name in names:
                if not left:
                    return
                yield from self._of_file(os.path.join(folder, name), left)

    def _of_file(self, path: bytes, left: dict[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        sizes = set(left.values())
        try:
            for _, chunk in chunks_of_file(path, self._params):
                if len(chunk) in sizes:
                    chunk_id = ChunkId(digest_of(chunk))
                    if left.pop(chunk_id, None) is not None:
                        yield chunk_id, bytes(chunk)
        except SourceChanged as error:  # what was found is good, but it may have had more
            self._note(str(error))
        except OSError:  # no plain file, or not for us
            return

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < NOTES_MAX:
            self.notes.append(text)


def listed_packs(objects: ObjectStore) -> Iterator[ShardPack]:
    """The packs of all index shards that can be read."""
    for info in objects.list(keys.INDEX):
        try:
            yield from read_shard(objects, info.key)
        except LodefsError as error:
            if not isinstance(error, ABSENT):
                raise


def _ids(pack: PackChunks) -> Iterator[ChunkId]:
    ids = pack.ids
    return (ChunkId(ids[at : at + ID_BYTES]) for at in range(0, len(ids), ID_BYTES))

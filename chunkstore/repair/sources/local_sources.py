"""Sources on this machine: a node's cache, and the directory that was pushed."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from lodefs.chunkstore.errors import UNREADABLE, SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.index_shard import PackChunks
from lodefs.chunkstore.format.names import ChunkId, PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.verify import opened_index
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.repair.sources.cached_trees import CachedTrees
from lodefs.chunkstore.repair.sources.directory_trees import Listed, tree_chunks
from lodefs.chunkstore.repair.sources.file_chunks import chunks_of_file, read_chunk
from lodefs.chunkstore.repair.sources.source import NoStore, Search
from lodefs.chunkstore.system.safe_open import closing
from lodefs.chunkstore.types import Buffer

NOTES_MAX = 100
_FILE_SIZE_BYTES_LIMIT = 1 << 63


class CacheSource(NoStore):
    """The cache of a node, even while its proxy runs: chunks of files that were read there, and
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
        except UNREADABLE:
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
                path = layout.file_path(Path(), number, layout.decode_file_row(file))
                try:
                    with closing(layout.open_file(self._directory, path)) as fd:
                        data = os.pread(fd, size_bytes, offset)
                except OSError:  # evicted meanwhile
                    continue
                if bytes(digest_of(data)) == bytes(chunk_id):
                    left.pop(chunk_id)
                    yield chunk_id, data
            yield from self._trees.chunks(kv, left) if left else ()


class DirectorySource(NoStore):
    """A directory with the pushed files, or some of them, and the trees that a push of it in its
    present state has stored. ``listed`` yields all packs that the store's index shards name."""

    def __init__(self, directory: Path, params: ChunkingParams, listed: Listed = tuple) -> None:
        self._directory = directory
        self._params = params
        self._listed = listed
        self._trees: dict[ChunkId, bytes] | None = None  # the chunks of trees
        self._paths: list[bytes] = []  # files with wanted chunks
        self._places: dict[ChunkId, int] = {}  # the path's number and offset in one integer
        self.notes: list[str] = []

    @property
    def url(self) -> str:
        return str(self._directory)

    def look(self, search: Search) -> None:
        self._paths.clear()
        self._places.clear()
        trees = self._trees or {}
        left = {one: size for one, size in search.wanted.items() if one not in trees}
        self._look_at_files(left, set(left.values()))
        if left and self._trees is None:
            root = os.path.realpath(os.fsencode(self._directory))
            self._trees = tree_chunks(root, self._params, self._listed, self._note)

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        for chunk_id, size_bytes in wanted.items():
            if self._trees is not None and chunk_id in self._trees:
                yield chunk_id, self._trees[chunk_id]
            elif chunk_id in self._places:
                number, offset = divmod(self._places[chunk_id], _FILE_SIZE_BYTES_LIMIT)
                path = self._paths[number]
                try:
                    raw = read_chunk(path, offset, size_bytes)
                except OSError:
                    raw = b""
                if ChunkId(digest_of(raw)) == chunk_id:
                    yield chunk_id, raw
                else:
                    self._note(f"{show_path(path)} changed while it was read")

    def _look_at_files(self, left: dict[ChunkId, int], sizes: Container[int]) -> None:
        for folder, _, names in os.walk(os.fsencode(self._directory)):
            for name in names:
                if not left:
                    return
                self._look_at_file(os.path.join(folder, name), left, sizes)

    def _look_at_file(self, path: bytes, left: dict[ChunkId, int], sizes: Container[int]) -> None:
        """Notes where wanted chunks are: this file becomes the last of the paths if it has any."""
        first = len(self._paths) * _FILE_SIZE_BYTES_LIMIT
        places = len(self._places)
        try:
            for offset, chunk in chunks_of_file(path, self._params):
                if len(chunk) not in sizes:
                    continue
                chunk_id = ChunkId(digest_of(chunk))
                if left.pop(chunk_id, None) is not None:
                    self._places[chunk_id] = first + offset
        except SourceChanged as error:  # it may have had more chunks
            self._note(str(error))
        except OSError:  # not a regular file, or not readable for us
            pass
        if len(self._places) > places:
            self._paths.append(path)

    def _note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < NOTES_MAX:
            self.notes.append(text)

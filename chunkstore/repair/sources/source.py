"""The interface of a source of lost bytes, and the first source: another store.

Whatever a source returns is checked against its id before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from lodefs.chunkstore.errors import (
    UNREADABLE,
    LodefsError,
    Purged,
    SourceUnknown,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import SIZE_BYTES_MAX as COMMIT_SIZE_BYTES_MAX
from lodefs.chunkstore.format.commit import Commit, commit_id_of, decode_commit
from lodefs.chunkstore.format.index_shard import PackChunks, ShardPack, chunk_ids
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.repo.pack_reader import PackReader, index_or_none
from lodefs.chunkstore.repo.refs import Refs
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.store import SIZE_BYTES_MAX as SETTINGS_SIZE_BYTES_MAX
from lodefs.chunkstore.repo.store import Settings, decode_settings
from lodefs.chunkstore.transfer.pack_copy import fetch_pack
from lodefs.chunkstore.types import Buffer

PLACES_MAX = 4  # how many places of one chunk are tried


class Root(NamedTuple):
    """A commit of the store, and what it leads to."""

    repo: str
    commit: CommitId
    entry: TreeEntry


@dataclass(frozen=True, slots=True)
class Search:
    """The chunks (id and raw size) of one search, and the packs that had them. ``roots`` are the
    commits that lead to these, and others, the newest of a branch first."""

    wanted: Mapping[ChunkId, int]
    packs: Mapping[PackId, PackChunks] = field(default_factory=dict)
    roots: Callable[[], Iterable[Root]] = tuple


class RepairSource(Protocol):
    """A place that may have the lost bytes. Its methods return None, or nothing, if it does not."""

    @property
    def url(self) -> str:
        """The name of the source, for messages."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the search for the user, such as files that changed while they were read."""
        ...

    def pack(self, pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
        """Returns a whole pack, checked."""
        ...

    def columns(self, pack_id: PackId) -> PackChunks | None:
        """Returns the ids and raw sizes of a pack's chunks."""
        ...

    def look(self, search: Search) -> None:
        """Finds out where it has any of these chunks, to prepare the next calls of ``chunks``."""
        ...

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        """Yields those of the chunks (id and raw size; of one pack, and of the last search) that it
        has, as raw bytes, checked."""
        ...

    def commit(self, repo: str, commit_id: CommitId) -> Commit | None:
        """Returns a commit, checked."""
        ...

    def head(self, repo: str, kind: str, name: str) -> CommitId | None:
        """Returns the commit of a branch or tag there."""
        ...

    def settings(self) -> Settings | None:
        """Returns the settings of a store."""
        ...


class NoStore:
    """A base for sources that are not stores: no packs, commits, refs and settings."""

    notes: Sequence[str] = ()

    def look(self, _search: Search) -> None:
        return

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
        self._places: dict[ChunkId, tuple[tuple[PackId, int], ...]] = {}
        self.notes: Sequence[str] = ()

    @property
    def url(self) -> str:
        return self._objects.url

    def pack(self, pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
        try:
            return fetch_pack(self._objects, pack_id)
        except (*UNREADABLE, SourceUnknown):
            return None

    def columns(self, pack_id: PackId) -> PackChunks | None:
        return index_or_none(self._objects, pack_id)

    def look(self, search: Search) -> None:
        self._places = {}
        for pack in listed_packs(self._objects):
            for number, chunk_id in enumerate(chunk_ids(pack)):
                if chunk_id in search.wanted:
                    places = self._places.get(chunk_id, ())
                    if len(places) < PLACES_MAX:
                        self._places[chunk_id] = (*places, (pack.pack_id, number))

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        for chunk_id in wanted:
            for pack_id, number in self._places.get(chunk_id, ()):
                try:
                    raw = self._packs.read(pack_id, number, 1)[0]
                except (*UNREADABLE, Purged, SourceUnknown):
                    continue
                if ChunkId(digest_of(raw)) == chunk_id:
                    yield chunk_id, raw
                    break

    def commit(self, repo: str, commit_id: CommitId) -> Commit | None:
        key = keys.commit(repo, commit_id)
        try:
            data = read_whole(self._objects, key, COMMIT_SIZE_BYTES_MAX).data
            return decode_commit(data, key) if commit_id_of(data) == commit_id else None
        except UNREADABLE:
            return None

    def head(self, repo: str, kind: str, name: str) -> CommitId | None:
        try:
            return Refs(self._objects, repo).head(kind, name)
        except UNREADABLE:
            return None

    def settings(self) -> Settings | None:
        try:
            part = read_whole(self._objects, keys.STORE, SETTINGS_SIZE_BYTES_MAX)
            return decode_settings(part.data)
        except UNREADABLE:
            return None


def listed_packs(objects: ObjectStore) -> Iterator[ShardPack]:
    """Yields the packs of all index shards that can be read."""
    for info in objects.list(keys.INDEX):
        try:
            yield from read_shard(objects, info.key)
        except LodefsError as error:
            if not isinstance(error, UNREADABLE):
                raise

"""Sources of directories' entries: the store directly, or the cache, so that a cluster reads a tree
from the store once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Protocol

from lodefs.chunkstore.errors import Corrupt, LodefsError, NotFound, Unavailable, UnknownFormat
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import (
    WINDOW_SIZE_BYTES,
    LostPack,
    PackReader,
    check_tree,
    tree_of,
)
from lodefs.proxy.fetch.chunk_reader import ChunkReader
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_source import lacking
from lodefs.proxy.runtime.thread_pools import Pools

SHARES = 4  # threads that read many directories together
UNREADABLE = (Corrupt, NotFound, UnknownFormat)
Outcome = list[TreeEntry] | LodefsError


class Trees(Protocol):
    """Reads directories. For use on the event loop."""

    async def read_all(self, entries: Sequence[TreeEntry]) -> list[Outcome]:
        """Returns the entries of many directories, in order; the error for those that cannot be
        read. Raises: Unavailable, Denied."""


class StoreTrees:
    """Reads from the store. Neighbours stay in memory for a while; damaged trees are not read again
    for a while."""

    def __init__(
        self, objects: ObjectStore, reader: PackReader, pools: Pools, damaged_chunks: DamagedChunks
    ) -> None:
        self._objects = objects
        self._reader = reader
        self._pools = pools
        self._damaged_chunks = damaged_chunks

    def _read(self, entry: TreeEntry) -> list[TreeEntry]:
        key = (entry.digest, entry.segments)
        self._damaged_chunks.check(key)
        try:
            return self._read_anew(entry)
        except Corrupt as error:
            self._damaged_chunks.note(key, error)
            raise

    def _read_anew(self, entry: TreeEntry) -> list[TreeEntry]:
        try:
            return self._reader.read_tree(entry)
        except LostPack as error:
            raise lacking(self._objects, error) from error

    async def read_all(self, entries: Sequence[TreeEntry]) -> list[Outcome]:
        shares = [entries[first::SHARES] for first in range(min(SHARES, len(entries)))]
        largest_bytes = max((entry.size_bytes for entry in entries), default=0)
        pool = self._pools.fetching(largest_bytes)
        is_over = threading.Event()
        calls = (pool.run(self._read_share, share, is_over) for share in shares)
        found: list[Outcome] = [[]] * len(entries)
        try:
            for first, outcomes in enumerate(await asyncio.gather(*calls)):
                found[first::SHARES] = outcomes
        finally:
            is_over.set()  # after an error or a deadline no thread continues with the rest
        return found

    def _read_share(self, entries: Sequence[TreeEntry], is_over: threading.Event) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for entry in entries:
            if is_over.is_set():
                raise Unavailable("the read of these directories was given up")
            try:
                outcomes.append(self._read(entry))
            except UNREADABLE as error:
                outcomes.append(_without_frames(error))
        return outcomes


class CachedTrees:
    """Reads from the cache; what it lacks is fetched like chunks of dataset files."""

    def __init__(self, packs: ChunkReader, pools: Pools) -> None:
        self._packs = packs
        self._pools = pools

    async def _read(self, entry: TreeEntry) -> list[TreeEntry]:
        check_tree(entry)
        data = bytearray()
        for segment in entry.segments:
            loaded = await self._packs.index(segment.pack, cached=False, from_origin=False)
            loaded.index.check_run(*segment[1:])
            chunks = self._packs.chunks(
                loaded, segment.first, segment.count, more_bytes=WINDOW_SIZE_BYTES
            )
            async for piece in chunks:
                data += piece
        pieces = iter([data])
        del data  # so that only its reader holds it
        return await self._pools.disk.run(tree_of, entry, pieces)

    async def read_all(self, entries: Sequence[TreeEntry]) -> list[Outcome]:
        tasks = [asyncio.create_task(self._read_if_good(entry)) for entry in entries]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # after an error none continues
                task.cancel()

    async def _read_if_good(self, entry: TreeEntry) -> Outcome:
        try:
            return await self._read(entry)
        except UNREADABLE as error:
            return _without_frames(error)


def _without_frames(error: LodefsError) -> LodefsError:
    """Returns the error without its tracebacks: their frames hold the wrong tree, and while a list
    in one of them keeps the error, only the garbage collector frees it."""
    at: BaseException | None = error
    while at is not None:
        at.__traceback__ = None
        at = at.__cause__ or at.__context__
    return error

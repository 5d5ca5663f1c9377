"""Directories' entries: from the store as it is, or by way of the cache, so that a cluster reads a
tree from the store once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from chunkstore.errors import Corrupt, LodefsError, NotFound, UnknownFormat
from chunkstore.objects import Buffer
from chunkstore.packreader import WINDOW_SIZE_BYTES, PackReader, check_tree, tree_of
from chunkstore.tree import Entry
from proxy.offload import Pools
from proxy.packs import Packs

SHARES = 4  # threads that read many directories together
UNREADABLE = (Corrupt, NotFound, UnknownFormat)
Outcome = list[Entry] | LodefsError


class Trees(Protocol):
    """Reads directories. Used from the event loop."""

    async def read(self, entry: Entry) -> list[Entry]:
        """The entries of a directory, by name. Corrupt, NotFound, Unavailable, Denied."""
        ...

    async def read_all(self, entries: Sequence[Entry]) -> list[Outcome]:
        """The entries of many directories, in their order; of those that cannot be read, why.
        Unavailable, Denied."""
        ...


class StoreTrees:
    """From the store. Neighbours are kept in memory for a while."""

    def __init__(self, reader: PackReader, pools: Pools) -> None:
        self._reader = reader
        self._pools = pools

    async def read(self, entry: Entry) -> list[Entry]:
        return await self._pools.fetch.run(self._reader.read_tree, entry)

    async def read_all(self, entries: Sequence[Entry]) -> list[Outcome]:
        shares = [entries[first::SHARES] for first in range(min(SHARES, len(entries)))]
        calls = (self._pools.fetch.run(self._read_share, share) for share in shares)
        found: list[Outcome] = [[]] * len(entries)
        for first, outcomes in enumerate(await asyncio.gather(*calls)):
            found[first::SHARES] = outcomes
        return found

    def _read_share(self, entries: Sequence[Entry]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for entry in entries:
            try:
                outcomes.append(self._reader.read_tree(entry))
            except UNREADABLE as error:
                outcomes.append(error)
        return outcomes


class CachedTrees:
    """From the cache; what it lacks is brought to it as dataset files' chunks are."""

    def __init__(self, packs: Packs, pools: Pools) -> None:
        self._packs = packs
        self._pools = pools

    async def read(self, entry: Entry) -> list[Entry]:
        check_tree(entry)
        pieces: list[Buffer] = []
        for segment in entry.segments:
            loaded = await self._packs.index(segment.pack, cached=False, from_origin=False)
            loaded.index.check_run(*segment[1:])
            chunks = self._packs.chunks(
                loaded,
                segment.first,
                segment.count,
                from_origin=False,
                more_bytes=WINDOW_SIZE_BYTES,
            )
            pieces += [piece async for piece in chunks]
        return await self._pools.disk.run(tree_of, entry, pieces)

    async def read_all(self, entries: Sequence[Entry]) -> list[Outcome]:
        return list(await asyncio.gather(*map(self._read_if_good, entries)))

    async def _read_if_good(self, entry: Entry) -> Outcome:
        try:
            return await self.read(entry)
        except UNREADABLE as error:
            return error

"""Directories' entries: from the store as it is, or by way of the cache, so that a cluster reads a
tree from the store once."""

from __future__ import annotations

from typing import Protocol

from chunkstore.objects import Buffer
from chunkstore.packreader import WINDOW_SIZE_BYTES, PackReader, check_tree, tree_of
from chunkstore.tree import Entry
from proxy.offload import Pools
from proxy.packs import Packs


class Trees(Protocol):
    """Reads directories. Used from the event loop."""

    async def read(self, entry: Entry) -> list[Entry]:
        """The entries of a directory, by name. Corrupt, NotFound, Unavailable, Denied."""
        ...


class StoreTrees:
    """From the store. Neighbours are kept in memory for a while."""

    def __init__(self, reader: PackReader, pools: Pools) -> None:
        self._reader = reader
        self._pools = pools

    async def read(self, entry: Entry) -> list[Entry]:
        return await self._pools.fetch.run(self._reader.read_tree, entry)


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

"""Reading the trees of many directories: what fails for all ends at once, what is wrong alone does
not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lodefs.chunkstore.errors import Corrupt, Unavailable
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.read.directories.tree_source import SHARES, Outcome, StoreTrees
from lodefs.proxy.runtime.thread_pools import Pools
from tests.support.chunkstore.memory_objects import MemoryObjects

ENTRIES = [TreeEntry(b"%03d" % n, Kind.DIRECTORY, digest=digest_of(b"%d" % n)) for n in range(80)]


class Reader:
    """A reader of trees of which the first raises, when as many others as there are threads are
    under way; the others wait for that."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.read: list[bytes] = []
        self._together = threading.Barrier(SHARES, timeout=60)
        self.raised = threading.Event()

    def read_tree(self, entry: TreeEntry) -> list[TreeEntry]:
        self.read.append(entry.name)
        if len(self.read) <= SHARES:
            self._together.wait()
        if entry.name == b"000":
            raise self.error
        assert self.raised.wait(60)
        return []


def read_all(reader: Reader) -> list[Outcome]:
    """The outcomes of all entries; all threads have ended."""

    async def run() -> list[Outcome]:
        pools = Pools(fetch=SHARES)
        trees = StoreTrees(MemoryObjects(), reader, pools, DamagedChunks())  # type: ignore[arg-type]
        try:
            return await trees.read_all(ENTRIES)
        finally:
            reader.raised.set()
            for pool in (pools.fetch, pools.large, pools.disk):
                await pool.close()

    return asyncio.run(run())


def test_a_store_that_is_away_is_not_asked_for_the_rest() -> None:
    """When the read of one fails for all, the threads of the others read no further trees."""
    reader = Reader(Unavailable("the store is away"))
    with pytest.raises(Unavailable, match="away"):
        read_all(reader)
    assert len(reader.read) == SHARES


def test_a_wrong_tree_costs_no_other() -> None:
    """Of a tree that is wrong the error is given, without what it held in memory; all others are
    read."""
    reader = Reader(Corrupt("zeros"))
    reader.raised.set()
    first, *others = read_all(reader)
    assert isinstance(first, Corrupt)
    assert first.__traceback__ is None
    assert others == [[]] * (len(ENTRIES) - 1)

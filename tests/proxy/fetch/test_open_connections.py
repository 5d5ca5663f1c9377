"""Connections that are kept open while programs read."""

from __future__ import annotations

import asyncio

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.fetch.open_connections import CONNECTIONS, USED_S, OpenConnections
from lodefs.proxy.runtime.thread_pools import Pool


class Keeping:
    """A store that notes how many connections it was told to keep open, and cannot."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    def keep_open(self, connections: int) -> None:
        self.kept.append(connections)
        raise Unavailable("the server is away")


def test_they_are_kept_while_somebody_reads() -> None:
    """Nobody has read yet, somebody has, and nobody for long; failures are for reads to report."""
    store, now_s = Keeping(), 0.0

    async def run() -> None:
        nonlocal now_s
        pool = Pool("fetch", threads=1)
        connections = OpenConnections(store, pool, clock_s=lambda: now_s)
        await connections.look()
        assert not store.kept
        connections.used()
        await connections.look()
        now_s = USED_S
        await connections.look()
        assert store.kept == [CONNECTIONS, CONNECTIONS]
        now_s += 1.0
        await connections.look()
        assert len(store.kept) == 2
        of_directory = OpenConnections(object(), pool, clock_s=lambda: now_s)
        of_directory.used()
        await of_directory.look()
        await pool.close()

    asyncio.run(run())

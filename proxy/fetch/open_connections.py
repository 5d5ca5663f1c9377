"""Connections to the store that stay open while programs read from the node. Servers close idle
ones within seconds, so the first read after a pause would have to connect, mostly over TLS."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache.cached_snapshot import ASK_AGAIN_S
from lodefs.chunkstore.objects.open_connections import keep_open
from lodefs.proxy.runtime.thread_pools import Pool

CONNECTIONS = 2  # the read that somebody waits for, and the read-ahead beside it
LOOK_S = 5.0
USED_S = 2 * ASK_AGAIN_S  # every mount asks once in ASK_AGAIN_S, even if nobody reads

log = logging.getLogger("lodefs.store")


class OpenConnections:
    """Keeps connections of one store open as long as ``used`` is called now and then. For use on
    the event loop only."""

    def __init__(
        self, objects: object, pool: Pool, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``pool`` has the thread that connects."""
        self._keep_open = partial(keep_open, objects, CONNECTIONS)
        self._pool = pool
        self._clock_s = clock_s
        self._used_s: float | None = None

    def used(self) -> None:
        """Notes that a mount or another reader lives."""
        self._used_s = self._clock_s()

    async def run(self) -> None:
        """Works until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Opens the connections that are missing, if they may be needed soon."""
        if self._used_s is None or self._clock_s() - self._used_s > USED_S:
            return
        try:
            await self._pool.run(self._keep_open)
        except LodefsError as error:  # reads report it
            log.debug("no connections are kept open: %s", error)

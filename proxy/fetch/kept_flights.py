"""Flights that have ended and hold, for a while, chunks that the cache did not take: a reader reads
a unit in many pieces, and what was read ahead later."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from lodefs.chunkstore.repo.range_planner import UNIT_STORED_BYTES_MAX
from lodefs.proxy.fetch.flight import Flight

SIZE_BYTES_MAX = 8 * UNIT_STORED_BYTES_MAX
KEPT_S = 30.0


class KeptFlights:
    """The kept flights of a node. ``forgotten`` is called for each that is dropped. For use on the
    event loop only."""

    def __init__(self, forgotten: Callable[[Flight], None]) -> None:
        self._forgotten = forgotten
        self._timers: OrderedDict[Flight, asyncio.TimerHandle] = OrderedDict()  # next to drop first
        self.size_bytes = 0
        self.unread_bytes = 0  # of those that nobody has read yet

    def keep(self, flight: Flight) -> None:
        """Keeps a flight, and drops others if they are too large together."""
        flight.is_kept = True
        timer = asyncio.get_running_loop().call_later(KEPT_S, self._forget, flight)
        self._timers[flight] = timer
        self.size_bytes += flight.size_bytes
        self.unread_bytes += flight.size_bytes
        while self.size_bytes > SIZE_BYTES_MAX:
            self._forget(next(iter(self._timers)))

    def note_read(self, flight: Flight) -> None:
        """Notes that most of a flight was read: it is dropped first, and makes room for
        read-ahead."""
        if not flight.is_read:
            flight.is_read = True
            self.unread_bytes -= flight.size_bytes
            self._timers.move_to_end(flight, last=False)

    def clear(self) -> None:
        """Drops all."""
        for flight in list(self._timers):
            self._forget(flight)

    def _forget(self, flight: Flight) -> None:
        self._timers.pop(flight).cancel()  # otherwise the timer would hold its chunks
        self.size_bytes -= flight.size_bytes
        self.unread_bytes -= flight.size_bytes * (not flight.is_read)
        self._forgotten(flight)

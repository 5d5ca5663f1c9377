"""A flight: one fetch unit under way, for the readers and nodes that wait for it.

A waiting reader may leave without stopping it. Nodes follow it: they get chunks as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from lodefs.chunkstore.errors import NotFound, Unavailable
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import FetchResult, RawChunks
from lodefs.proxy.fetch.pack_source import FillListener
from lodefs.proxy.runtime.thread_pools import current_owner

LATE_S = 0.1  # after this, readers get bytes that wait for the cache's disk from memory
PASSED_SIZE_BYTES = 256 * 1024  # a follower that has got more waits for so many bytes at once


@dataclass(eq=False, slots=True)
class Follower:
    """A node that gets chunks of a pack as they come. ``cached``: it asked only for chunks that are
    here or on their way."""

    address: str  # "" if it is not a member
    cached: bool
    got_bytes: int = 0
    has_left: bool = False  # it wants nothing more

    @property
    def can_leave(self) -> bool:
        """Whether it can still ask other nodes, so that it gets an error if nothing comes."""
        return self.cached and not self.got_bytes

    @property
    def least_bytes(self) -> int:
        """How many bytes it waits for at once; it gets more if they have come."""
        return min(self.got_bytes, PASSED_SIZE_BYTES)


class Flight(FillListener):
    """Chunks [first, end) of a pack on their way to the cache. Nodes follow it: they get each chunk
    as soon as its bytes have come."""

    __slots__ = (
        "_began",
        "_came",
        "_came_end",
        "_followers",
        "_news",
        "_sources",
        "asked",
        "bad",
        "end",
        "first",
        "is_bulk",
        "is_kept",
        "is_late",
        "is_read",
        "may_start",
        "owner",
        "size_bytes",
        "task",
        "transferring",
        "unit",
        "unwritten",
        "wanted",
    )  # fmt: skip

    def __init__(
        self,
        unit: Unit,
        size_bytes: int,
        *,
        is_bulk: bool,
        waits_for_peers: bool,
        wanted: range,
        asked: tuple[int, int],
        began: Callable[[], None],
    ) -> None:
        """``began`` is called when bytes begin to come."""
        self.unit = unit
        self.asked = asked  # raw bytes [first, end) of the pack that a reader asked for
        self.wanted = wanted  # chunks whose bytes a reader waits for
        self.first = unit.first
        self.end = unit.end
        self.size_bytes = size_bytes
        self.is_bulk = is_bulk
        self.owner = current_owner.get()
        self.transferring = not waits_for_peers  # True while bytes come
        self.bad: int | None = None  # a chunk that made it fail
        self._began = began
        self._came: RawChunks = {}  # verified chunks, as their bytes come
        self._came_end = unit.first  # all chunks before this one have come, unless they are gone
        self._followers: frozenset[Follower] = frozenset()
        self._news = asyncio.Event()  # for its followers; a new one each time
        self._sources: frozenset[str] = frozenset()  # nodes that are asked for it now
        self.unwritten: FetchResult | None = None  # in memory, and being written
        self.is_late = False  # the writing takes long
        self.is_read = False  # most of the kept chunks were read
        self.is_kept = False  # it has ended; chunks that the cache did not take are in memory
        self.may_start = asyncio.Event()
        self.task: asyncio.Task[FetchResult]

    def arrived(self, chunks: RawChunks) -> None:
        """Lets peers wait for it, too, and have the bytes that have come."""
        begins, self.transferring = not self.transferring, True
        self._came = self._came | chunks  # a new one, since the loop reads it meanwhile
        self._came_end = max(self._came_end, max(chunks, default=-1) + 1)
        if begins or self._followers:
            self._call_soon(self._tell)

    def stopped(self) -> None:
        """Lets followers that have got nothing yet ask other nodes."""
        self.transferring = False
        self._call_soon(self._tell)

    def received(self, chunks: RawChunks, origin: Origin | None) -> None:
        """Lets readers have the bytes while they are being written."""
        self.unwritten = FetchResult(memory=chunks, origin=origin)
        self.arrived(chunks)

    def passes_to(self, address: str) -> bool:
        """Implements FillListener."""
        return any(one.address == address and not one.has_left for one in self._followers)

    def asks(self, addresses: frozenset[str]) -> None:
        """Implements FillListener."""
        self._sources = addresses

    def may_be_followed(self, follower: Follower) -> bool:
        """Whether a node may wait for it: the node already waits; or its bytes come, and not from
        that node, since otherwise the two could wait for each other."""
        if follower in self._followers:
            return True
        return self.transferring and follower.address not in self._sources

    def _call_soon(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the proxy has ended
            self.task.get_loop().call_soon_threadsafe(call)

    def _tell(self) -> None:
        if self.transferring:
            self._began()
        self._news.set()
        self._news = asyncio.Event()

    def ended(self) -> None:
        """Notes, on the event loop, that its task is done."""
        self.unwritten, self._came = None, {}
        self._tell()

    def fetches(self, chunk: int) -> bool:
        if self.is_kept:
            return chunk in self.task.result().memory
        return self.first <= chunk < self.end

    def has_failed(self) -> bool:
        """Whether it has ended without fetching anything."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)

    async def landed(self) -> FetchResult:
        """Waits until it has ended, and returns what it fetched. Raises what it raised."""
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():  # the flight was cancelled, not its reader
                raise Unavailable("the proxy is shutting down") from None
            raise

    async def readable(self) -> FetchResult:
        """Does what ``landed`` does, but does not wait for a slow disk of the cache: then it
        returns the chunks in memory. Raises what the flight raised."""
        while not self.task.done():
            if self.is_late and self.unwritten is not None:
                return self.unwritten
            await asyncio.wait((self.task,), timeout=LATE_S)
            self.is_late = self.unwritten is not None
        return await self.landed()

    async def passed_on(self, follower: Follower, least: int) -> FetchResult:
        """Returns the chunks that have come, once the chunk ``least`` is one of them. Raises:
        NotFound if nothing comes, and the follower can leave; what the flight raised."""
        self._followers |= {follower}
        while not self.task.done() and self._came_end <= least:
            if follower.can_leave and not self.transferring:
                self._followers -= {follower}
                raise NotFound(f"{name_of(self.unit)}: the node that sent them has failed")
            await self._news.wait()
        if self.task.done():
            return await self.landed()
        return FetchResult(memory=self._came)


def name_of(unit: Unit) -> str:
    """Returns the name of a unit for messages."""
    last = unit.first + unit.count - 1
    return f"chunks {unit.first} to {last} of pack {unit.pack.hex()}"

"""Single flight: one fetch serves all readers that miss the same chunks.

A flight is one fetch unit under way: one future, one call in a thread, which ends by its deadline.
A flight with a waiting reader starts at once. A flight ahead of readers waits for its turn, so that
it delays no reader and large transfers do not compete for the processors; it starts at once when a
reader needs it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from weakref import WeakValueDictionary

from lodefs.chunkstore.errors import Corrupt, DeadlineExceeded
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PackIndex, WrongChunk
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.chunkstore.repo.range_planner import UNIT_STORED_BYTES_MAX
from lodefs.proxy.fetch.cache_fill import CacheFill, Unit, part_of
from lodefs.proxy.fetch.cache_write import FetchResult
from lodefs.proxy.fetch.flight import Flight, Follower, name_of
from lodefs.proxy.fetch.kept_flights import KeptFlights
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.runtime.thread_pools import Pools, current_owner
from lodefs.proxy.tracing.request_scope import sampled_trace_id

AHEAD_SIZE_BYTES_MAX = 8 * UNIT_STORED_BYTES_MAX  # in flight, above which there is no read-ahead
JOINED_MAX = 8  # how many flights a reader joins that fail at other chunks
RUNNING_SIZE_BYTES_MAX = 4 * UNIT_STORED_BYTES_MAX  # under way, above which read-ahead waits
# Of announced units, which have 2 MiB: as much as peers announce; under way in half of the threads
ANNOUNCED_SIZE_BYTES_MAX = 32 * UNIT_STORED_BYTES_MAX
ANNOUNCED_RUNNING_SIZE_BYTES_MAX = UNIT_STORED_BYTES_MAX
SOON_S = 5.0  # in which a unit is to come; a mount gives up a read after 30 s
FLIGHT_SIZE_BYTES_LEAST = 256 * 1024  # stored, however slow the store is


@dataclass(slots=True)
class FlightLimit:
    """The limit for the stored bytes of one flight. It is lower while the store is so slow that
    readers would wait for a whole unit beyond their time."""

    size_bytes_max: int = 4 * UNIT_STORED_BYTES_MAX

    def note(self, size_bytes: int, elapsed_s: float) -> None:
        """Notes how long a flight took, or after which time it was given up."""
        if elapsed_s > SOON_S:
            fits_bytes = int(size_bytes * SOON_S / elapsed_s)
            self.size_bytes_max = max(min(self.size_bytes_max, fits_bytes), FLIGHT_SIZE_BYTES_LEAST)
        elif elapsed_s < SOON_S / 2 and 2 * size_bytes >= self.size_bytes_max:
            self.size_bytes_max = min(2 * self.size_bytes_max, 4 * UNIT_STORED_BYTES_MAX)

    def fitting(self, index: PackIndex, wanted: int, first: int, end: int) -> range:
        """Returns those of the chunks [first, end) that one flight fetches: all, or some from the
        chunk ``wanted`` on, at least that one."""
        if index.stored_size(first, end) <= self.size_bytes_max:
            return range(first, end)
        last = bisect_right(index.offsets, index.offsets[wanted] + self.size_bytes_max) - 1
        return range(wanted, min(max(last, wanted + 1), end))


@dataclass(slots=True)
class Lane:
    """The limits of the flights that somebody wants, or of those that were announced. With common
    limits, nodes whose flights all wait for peers would fetch nothing for peers, and announced
    flights would delay those that peers wait for. Bytes of bulk flights do not count."""

    ahead_size_bytes_max: int
    running_size_bytes_max: int
    running_bytes: int = 0
    owned_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def share_bytes(self, owner: str) -> int:
        """Returns how much may be in flight for an owner."""
        return self.ahead_size_bytes_max // len(self.owned_bytes.keys() | {owner})


class Fetcher:
    """The flights of a node, for use on the event loop only."""

    def __init__(
        self,
        filler: CacheFill,
        pools: Pools,
        counts: Counts,
        *,
        deadline_s: float,
        ahead_size_bytes_max: int = AHEAD_SIZE_BYTES_MAX,
        running_size_bytes_max: int = RUNNING_SIZE_BYTES_MAX,
    ) -> None:
        self._filler = filler
        self._pools = pools
        self._counts = counts
        self._deadline_s = deadline_s
        self._wanted = Lane(ahead_size_bytes_max, running_size_bytes_max)
        self._announced = Lane(ANNOUNCED_SIZE_BYTES_MAX, ANNOUNCED_RUNNING_SIZE_BYTES_MAX)
        self._flights: dict[PackId, list[Flight]] = {}
        self._waiting: dict[Flight, None] = {}  # in the order of requests
        self._kept = KeptFlights(self._remove)
        self._beginnings: WeakValueDictionary[PackId, asyncio.Event] = WeakValueDictionary()
        self._limit = FlightLimit()
        self.in_flight_bytes = 0  # running and waiting, including bulk flights
        self.bulk_bytes = 0

    @property
    def waiting_units(self) -> int:
        """The number of flights ahead of readers that wait for their turn."""
        return len(self._waiting)

    def join(
        self,
        pack: PackId,
        chunk: int,
        follower: Follower | None = None,
        *,
        without: Collection[int] = (),
    ) -> Flight | None:
        """Returns a flight that fetches the chunk and none of the chunks ``without``, and that the
        peer ``follower``, if one asks, may wait for; None if there is none."""
        for flight in self._of(pack, follower):
            if flight.fetches(chunk) and not any(map(flight.fetches, without)):
                self._counts.add(Counter.JOINED)
                self._start(flight)
                if flight.is_kept and 2 * chunk >= flight.first + flight.end:
                    self._kept.note_read(flight)
                return flight
        return None

    async def result(
        self,
        pack_index: PackIndexVersion,
        flight: Flight,
        wanted: int,
        follower: Follower | None = None,
        least: int = 0,
    ) -> FetchResult:
        """Returns what a flight fetched, or one that fetched less: if other chunks of it were
        wrong, the wanted one is fetched without them. A peer that follows it gets what has come
        when the chunk ``least`` has. Raises: what the last flight raised; NotFound as in
        ``passed_on``."""
        for_peer = follower is not None
        bad: set[int] = set()
        for n, around in enumerate((_around, *[_alone] * JOINED_MAX)):
            try:
                if follower is None:
                    return await flight.readable()
                return await flight.passed_on(follower, min(max(least, wanted), flight.end - 1))
            except Corrupt:
                # Other nodes may have a good copy
                others = flight.unit.from_origin and not for_peer
                if not others and (flight.bad == wanted or flight.unit.count == 1):
                    raise
                part = part_of(flight.unit, *around(flight, wanted))
            if flight.bad is not None and flight.bad != wanted:
                bad.add(flight.bad)
            unit = replace(part, from_origin=for_peer)
            joined = None
            if n < JOINED_MAX:  # the last try fetches it alone
                joined = self.join(unit.pack, wanted, follower, without=bad)
            flight = joined or self.demand(pack_index, unit, wanted)
        return await flight.readable()

    def is_coming(self, pack: PackId, chunk: int, follower: Follower) -> bool:
        """Whether a flight that the peer may wait for fetches a chunk."""
        return any(flight.fetches(chunk) for flight in self._of(pack, follower))

    def beginning(self, pack: PackId) -> asyncio.Event:
        """Returns an event that is set when the bytes of one more flight of a pack begin to
        come."""
        event = self._beginnings.get(pack)
        if event is None:
            event = self._beginnings[pack] = asyncio.Event()
        return event

    def _begins(self, pack: PackId) -> None:
        event = self._beginnings.pop(pack, None)
        if event is not None:
            event.set()

    def _of(self, pack: PackId, follower: Follower | None = None) -> list[Flight]:
        """Returns the flights of a pack that a reader, or the peer ``follower``, may wait for,
        without those that have failed and will be dropped: a reader that joined one would fail at
        once, again and again."""
        flights = [one for one in self._flights.get(pack, ()) if not one.has_failed()]
        if follower is None:
            return flights
        return [one for one in flights if one.may_be_followed(follower)]

    def demand(
        self, pack_index: PackIndexVersion, unit: Unit, wanted: int, wanted_end: int = 0
    ) -> Flight:
        """Starts a flight for the chunk ``wanted`` and the part of its unit around it that no other
        flight fetches, and that is not known to be damaged. Its result has the bytes of the chunks
        [wanted, wanted_end)."""
        first, end = unit.first, unit.first + unit.count
        taken = [(one.first, one.end) for one in self._of(unit.pack, _peer_of(unit))]
        if (damaged := self._filler.known_damage(unit)) is not None:
            taken.append(damaged)
        for taken_first, taken_end in taken:
            if taken_end <= wanted:
                first = max(first, taken_end)
            elif wanted < taken_first:
                end = min(end, taken_first)
        chunks = range(wanted, wanted_end)
        soon = self._limit.fitting(pack_index.index, wanted, first, end)
        part = part_of(unit, soon.start, soon.stop)
        asked = chunks or range(part.first, part.end)
        flight = self._add(pack_index, part, wanted=chunks, asked=asked)
        self._start(flight)
        return flight

    def bulk(self, pack_index: PackIndexVersion, unit: Unit) -> list[Flight]:
        """Returns flights that together fetch all of a unit: existing ones, and new ones for the
        rest. New ones start at once and do not count as read-ahead: the caller bounds them.
        """
        flights: list[Flight] = []

        def fill_up(to: int) -> None:
            part = part_of(unit, at, to)
            if part.destinations or not unit.destinations:
                asked = range(part.first, part.end)
                flights.append(self._add(pack_index, part, is_bulk=True, asked=asked))
                self._start(flights[-1])

        at = unit.first
        flights_now = [one for one in self._of(unit.pack) if not one.is_kept]
        for flight in sorted(flights_now, key=lambda flight: flight.first):
            if at < flight.end and flight.first < unit.end:
                if at < flight.first:
                    fill_up(flight.first)
                self._start(flight)
                flights.append(flight)
                at = flight.end
        if at < unit.end:
            fill_up(unit.end)
        return flights

    def ahead(self, pack_index: PackIndexVersion, unit: Unit) -> Flight | None:
        """Starts to fetch what is missing at the beginning of the unit. Returns its flight, or the
        last one of those that fetch all of it already; None, with nothing started, if too much is
        in flight for its owner already: owners have equal shares."""
        first, end = unit.first, unit.first + unit.count
        flights = self._of(unit.pack, _peer_of(unit))
        for flight in sorted(flights, key=lambda flight: flight.first):
            if flight.first <= first < flight.end:
                first = flight.end
                if first >= end:
                    return flight
            elif first < flight.first < end:
                end = flight.first
        soon = self._limit.fitting(pack_index.index, first, first, end)
        part = part_of(unit, soon.start, soon.stop)
        owner, lane = current_owner.get(), self._lane(unit)
        ahead_bytes = pack_index.index.raw_size(part.first, part.end) + self._kept.unread_bytes
        if lane.owned_bytes.get(owner, 0) + ahead_bytes > lane.share_bytes(owner):
            self._counts.add(Counter.AHEAD_REFUSED)
            return None
        self._counts.add(Counter.AHEAD_UNITS)
        flight = self._add(pack_index, part)
        self._waiting[flight] = None
        self._start_waiting()
        return flight

    async def direct(self, pack_index: PackIndexVersion, unit: Unit) -> FetchResult:
        """Fetches all chunks of a small unit into memory, without the cache."""
        result = await self._pools.fetching(0, from_origin=unit.from_origin).bounded(
            name_of(unit), self._deadline_s, lambda: self._filler.read(pack_index, unit)
        )
        self._counts.add(Counter.UNCACHED_BYTES, sum(map(len, result.memory.values())))
        return result

    def _add(
        self,
        pack_index: PackIndexVersion,
        unit: Unit,
        *,
        is_bulk: bool = False,
        wanted: range = range(0),
        asked: range = range(0),
    ) -> Flight:
        index = pack_index.index
        flight = Flight(
            unit,
            index.raw_size(unit.first, unit.end),
            is_bulk=is_bulk,
            waits_for_peers=self._filler.waits_for_peers(unit),
            wanted=wanted,
            asked=(index.raw_offsets[asked.start], index.raw_offsets[asked.stop]),
            began=partial(self._begins, unit.pack),
        )
        flight.task = asyncio.create_task(self._fly(flight, pack_index, unit))
        flight.task.add_done_callback(partial(self._landed, flight))
        self._flights.setdefault(unit.pack, []).append(flight)
        if flight.transferring:
            self._begins(unit.pack)
        self.in_flight_bytes += flight.size_bytes
        self.bulk_bytes += flight.size_bytes * is_bulk
        if not is_bulk:
            self._lane(unit).owned_bytes[flight.owner] += flight.size_bytes
        return flight

    def _start(self, flight: Flight) -> None:
        if not flight.may_start.is_set():
            flight.may_start.set()
            self._lane(flight.unit).running_bytes += flight.size_bytes * (not flight.is_bulk)
            # Perhaps out of turn: nothing keeps a flight that has landed
            self._waiting.pop(flight, None)

    def _start_waiting(self) -> None:
        """Starts waiting flights of each lane as far as there is room: of the owner with the least
        under way, in the order of requests."""
        for lane in (self._wanted, self._announced):
            while waiting := [one for one in self._waiting if self._lane(one.unit) is lane]:
                running = _running_of(lane, waiting)
                flight = min(waiting, key=lambda one: running[one.owner])
                room = lane.running_size_bytes_max - lane.running_bytes
                if lane.running_bytes and flight.size_bytes > room:
                    break
                self._start(flight)

    def _lane(self, unit: Unit) -> Lane:
        return self._announced if unit.is_announced else self._wanted

    async def _fly(self, flight: Flight, pack_index: PackIndexVersion, unit: Unit) -> FetchResult:
        await flight.may_start.wait()
        begun_s, stored_bytes = monotonic(), pack_index.index.stored_size(unit.first, unit.end)
        try:
            pool = self._pools.fetching(flight.size_bytes, from_origin=unit.from_origin)
            result = await pool.bounded(
                name_of(unit),
                self._deadline_s,
                lambda: self._filler.fill(pack_index, unit, flight),
            )
            if result.origin is not None:
                elapsed_s = monotonic() - begun_s
                if result.origin is Origin.STORE:
                    self._limit.note(stored_bytes, elapsed_s)
                self._counts.fetched(result.origin, elapsed_s, sampled_trace_id())
                self._counts.fetched_for(flight.owner, result.origin, flight.size_bytes)
            return result
        except DeadlineExceeded:
            self._limit.note(stored_bytes, monotonic() - begun_s)
            self._counts.add(Counter.DEADLINES)
            raise
        except WrongChunk as error:
            flight.bad = error.number
            raise Corrupt(str(error)) from error

    def _landed(self, flight: Flight, task: asyncio.Task[FetchResult]) -> None:
        self._remove(flight)
        flight.ended()
        self.in_flight_bytes -= flight.size_bytes
        self.bulk_bytes -= flight.size_bytes * flight.is_bulk
        if not flight.is_bulk:
            lane = self._lane(flight.unit)
            lane.running_bytes -= flight.size_bytes * flight.may_start.is_set()
            lane.owned_bytes[flight.owner] -= flight.size_bytes
            if not lane.owned_bytes[flight.owner]:
                del lane.owned_bytes[flight.owner]
        if not task.cancelled() and task.exception() is None:  # marks the exception as retrieved
            result = task.result()
            self._filler.touch_asked(result.extents, *flight.asked)
            if result.refusal is not None and not flight.is_bulk:
                self._flights.setdefault(flight.unit.pack, []).append(flight)
                self._kept.keep(flight)
        self._start_waiting()

    def _remove(self, flight: Flight) -> None:
        flights = self._flights[flight.unit.pack]
        flights.remove(flight)
        if not flights:
            del self._flights[flight.unit.pack]

    async def close(self) -> None:
        self._waiting.clear()
        self._kept.clear()
        tasks = [flight.task for flights in self._flights.values() for flight in flights]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _running_of(lane: Lane, waiting: Collection[Flight]) -> dict[str, int]:
    """Returns the bytes under way for the owners of waiting flights of a lane."""
    running = {flight.owner: lane.owned_bytes[flight.owner] for flight in waiting}
    for flight in waiting:
        running[flight.owner] -= flight.size_bytes
    return running


def _peer_of(unit: Unit) -> Follower | None:
    """Returns some peer if a unit is fetched for peers."""
    return Follower("", cached=True) if unit.from_origin else None


def _around(flight: Flight, wanted: int) -> tuple[int, int]:
    """Returns those chunks of a flight around the wanted one that may be right."""
    if flight.bad is None or flight.bad == wanted:
        return _alone(flight, wanted)
    if wanted < flight.bad:
        return flight.first, flight.bad
    return flight.bad + 1, flight.end


def _alone(_flight: Flight, wanted: int) -> tuple[int, int]:
    return wanted, wanted + 1

"""Flights: one fetch for all who miss the same, cancelled by none, ended by its deadline."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import DeadlineExceeded, NotFound, Unavailable
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import WrongChunk
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index
from lodefs.proxy.cache.extents import Run
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import CacheTarget, FetchResult
from lodefs.proxy.fetch.flight import Follower
from lodefs.proxy.fetch.pack_source import FillListener
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.runtime.thread_pools import LARGE_SIZE_BYTES_MIN, LARGE_THREADS, Pools
from tests.support.proxy.rig import MIB, REPO, Rig, read_path, until

BIG = random.Random(1).randbytes(2 * MIB)


class Gate:
    """Holds all ranged reads of chunks until it is opened; says when one has arrived."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.arrived = threading.Event()
        self.opened = threading.Event()
        rig.objects.answer = self._answer

    def _answer(self, key: str, part: Part) -> Part:
        if self._rig.objects.ranges:
            self.arrived.set()
            assert self.opened.wait(60)
        return part

    async def someone(self) -> None:
        """Returns when a read has arrived."""
        assert await asyncio.to_thread(self.arrived.wait, 60)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=10_000, pack_chunks=300)


async def _know(rig: Rig, node: object) -> None:
    """Everything but the chunks is in memory."""
    await read_path(node, b"big", MIB, 1)  # type: ignore[arg-type]
    rig.reset()


def test_a_cancelled_reader_does_not_stop_the_others(rig: Rig) -> None:
    """The first reader starts the flight and leaves; the second one still gets its bytes, from
    one request."""

    async def run() -> None:
        async with rig.node() as node:
            await _know(rig, node)
            gate = Gate(rig)
            first = asyncio.create_task(read_path(node, b"big", 0, 100))
            await gate.someone()
            second = asyncio.create_task(read_path(node, b"big", 0, 100))
            turned = asyncio.Event()  # set in the loop's next turn, after the second has begun
            asyncio.get_running_loop().call_soon(turned.set)
            await turned.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            gate.opened.set()
            assert await second == BIG[:100]
            assert len(rig.objects.ranges) == 1

    asyncio.run(run())


def test_a_flight_without_readers_still_fills_the_cache(rig: Rig) -> None:
    """Bytes that were asked for are kept even where nobody waits any more."""

    async def run() -> None:
        async with rig.node() as node:
            await _know(rig, node)
            gate = Gate(rig)
            reader = asyncio.create_task(read_path(node, b"big", 0, 100))
            await gate.someone()
            reader.cancel()
            gate.opened.set()
            await until(lambda: not node.status()["in_flight_bytes"])
            assert await read_path(node, b"big", 0, 100) == BIG[:100]
            assert len(rig.objects.ranges) == 1

    asyncio.run(run())


def test_a_stuck_store_costs_the_deadline(rig: Rig) -> None:
    """A read that the store never answers ends with DeadlineExceeded for all who wait, and the
    place can be read when the store answers again."""

    async def run() -> None:
        async with rig.node() as node:
            snapshot = await node.names.snapshot(REPO, "main")
            await node.names.entry(snapshot, b"big")
            rig.reset()
            gate = Gate(rig)
            node._fetcher._deadline_s = 0.01  # for chunks alone: all before has time
            readers = [asyncio.create_task(read_path(node, b"big", 0, 100)) for _ in range(3)]
            for outcome in await asyncio.gather(*readers, return_exceptions=True):
                assert isinstance(outcome, DeadlineExceeded)
            assert node.counts.values[Counter.DEADLINES] >= 1
            gate.opened.set()
        rig.objects.answer = lambda _key, part: part
        async with rig.node() as node:
            assert await read_path(node, b"big", 0, 100) == BIG[:100]

    asyncio.run(run())


def test_overlapping_readers_fetch_every_byte_once(rig: Rig) -> None:
    """Readers at different places of one cold file share what is under way: no byte of the pack
    is sent twice."""

    async def run() -> None:
        async with rig.node() as node:
            await node.names.entry(await node.names.snapshot(REPO, "main"), b"big")
            rig.reset()
            starts = [0, 5_000, 300_000, 299_999, MIB, 0]
            answers = await asyncio.gather(*(read_path(node, b"big", s) for s in starts))
            assert list(answers) == [BIG[start:] for start in starts]
            sent = sum(size for _, _, size in rig.objects.ranges)
            assert sent == len(BIG)

    asyncio.run(run())


def test_a_closing_node_ends_its_readers(rig: Rig) -> None:
    """Closing does not hang on readers that wait; they get an error."""

    async def run() -> None:
        async with rig.node() as node:
            await _know(rig, node)
            gate = Gate(rig)
            reader = asyncio.create_task(read_path(node, b"big", 0, 100))
            await gate.someone()
            closing = asyncio.create_task(node._fetcher.close())
            with pytest.raises(Exception, match="shutting down"):
                await reader
            gate.opened.set()
            await closing

    asyncio.run(run())


ASKS = Follower("another", cached=True)


class Fills:
    """A filler whose fills end when they are told to, in the order in which they began."""

    def __init__(self) -> None:
        self.begun: list[Unit] = []
        self.listeners: list[FillListener] = []  # of each of them
        self.error: Exception | None = None  # that each ends with
        self.damaged: tuple[int, int] | None = None  # what is known to be bad in the store
        self._may_end = threading.Condition()
        self._ends = 0

    def fill(self, _loaded: PackIndexVersion, unit: Unit, listener: FillListener) -> FetchResult:
        with self._may_end:
            number = len(self.begun)
            self.begun.append(unit)
            self.listeners.append(listener)
            assert self._may_end.wait_for(lambda: self._ends > number, timeout=60)
        if self.error is not None:
            raise self.error
        return FetchResult()

    def waits_for_peers(self, unit: Unit) -> bool:
        return not unit.from_origin

    def touch_asked(self, runs: list[Run], _first: int, _end: int) -> None:
        assert not runs

    def known_damage(self, _unit: Unit) -> tuple[int, int] | None:
        return self.damaged

    def end(self, count: int = 1) -> None:
        with self._may_end:
            self._ends += count
            self._may_end.notify_all()

    @property
    def firsts(self) -> list[int]:
        """The first chunks of what was begun."""
        return [unit.first for unit in self.begun]


@asynccontextmanager
async def fetching(
    rig: Rig, *, threads: int = 32
) -> AsyncIterator[tuple[Fetcher, Fills, PackIndexVersion, Counts]]:
    """A fetcher that lets chunks of 10,000 bytes run by two, and the index of BIG's pack."""
    entry = rig.maker.entry(b"big", BIG)
    version = read_index(rig.objects, entry.segments[0].pack)
    fills, pools, counts = Fills(), Pools(fetch=threads), Counts()
    fetcher = Fetcher(
        fills,  # type: ignore[arg-type]
        pools,
        counts,
        deadline_s=60,
        ahead_size_bytes_max=100_000,
        running_size_bytes_max=25_000,
    )
    try:
        yield fetcher, fills, version, counts
    finally:
        fills.end(100)
        await fetcher.close()
        for pool in (pools.fetch, pools.large, pools.disk):
            await pool.close()


def unit_of(pack_index: PackIndexVersion, first: int, count: int = 1) -> Unit:
    return Unit(pack_index.index.pack_id, first, count)


def test_what_is_read_ahead_takes_turns(rig: Rig) -> None:
    """So much at a time as is allowed to run, in the order in which it was asked for."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, counts):
            for first in range(10):
                assert fetcher.ahead(pack_index, unit_of(pack_index, first))
            assert not fetcher.ahead(
                pack_index, unit_of(pack_index, 10)
            )  # 100,000 bytes are in flight
            await until(lambda: len(fills.begun) == 2)
            for done in range(1, 9):
                fills.end()
                await until(lambda: len(fills.begun) == 2 + done)  # noqa: B023
            assert sorted(fills.firsts) == list(range(10))
            assert fills.firsts[:2] in ([0, 1], [1, 0])
            fills.end(2)
            await until(lambda: not fetcher.in_flight_bytes)
            assert counts.values[Counter.AHEAD_UNITS] == 10
            assert counts.values[Counter.AHEAD_REFUSED] == 1

    asyncio.run(run())


def test_what_is_announced_has_turns_of_its_own(rig: Rig) -> None:
    """A node whose fetches all wait for peers still fetches what peers have announced."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            for first in range(4):
                assert fetcher.ahead(pack_index, unit_of(pack_index, first))
            announced = replace(unit_of(pack_index, 9), from_origin=True, is_announced=True)
            assert fetcher.ahead(pack_index, announced)
            await until(lambda: len(fills.begun) == 3)
            assert set(fills.firsts) == {0, 1, 9}

    asyncio.run(run())


def test_what_somebody_waits_for_starts_at_once(rig: Rig) -> None:
    """However much runs: what is new, and what was waiting for its turn and is needed now."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, counts):
            for first in range(6):
                fetcher.ahead(pack_index, unit_of(pack_index, first))
            await until(lambda: len(fills.begun) == 2)
            new = fetcher.demand(pack_index, unit_of(pack_index, 50), 50)
            needed = fetcher.join(pack_index.index.pack_id, 5)
            assert needed is not None
            await until(lambda: len(fills.begun) == 4)
            assert set(fills.firsts) == {0, 1, 50, 5}
            assert counts.values[Counter.JOINED] == 1
            assert fetcher.join(pack_index.index.pack_id, 60) is None
            assert counts.values[Counter.JOINED] == 1
            fills.end(100)
            assert (await new.landed(), await needed.landed()) == (FetchResult(), FetchResult())
            await until(lambda: not fetcher.in_flight_bytes)
            assert sorted(fills.firsts) == [0, 1, 2, 3, 4, 5, 50]
            assert fetcher._wanted.running_bytes == 0

    asyncio.run(run())


def test_what_was_started_out_of_turn_is_not_kept(rig: Rig) -> None:
    """A flight that somebody came to need leaves the queue at once, also if its head never moves:
    nothing holds what it fetched."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            for first in range(4):
                assert fetcher.ahead(pack_index, unit_of(pack_index, first))
            await until(lambda: len(fills.begun) == 2)  # the others wait for them
            assert [flight.first for flight in fetcher._waiting] == [2, 3]
            assert fetcher.join(pack_index.index.pack_id, 3) is not None
            assert [flight.first for flight in fetcher._waiting] == [2]

    asyncio.run(run())


def test_a_unit_larger_than_what_may_run_still_runs(rig: Rig) -> None:
    """Alone."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            fetcher.ahead(pack_index, unit_of(pack_index, 0, 9))
            fetcher.ahead(pack_index, unit_of(pack_index, 9))
            await until(lambda: len(fills.begun) == 1)
            fills.end(2)
            await until(lambda: not fetcher.in_flight_bytes)
            assert fills.firsts == [0, 9]

    asyncio.run(run())


def test_closing_ends_what_waits_for_its_turn(rig: Rig) -> None:
    """It is never begun, and nobody hangs on it."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            for first in range(6):
                fetcher.ahead(pack_index, unit_of(pack_index, first))
            await until(lambda: len(fills.begun) == 2)
            fills.end(2)
            await fetcher.close()
            assert fetcher.in_flight_bytes == 0

    asyncio.run(run())


def test_many_small_fetches_run_at_once(rig: Rig) -> None:
    """As many as there are threads: random readers of a store that is far away wait together."""

    async def run() -> None:
        async with fetching(rig, threads=20) as (fetcher, fills, pack_index, _):
            for first in range(0, 60, 2):
                fetcher.demand(pack_index, unit_of(pack_index, first), first)
            await until(lambda: len(fills.begun) == 20)
            fills.end(30)
            await until(lambda: not fetcher.in_flight_bytes)
            assert len(fills.begun) == 30

    asyncio.run(run())


def test_large_fetches_leave_room_for_small_ones(rig: Rig) -> None:
    """However many large ones are demanded: few run, and a small one beside them."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            count = LARGE_SIZE_BYTES_MIN // 10_000 + 1
            small = fetcher.demand(pack_index, unit_of(pack_index, 200), 200)
            large = [fetcher.demand(pack_index, unit_of(pack_index, 0, count), 0)]
            large += [
                fetcher.demand(pack_index, replace(unit_of(pack_index, 0, count), pack=pack), 0)
                for pack in (PackId(bytes([n]) * 32) for n in range(20))
            ]
            await until(lambda: len(fills.begun) == LARGE_THREADS + 1)
            assert 200 in fills.firsts
            fills.end(22)
            for flight in (small, *large):
                await flight.landed()

    asyncio.run(run())


def test_the_setting_is_the_number_of_threads(rig: Rig) -> None:
    """A node talks to its store with so many threads as its settings say."""

    async def run() -> None:
        async with rig.node(rig.settings(fetch_threads=3)) as node:
            assert node._pools.fetch.threads_max == 3
            assert await read_path(node, b"big") == BIG

    asyncio.run(run())


def test_bulk_flights_cover_a_unit_between_others(rig: Rig) -> None:
    """What is under way is joined, what lies between is begun, no chunk twice; what a reader may
    have read ahead is not less for it."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            fetcher.demand(pack_index, unit_of(pack_index, 3, 2), 3)
            fetcher.demand(pack_index, unit_of(pack_index, 8), 8)
            flights = fetcher.bulk(pack_index, unit_of(pack_index, 0, 10))
            assert [(flight.first, flight.end) for flight in flights] == [
                *((0, 3), (3, 5), (5, 8), (8, 9), (9, 10)),
            ]
            assert fetcher.bulk_bytes == 70_000
            assert fetcher.ahead(pack_index, unit_of(pack_index, 20, 7))
            await until(lambda: len(fills.begun) == 5)
            fills.end(6)
            for flight in flights:
                await flight.landed()
            await until(lambda: not fetcher.in_flight_bytes)
            assert (fetcher.bulk_bytes, fetcher._wanted.running_bytes) == (0, 0)

    asyncio.run(run())


def test_bulk_flights_fetch_nothing_without_a_destination(rig: Rig) -> None:
    """Between others, a stretch in which nothing is wanted is not begun."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            fetcher.demand(pack_index, unit_of(pack_index, 4), 4)
            wanted = (CacheTarget(0, 2), CacheTarget(4, 5))
            unit = replace(unit_of(pack_index, 0, 10), destinations=wanted)
            flights = fetcher.bulk(pack_index, unit)
            assert [(flight.first, flight.end) for flight in flights] == [(0, 4), (4, 5)]
            await until(lambda: len(fills.begun) == 2)
            assert fills.begun[1].destinations == (CacheTarget(0, 2),)
            fills.end(2)
            await until(lambda: not fetcher.in_flight_bytes)

    asyncio.run(run())


def test_a_peer_waits_for_no_flight_that_waits_for_peers(rig: Rig) -> None:
    """What this node waits for peers for is not promised to a peer, and is read from the origin for
    it; once its bytes come, and where it comes from the origin, a peer may wait for it."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            pack = pack_index.index.pack_id
            ours = fetcher.demand(pack_index, Unit(pack, 0, 4), 0)
            await until(lambda: len(fills.begun) == 1)
            assert fetcher.join(pack, 1) is ours
            assert fetcher.join(pack, 1, ASKS) is None
            assert not fetcher.is_coming(pack, 1, ASKS)
            theirs = fetcher.demand(pack_index, Unit(pack, 1, 2, from_origin=True), 1)
            assert (theirs.first, theirs.end) == (1, 3)
            assert fetcher.join(pack, 1, ASKS) is theirs
            assert fetcher.is_coming(pack, 1, ASKS)
            assert not fetcher.is_coming(pack, 0, ASKS)
            fills.listeners[0].arrived({})
            assert fetcher.is_coming(pack, 0, ASKS)
            assert fetcher.join(pack, 0, ASKS) is ours
            fills.end(2)
            await ours.landed()
            await theirs.landed()

    asyncio.run(run())


def test_a_peer_waits_for_no_flight_that_waits_for_it(rig: Rig) -> None:
    """Nothing is promised to a node that is asked for the same chunks, and what it asks of an owner
    is read from the origin. Other nodes may wait, and so may a node that waits already."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            pack = pack_index.index.pack_id
            ours = fetcher.demand(pack_index, Unit(pack, 0, 4), 0)
            await until(lambda: len(fills.begun) == 1)
            (listener,) = fills.listeners
            listener.arrived({0: b"a"})
            begun, asked = Follower("asked", cached=False), Follower("asked", cached=False)
            await ours.passed_on(begun, 0)
            listener.asks(frozenset({"asked"}))
            assert fetcher.join(pack, 1, ASKS) is ours
            assert fetcher.join(pack, 1, begun) is ours
            assert fetcher.join(pack, 1, asked) is None
            assert not fetcher.is_coming(pack, 1, asked)
            theirs = fetcher.demand(pack_index, Unit(pack, 1, 2, from_origin=True), 1)
            assert fetcher.join(pack, 1, asked) is theirs
            listener.asks(frozenset())
            assert fetcher.join(pack, 3, asked) is ours
            fills.end(2)
            await ours.landed()
            await theirs.landed()

    asyncio.run(run())


def test_a_peer_gets_chunks_as_they_come(rig: Rig) -> None:
    """A peer gets them once those that it waits for have come, in any thread; or the error of the
    flight."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            flight = fetcher.demand(pack_index, Unit(pack_index.index.pack_id, 0, 4), 0)
            await until(lambda: len(fills.begun) == 1)
            arrived = fills.listeners[0].arrived
            arrived({0: b"a"})
            one, other = Follower("one", cached=True), Follower("other", cached=True)
            assert (await flight.passed_on(one, 0)).memory == {0: b"a"}
            waits = [
                asyncio.create_task(fetcher.result(pack_index, flight, 0, *whose))
                for whose in ((one, 1), (other, 9))
            ]
            await until(lambda: flight.passes_to("one") and flight.passes_to("other"))
            await asyncio.to_thread(arrived, {1: b"b"})
            assert (await waits[0]).memory == {0: b"a", 1: b"b"}
            assert not waits[1].done()
            fills.error = Unavailable("the last owner is gone")
            fills.end()
            with pytest.raises(Unavailable, match="the last owner"):
                await waits[1]

    asyncio.run(run())


def test_no_peer_begins_to_wait_for_a_flight_whose_source_has_failed(rig: Rig) -> None:
    """Peers that have got nothing of it get an error; a peer that has got a part gets the rest when
    bytes come again."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            pack = pack_index.index.pack_id
            flight = fetcher.demand(pack_index, Unit(pack, 0, 4), 0)
            await until(lambda: len(fills.begun) == 1)
            listener = fills.listeners[0]
            listener.arrived({0: b"a"})
            new, begun = Follower("new", cached=True), Follower("begun", cached=True, got_bytes=1)
            asks = Follower("asks", cached=False)
            waits = [asyncio.create_task(flight.passed_on(one, 1)) for one in (new, begun, asks)]
            await until(lambda: all(map(listener.passes_to, ("new", "begun", "asks"))))
            await asyncio.to_thread(listener.stopped)
            with pytest.raises(NotFound, match="has failed"):
                await waits[0]
            assert not listener.passes_to("new")
            assert not fetcher.is_coming(pack, 1, ASKS)
            assert fetcher.join(pack, 1, new) is None
            assert fetcher.join(pack, 1, begun) is flight
            assert not (waits[1].done() or waits[2].done())
            listener.arrived({0: b"a", 1: b"b"})
            for wait in waits[1:]:
                assert (await wait).memory == {0: b"a", 1: b"b"}
            assert fetcher.is_coming(pack, 1, ASKS)

    asyncio.run(run())


def test_nobody_joins_a_flight_that_has_failed(rig: Rig) -> None:
    """Whoever comes in the turn of the loop in which a flight fails starts a new one: the failed
    one would fail him again, as often as he asks."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            pack = pack_index.index.pack_id
            fills.error = WrongChunk("bad bytes", 2)
            failed = fetcher.demand(pack_index, Unit(pack, 0, 4), 0)
            fills.end()
            await until(failed.task.done, poll_s=0)
            assert fetcher._flights[pack] == [failed]  # the turn in question
            assert fetcher.join(pack, 0) is None
            assert not fetcher.is_coming(pack, 0, ASKS)
            fills.error = None
            again = fetcher.demand(pack_index, Unit(pack, 0, 4), 0)
            assert (again.first, again.end) == (0, 4)
            (bulk,) = fetcher.bulk(pack_index, Unit(pack, 0, 4))
            assert bulk is again
            fills.end()
            await again.landed()

    asyncio.run(run())


def test_a_reader_whose_flight_failed_joins_none_with_the_bad_chunk(rig: Rig) -> None:
    """A flight that will fail by the chunk that failed the first one is not waited for, and a new
    flight fetches nothing that is known to be damaged."""

    async def run() -> None:
        async with fetching(rig) as (fetcher, fills, pack_index, _):
            pack = pack_index.index.pack_id
            fills.error = WrongChunk("bad bytes", 2)
            first = fetcher.demand(pack_index, Unit(pack, 0, 6), 0)
            reader = asyncio.create_task(fetcher.result(pack_index, first, 0))
            await until(lambda: len(fills.begun) == 1)
            fetcher.demand(pack_index, Unit(pack, 0, 8), 0)  # that has the chunk, too
            await until(lambda: len(fills.begun) == 2)
            fills.end(2)
            await until(lambda: len(fills.begun) == 3)
            assert (fills.begun[2].first, fills.begun[2].end) == (0, 2)
            fills.error, fills.damaged = None, (2, 3)
            later = fetcher.demand(pack_index, Unit(pack, 0, 6), 4)
            assert (later.first, later.end) == (3, 6)
            fills.end(3)
            assert await reader == FetchResult()

    asyncio.run(run())

"""Flights: one fetch for all who miss the same, cancelled by none, ended by its deadline."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from chunkstore.errors import DeadlineExceeded
from chunkstore.objects import Part
from proxy.meter import Counter
from proxy.testing_rig import MIB, REPO, Rig, read_path, until

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
            snapshot = await node.snapshot(REPO, "main")
            await node.entry(snapshot, b"big")
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
            await node.entry(await node.snapshot(REPO, "main"), b"big")
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

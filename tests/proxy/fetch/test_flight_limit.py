"""Flights from a slow store have fewer bytes, so that readers do not wait beyond their time."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index
from lodefs.proxy.fetch import single_flight
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.single_flight import FLIGHT_SIZE_BYTES_LEAST, SOON_S, FlightLimit
from tests.support.proxy.rig import MIB, Rig, read_path, until

BIG = random.Random(1).randbytes(2 * MIB)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {b"big": BIG}, chunk_size_bytes=10_000, pack_chunks=300)


def version_of(rig: Rig) -> PackIndexVersion:
    return read_index(rig.objects, rig.maker.entry(b"big", BIG).segments[0].pack)


def test_a_limit_follows_the_last_flights(rig: Rig) -> None:
    """A flight has what comes in SOON_S at the rate of the last ones, from the wanted chunk on, and
    never less than a chunk; when the store is quick again, flights grow."""
    index = version_of(rig).index
    limit = FlightLimit()
    assert limit.fitting(index, 7, 3, 200) == range(3, 200)
    limit.note(2 * MIB, 4 * SOON_S)
    assert limit.size_bytes_max == MIB // 2
    assert limit.fitting(index, 7, 3, 200) == range(7, 7 + MIB // 2 // 10_000)
    assert limit.fitting(index, 7, 3, 20) == range(3, 20)
    limit.note(10, 60.0)
    assert limit.size_bytes_max == FLIGHT_SIZE_BYTES_LEAST
    limit.size_bytes_max = 5
    assert limit.fitting(index, 7, 3, 200) == range(7, 8)
    limit.note(FLIGHT_SIZE_BYTES_LEAST, 0.1)
    assert limit.size_bytes_max == 10
    for _ in range(40):
        limit.note(limit.size_bytes_max, 0.1)
    assert limit.fitting(index, 7, 3, 200) == range(3, 200)


def test_a_slow_store_makes_demands_and_read_ahead_small(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flights from the store are timed, and the next ones keep to the limit."""
    version = version_of(rig)
    pack = version.index.pack_id

    async def run() -> None:
        async with rig.node() as node:
            fetcher = node._fetcher
            seconds = itertools.count(0.0, 2 * SOON_S)  # each flight takes as long
            monkeypatch.setattr(single_flight, "monotonic", lambda: next(seconds))
            await read_path(node, b"big", 0, MIB)
            await until(lambda: not node.status()["in_flight_bytes"])
            assert fetcher._limit.size_bytes_max < MIB
            fetcher._limit.size_bytes_max = 30_000
            demanded = fetcher.demand(version, Unit(pack, 110, 20), 115)
            ahead = fetcher.ahead(version, Unit(pack, 140, 9))
            assert ahead is not None
            assert (demanded.unit.first, demanded.unit.count) == (115, 3)
            assert (ahead.unit.first, ahead.unit.count) == (140, 3)
            await until(lambda: not node.status()["in_flight_bytes"])

    asyncio.run(run())

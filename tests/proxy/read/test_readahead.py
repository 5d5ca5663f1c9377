"""Schedule of read-ahead: what is announced to the owners of packs, and what waits for them."""

from __future__ import annotations

import asyncio
from typing import cast

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Segment
from lodefs.proxy.cache.prefetch_accuracy import PrefetchAccuracy
from lodefs.proxy.cache.reader import CacheReader
from lodefs.proxy.fetch.file_ranges import FileRanges
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.read.readahead import ANNOUNCING_MAX, ReadaheadScheduler, ReadFile
from tests.support.proxy.rig import MIB, until

FILE_MIB = 600


class HangingOwners:
    """Indexes of packs that no store has, and whose owners never answer."""

    def __init__(self) -> None:
        self.asked = self.announced = 0

    async def get(self, _pack: PackId, *, from_origin: bool = False) -> None:
        self.asked += 1
        raise Unavailable("the store is away")

    async def announce(self, _pack: PackId, _ahead: range) -> bool:
        self.announced += 1
        await asyncio.Event().wait()
        return False


def read_in_order(segment_mib: int) -> tuple[int, HangingOwners]:
    """Reads a file of equal segments. Returns how often read-ahead was wanted, and what came of
    it."""
    segments = tuple(
        Segment(PackId(n.to_bytes(32, "big")), 0, 16, segment_mib * MIB)
        for n in range(FILE_MIB // segment_mib)
    )
    indexes, wanted = HangingOwners(), list[int]()
    of_packs = cast("PackIndexes", indexes)

    async def run() -> None:
        scheduler = ReadaheadScheduler(
            FileRanges(cast("CacheReader", None), cast("Fetcher", None), of_packs),
            of_packs,
            PrefetchAccuracy(1024 * MIB),
            clock_s=lambda: 0.0,
        )
        file = ReadFile(bytes(32), FILE_MIB * MIB, segments)
        assert file.ahead is not None
        for at in range(0, FILE_MIB * MIB, MIB):
            ahead, unit_bytes = file.ahead.advance(at, at + MIB, at + MIB)
            if ahead is not None:
                scheduler.start(file, ahead, unit_bytes)
                wanted.append(at)
                await until(lambda: indexes.asked == len(wanted), poll_s=0)
        await scheduler.close()

    asyncio.run(run())
    return len(wanted), indexes


def test_owners_that_hang_hold_up_no_read_ahead() -> None:
    """More announcements wait than read-ahead may have tasks: all read-ahead begins nevertheless,
    and few owners are asked at once."""
    wanted, indexes = read_in_order(2)
    assert indexes.asked == wanted
    assert indexes.announced == ANNOUNCING_MAX


def test_small_segments_are_not_announced() -> None:
    """A file in many pieces of packs would cost a request for each of them."""
    wanted, indexes = read_in_order(1)
    assert indexes.asked == wanted
    assert not indexes.announced

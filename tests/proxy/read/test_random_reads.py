"""Reads at random in a file of several packs: the indexes of the others come beside them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from lodefs.proxy.read import readahead
from lodefs.proxy.runtime.counters import Counter
from tests.support.proxy.rig import MIB, Rig, read_path, until

PACKS = 6
CHUNK_BYTES = 20_000
PACK_BYTES = 2 * MIB // CHUNK_BYTES * CHUNK_BYTES
LARGE = random.Random(1).randbytes(PACKS * PACK_BYTES)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    files = {b"large": LARGE}
    return Rig(tmp_path, files, chunk_size_bytes=CHUNK_BYTES, pack_chunks=2 * MIB // CHUNK_BYTES)


async def indexes_after(rig: Rig, *packs: int) -> list[int]:
    """Returns the number of indexes read from the store after a read in the middle of each of these
    packs, and after the loads beside it."""
    read: list[int] = []
    async with rig.node() as node:
        for pack in packs:
            first = pack * PACK_BYTES + MIB
            assert await read_path(node, b"large", first, 100) == LARGE[first : first + 100]
            await until(lambda: not node.files._readahead._tasks)
            read.append(node.counts.values[Counter.INDEXES_READ])
    return read


def test_one_more_index_comes_with_each_miss_from_the_second_on(rig: Rig) -> None:
    """One read costs what it needs. Once a file is read at random, the next reads find the indexes
    of its packs in memory, and each is read once."""
    read = asyncio.run(indexes_after(rig, *range(PACKS), *range(PACKS)))
    assert read[:2] == [1, 3]
    assert read == sorted(read)
    assert read[-1] == PACKS


def test_a_file_of_many_packs_brings_none(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next read in one of many packs is hardly in the one that would be loaded."""
    monkeypatch.setattr(readahead, "RANDOM_PACKS_MAX", PACKS - 1)
    assert asyncio.run(indexes_after(rig, 0, 3, 5)) == [1, 2, 3]

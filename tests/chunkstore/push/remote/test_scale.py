"""Sources of any size: memory does not grow with the number of keys, or with the size of one."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.objects.s3.bucket import Level
from lodefs.chunkstore.push.remote.remote_scan import RemoteScan
from lodefs.chunkstore.push.remote.s3_files import S3Files
from lodefs.chunkstore.push.workers.pool import UNIT_BYTES
from lodefs.chunkstore.push.workers.source_files import SourceFile
from lodefs.chunkstore.push.workers.work_units import Planner, UnitLimits, WindowUnit

PAGE = 1000


class Synthetic:
    """A bucket of ``directories`` with ``files`` each, which are made when they are asked for.
    ``requests`` counts pages of lists."""

    url = "s3://synthetic"

    def __init__(self, directories: int, files: int) -> None:
        self._directories = directories
        self._files = files
        self.requests = 0

    def _below(self, directory: int) -> Iterator[ObjectInfo]:
        for number in range(self._files):
            yield ObjectInfo(f"{directory:06}/{number:06}", 1, "e")

    def list(self, prefix: str, limit: int) -> Iterator[ObjectInfo]:
        wanted = [int(prefix[:6])] if prefix else range(self._directories)
        every = (info for directory in wanted for info in self._below(directory))
        for number, info in enumerate(islice(every, limit)):
            self.requests += number % PAGE == 0
            yield info

    def levels(self, prefix: str) -> Iterator[Level]:
        assert not prefix  # no other place has more than one list can show
        for first in range(0, self._directories, PAGE):
            self.requests += 1
            last = min(first + PAGE, self._directories)
            yield Level([], [f"{number:06}/" for number in range(first, last)])


def scanned(directories: int, files: int) -> tuple[int, int, int]:
    """Files, requests, and the most memory of a scan.

    A full collection of garbage empties the interpreter's lists of free objects, and new ones count
    as memory while reused ones do not: a fifth of all. So there is one before, and none meanwhile.
    """
    bucket: Any = Synthetic(directories, files)
    found = 0
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for directory in RemoteScan(S3Files(bucket, "", flat_keys_max=500)):
            found += len(directory.columns.names)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()
    return found, bucket.requests, most


@pytest.mark.slow
def test_many_keys() -> None:
    """Eight times the keys take the same memory, apart from the names in the root, and requests in
    proportion."""
    few, few_requests, few_bytes = scanned(20, 400)
    many, many_requests, many_bytes = scanned(160, 400)
    assert (few, many) == (20 * 400, 160 * 400)
    assert many_requests <= 8 * few_requests
    assert many_bytes < 1.2 * few_bytes


def test_five_terabytes() -> None:
    """The windows of an object of 5 TiB are planned one by one, and cover it."""
    size_bytes = 5 << 40
    limits = UnitLimits(ChunkingParams(), UNIT_BYTES)
    planner = Planner([SourceFile(b"large", size_bytes, 0)], limits)
    for number in range(1000):
        unit = planner.next()
        assert isinstance(unit, WindowUnit)
        assert unit.read.offset == number * UNIT_BYTES
        assert unit.read.file_size_bytes == size_bytes and not unit.read.final

"""Benchmark of a node whose cache disk is slower than its network."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.cli import Proxy
from loadtests.measure import MemoryWatch, drop_page_cache
from loadtests.results import Result
from loadtests.services.slowdisk import slow_disk

SIZE_BYTES = 512 << 20
DISK_BYTES_PER_S = 20_000_000
ROUNDS = 2
RANDOM_READS, RANDOM_BYTES = 200, 64 << 10
PIECE_BYTES = 1 << 20
MEMORY_BYTES_MAX = 400 << 20
LEFT_OUT = "lodefs_cache_left_out_bytes_total "


@dataclass(frozen=True, slots=True)
class Reading:
    """A cold node: bytes a second one after the other, random reads a second, memory, and what
    was not cached."""

    bytes_per_s: float
    reads_per_s: float
    memory_bytes: int
    left_out_bytes: float


def slow_disk_reads(scratch: Path) -> Result:
    """512 MiB read from the beginning to the end, then 64 KiB at random places of another such
    file, through a mount, nothing cached: the cache on a disk of 20 MB/s, and on this machine's
    own, in turns."""
    result = Result("slow-disk")
    source = corpora.random_file(2 * SIZE_BYTES)
    seen: dict[str, list[Reading]] = {"own disk": [], "slow disk": []}
    with ceph_origin(scratch) as origin, slow_disk(scratch / "slow", DISK_BYTES_PER_S) as slow:
        origin.lodefs.run("push", source.parent, REPO)
        for number in range(ROUNDS):
            for name, place in (("own disk", scratch), ("slow disk", slow)):
                seen[name].append(_read_cold(origin, place / f"node{number}", source))
    for name, readings in seen.items():
        rate = median(one.bytes_per_s for one in readings) / 1e6
        result.add(f"{name}: sequential", rate, "MB/s")
        result.add(f"{name}: random 64 KiB", median(one.reads_per_s for one in readings), "/s")
        memory = max(one.memory_bytes for one in readings)
        result.add(f"{name}: memory", memory / 2**20, "MiB", at_most=MEMORY_BYTES_MAX / 2**20)
        left_out = median(one.left_out_bytes for one in readings)
        result.add(f"{name}: not cached", left_out / 2**20, "MiB")
    for what, of in (
        ("sequential", lambda one: one.bytes_per_s),
        ("random 64 KiB", lambda one: one.reads_per_s),
    ):
        fast, slow_rate = (median(map(of, seen[name])) for name in ("own disk", "slow disk"))
        result.add(f"{what}: slow disk / own disk", slow_rate / fast, "x", at_least=0.8)
    result.notes.append(f"the slow disk reads and writes {DISK_BYTES_PER_S / 1e6:.0f} MB/s")
    return result


def _read_cold(origin: Origin, folder: Path, source: Path) -> Reading:
    lodefs = origin.lodefs
    with (
        node(lodefs, folder) as proxy,
        mounted(lodefs, proxy, folder / "mnt") as target,
        source.open("rb") as wanted,
    ):
        drop_page_cache()
        memory = MemoryWatch(proxy.process.pid)
        fd = os.open(target / source.name, os.O_RDONLY)
        try:
            bytes_per_s = SIZE_BYTES / _seconds_of(fd, wanted.fileno(), _in_order())
            reads_per_s = RANDOM_READS / _seconds_of(fd, wanted.fileno(), _at_random())
        finally:
            os.close(fd)
        return Reading(bytes_per_s, reads_per_s, memory.stop(), _left_out(proxy))


def _in_order() -> list[tuple[int, int]]:
    return [(at, PIECE_BYTES) for at in range(0, SIZE_BYTES, PIECE_BYTES)]


def _at_random() -> list[tuple[int, int]]:
    """Offsets in the half that was not read."""
    places = random.Random(8)
    blocks = SIZE_BYTES // RANDOM_BYTES
    return [
        (SIZE_BYTES + number * RANDOM_BYTES, RANDOM_BYTES)
        for number in places.sample(range(blocks), RANDOM_READS)
    ]


def _seconds_of(fd: int, wanted: int, ranges: list[tuple[int, int]]) -> float:
    """The duration of the reads; every 16th is compared."""
    begin_s = time.perf_counter()
    for number, (offset, size_bytes) in enumerate(ranges):
        data = os.pread(fd, size_bytes, offset)
        if len(data) != size_bytes or (
            number % 16 == 0 and data != os.pread(wanted, size_bytes, offset)
        ):
            raise AssertionError(f"wrong bytes at {offset}")
    return time.perf_counter() - begin_s


def _left_out(proxy: Proxy) -> float:
    lines = proxy.metrics().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(LEFT_OUT))

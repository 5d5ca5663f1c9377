"""Sequential reads of a large file among small ones, through a mount without passthrough."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil

from loadtests import corpora
from loadtests.bench.sides import REPO, Side, mounted, node
from loadtests.bench.walks import mount_processes
from loadtests.cli import Lodefs
from loadtests.measure import check_may_drop, disk_notes, drop_page_cache, load_note, read_all
from loadtests.results import Result

ROUNDS = 8
READERS = (1, 8)
PIECE_BYTES = 1 << 20
LARGE = "large.bin"
DISK, CACHE_FILES, AGAIN = "from the disk", "first, cache files in memory", "again, from memory"
ASKED = {DISK: 0.9, AGAIN: 0.7}


@dataclass(frozen=True, slots=True)
class Reading:
    """One whole read: GB/s, and processor seconds a GB of readers and mount."""

    gb_per_s: float
    cpu_s: float


def sequential_reads(scratch: Path) -> Result:
    """1 GiB beside 20,000 small files, read by one reader, and in parts by eight, on the local disk
    and through a mount, in turns."""
    check_may_drop("mount-sequential")
    result = Result("mount-sequential")
    source = corpora.mixed()
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", lodefs.store)
    lodefs.run("push", source, REPO)
    with node(lodefs, scratch / "node") as proxy:
        lodefs.run("--proxy", proxy.url, "warm", REPO)
        with mounted(lodefs, proxy, scratch / "mnt", "--no-passthrough") as root:
            sides = [
                Side("local disk", source, None),
                Side("lodefs", root, scratch / "node" / "node" / "cache"),
            ]
            workers = mount_processes(lodefs, root)
            for readers in READERS:
                _compare(result, sides, workers, readers)
    result.notes += disk_notes("the local file", source, scratch)
    result.notes.append("from memory: the more a machine's free memory is in pieces, the slower")
    result.notes.append(load_note())
    return result


def _compare(
    result: Result, sides: Sequence[Side], workers: Sequence[psutil.Process], readers: int
) -> None:
    """Medians of all rounds, for each state of the page cache."""
    seen: dict[tuple[str, str], list[Reading]] = {}
    for number in range(ROUNDS):
        for side in sides if number % 2 else reversed(sides):
            serving = workers if side.cache_files else ()
            for state in (DISK, AGAIN, *([CACHE_FILES] if side.cache_files else [])):
                _prepare(side, state)
                reading = _read(side.root / LARGE, serving, readers)
                seen.setdefault((state, side.name), []).append(reading)
    by = f"{readers} reader{'s' if readers > 1 else ''}"
    for (state, name), readings in sorted(seen.items()):
        speed = median(one.gb_per_s for one in readings)
        result.add(f"{by}, {state}, {name}", speed, "GB/s")
        result.add("processor seconds a GB", median(one.cpu_s for one in readings), "s")
        if name == sides[1].name and state in ASKED:
            native = median(one.gb_per_s for one in seen[state, sides[0].name])
            what = f"{by}, {state}, lodefs / local disk"
            result.add(what, speed / native, "x", at_least=ASKED[state])


def _prepare(side: Side, state: str) -> None:
    if state == DISK:
        drop_page_cache()
    elif state == CACHE_FILES and side.cache_files is not None:
        read_all(side.cache_files)
        fd = os.open(side.root / LARGE, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _read(path: Path, serving: Sequence[psutil.Process], readers: int) -> Reading:
    """Each reader reads its part from the beginning to the end."""
    size_bytes = path.stat().st_size // readers
    before = _cpu_s(serving)
    start = perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        firsts = range(0, readers * size_bytes, size_bytes)
        own_s = sum(pool.map(lambda first: _read_part(path, first, size_bytes), firsts))
    seconds = perf_counter() - start
    giga = readers * size_bytes / 1e9
    return Reading(giga / seconds, (own_s + _cpu_s(serving) - before) / giga)


def _read_part(path: Path, first: int, size_bytes: int) -> float:
    """Returns the processor seconds that it took."""
    begin_s = time.thread_time()
    buffer = bytearray(PIECE_BYTES)
    fd = os.open(path, os.O_RDONLY)
    done = 0
    while done < size_bytes:
        done += os.preadv(fd, (buffer,), first + done)
    os.close(fd)
    return time.thread_time() - begin_s


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return float(sum(sum(one.cpu_times()[:2]) for one in processes))  # user and system

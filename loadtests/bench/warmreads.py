"""Reads from the cache's disk without passthrough, if the dataset does not fit into memory."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil

from loadtests import corpora
from loadtests.bench.origins import ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.bench.walks import mount_processes
from loadtests.measure import check_may_drop, disk_notes, drop_page_cache, load_note
from loadtests.reading import files_below
from loadtests.results import Result
from lodefs.chunkstore.system import libc

ROUNDS = 24
READS = 250  # on each side in each round
READ_BYTES = 4096
SMALL_BYTES = 64 << 10
MEMORY_KIB = 512 << 10  # the memory that the mount believes to have
MEMINFO = Path("/proc/meminfo")
CLONE_NEWNS = 0x20000  # unshare(2)
Times = list[float]


def warm_reads(scratch: Path) -> Result:
    """Random 4 KiB of a 1 GiB file, and small files in random order, on the local disk and through
    a mount, in turns; the page cache is dropped before each round."""
    check_may_drop("mount-warm")
    result = Result("mount-warm")
    source = corpora.mixed()
    with (
        _little_memory(scratch),
        ceph_origin(scratch) as origin,
        node(origin.lodefs, scratch / "node") as proxy,
    ):
        origin.lodefs.run("push", source, REPO)
        origin.lodefs.run("--proxy", proxy.url, "warm", REPO)
        with mounted(origin.lodefs, proxy, scratch / "mnt", "--no-passthrough") as root:
            names = [os.path.relpath(path, root) for path in files_below(str(root))]
            small = [name for name in names if name != "large.bin"]
            workers = mount_processes(origin.lodefs, root)
            _compare(result, "random 4 KiB", _random, [source, root], workers)
            _compare(result, "small files", _Small(small), [source, root], workers)
    result.notes += disk_notes("the local corpus", source, scratch)
    result.notes.append("processor and waits of small files include the look-up of their names")
    result.notes.append(load_note())
    return result


def _compare(
    result: Result,
    what: str,
    read: Callable[[Path, random.Random], Times],
    roots: Sequence[Path],
    workers: Sequence[psutil.Process],
) -> None:
    """Medians of all reads: other work on the machine delays some of them, on either side."""
    times: list[Times] = [[], []]
    cost: list[tuple[float, int]] = []
    for number in range(ROUNDS):
        drop_page_cache()
        for side in (0, 1) if number % 2 else (1, 0):
            before = _cost(workers)
            times[side] += read(roots[side], random.Random(2 * number + side))
            if side == 1:
                now = _cost(workers)
                cost.append((now[0] - before[0], now[1] - before[1]))
    native, ours = (median(each) * 1e6 for each in times)
    count = ROUNDS * READS
    result.add(f"{what}, local disk", native, "µs")
    result.add(f"{what}, lodefs", ours, "µs")
    result.add(f"{what}, lodefs / local disk", native / ours, "x", at_least=0.8)
    result.add("processor of the mount for a read", sum(one[0] for one in cost) / count * 1e6, "µs")
    result.add("waits of its threads for a read", sum(one[1] for one in cost) / count)


def _cost(processes: Sequence[psutil.Process]) -> tuple[float, int]:
    """Processor seconds, and the number of voluntary context switches."""
    seconds, waits = 0.0, 0
    for process in processes:
        times = process.cpu_times()
        seconds += times.user + times.system
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            text = (thread / "status").read_text("utf-8", "replace")
            waits += int(text.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])
    return seconds, waits


def _random(root: Path, source: random.Random) -> Times:
    fd = os.open(root / "large.bin", os.O_RDONLY)
    pages = os.fstat(fd).st_size // READ_BYTES
    buffer = bytearray(READ_BYTES)
    times = []
    for _ in range(READS):
        first = source.randrange(pages) * READ_BYTES
        start = perf_counter()
        os.preadv(fd, (buffer,), first)
        times.append(perf_counter() - start)
    os.close(fd)
    return times


class _Small:
    """Opens, reads and closes some small files whose names the kernel knows."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, root: Path, source: random.Random) -> Times:
        paths = [str(root / name) for name in source.sample(self._names, READS)]
        for path in paths:
            os.stat(path)
        times = []
        for path in paths:
            start = perf_counter()
            fd = os.open(path, os.O_RDONLY)
            os.read(fd, SMALL_BYTES)
            os.close(fd)
            times.append(perf_counter() - start)
        return times


@contextmanager
def _little_memory(scratch: Path) -> Iterator[None]:
    """Mounts that are made meanwhile believe that their dataset does not fit into memory: in a
    mount namespace of this process, /proc/meminfo tells of less."""
    lines = MEMINFO.read_text("ascii").splitlines()
    told = scratch / "meminfo"
    less = [
        f"{line.partition(':')[0]}: {MEMORY_KIB} kB"
        if line.startswith(("MemTotal:", "MemAvailable:"))
        else line
        for line in lines
    ]
    told.write_text("\n".join([*less, ""]), "ascii")
    libc.call("unshare", CLONE_NEWNS)
    for words in (["--make-rprivate", "/"], ["--bind", str(told), str(MEMINFO)]):
        subprocess.run(["mount", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(MEMINFO)], check=True)

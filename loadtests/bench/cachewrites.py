"""Benchmark of the ways in which the cache could write a file that is read at once."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from loadtests.results import Result
from lodefs.chunkstore.system.batched_writes import write_at
from tests.support.chunkstore.child_process import ChildError, run

SIZE_BYTES = 256 << 20
UNIT_BYTES = 8 << 20
READ_BYTES = 1 << 20
DISK_BYTES = 1 << 30
ROUNDS = 3
TMPFS = Path("/dev/shm")

Write = Callable[[int, memoryview, int], None]


@dataclass(frozen=True, slots=True)
class Way:
    """How a unit is written, and whether it is then read past the page cache, too."""

    write: Write
    flags: int = 0
    is_allocated: bool = False
    is_read_directly: bool = False
    shortened_bytes_max: int = 60_000  # units end with a chunk, anywhere


def _pieces(size_bytes: int) -> Write:
    def write(fd: int, unit: memoryview, offset: int) -> None:
        for at in range(0, len(unit), size_bytes):
            os.pwritev(fd, [unit[at : at + size_bytes]], offset + at)

    return write


def _as_lodefs(fd: int, unit: memoryview, offset: int) -> None:
    write_at(fd, offset, [unit])


WAYS = {
    "as lodefs does": Way(_as_lodefs),
    "whole units": Way(_pieces(UNIT_BYTES)),
    "whole units, fallocate": Way(_pieces(UNIT_BYTES), is_allocated=True),
    "1 MiB": Way(_pieces(1 << 20)),
    "512 KiB": Way(_pieces(512 << 10)),
    "64 KiB": Way(_pieces(64 << 10)),
    "O_DIRECT, read from the page cache": Way(
        _pieces(UNIT_BYTES), os.O_DIRECT, is_allocated=True, shortened_bytes_max=0
    ),
    "O_DIRECT, read with O_DIRECT": Way(
        _pieces(UNIT_BYTES),
        os.O_DIRECT,
        is_allocated=True,
        is_read_directly=True,
        shortened_bytes_max=0,
    ),
}


def cache_writes(scratch: Path) -> Result:
    """256 MiB written in units of about 8 MiB, and read once, in turns: processor seconds of both
    for each way to write, on the disk of the scratch folder, in memory, and as root on ext4 and
    xfs."""
    result = Result("cache-writes")
    with (
        TemporaryDirectory(dir=TMPFS) as memory,
        _loop_disk(scratch, "ext4") as ext4,
        _loop_disk(scratch, "xfs") as xfs,
    ):
        places = {"own disk": scratch, "tmpfs": Path(memory), "ext4": ext4, "xfs": xfs}
        for disk, place in places.items():
            if place is None:
                result.notes.append(f"{disk}: this machine cannot make one")
                continue
            seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in WAYS}
            for number in range(ROUNDS):
                for name in random.Random(number).sample(sorted(WAYS), len(WAYS)):
                    if (used := _used(WAYS[name], place / "written")) is not None:
                        seen[name].append(used)
            for name, rows in seen.items():
                _report(result, f"{disk}, {name}", rows)
    return result


def _report(result: Result, name: str, rows: list[tuple[float, float, float]]) -> None:
    if not rows:
        result.notes.append(f"{name}: the file system refuses it")
        return
    write_s, read_s, seconds = (median(row[n] for row in rows) for n in range(3))
    gib = SIZE_BYTES / (1 << 30)
    result.add(f"{name}: processor, writing", write_s / gib, "s/GiB")
    result.add(f"{name}: processor, reading", read_s / gib, "s/GiB")
    result.add(f"{name}: rate of both", SIZE_BYTES / 1e6 / seconds, "MB/s")


def _used(way: Way, path: Path) -> tuple[float, float, float] | None:
    """Processor seconds of writing and of reading, and seconds of both; None if the file system
    refuses the way."""
    lengths = random.Random(1)
    memory = mmap.mmap(-1, UNIT_BYTES)
    memory[:] = lengths.randbytes(UNIT_BYTES)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | way.flags, 0o600)
        started_s, started_cpu_s, at = perf_counter(), process_time(), 0
        os.ftruncate(fd, SIZE_BYTES)
        if way.is_allocated:
            os.posix_fallocate(fd, 0, SIZE_BYTES)
        while at < SIZE_BYTES:
            size = UNIT_BYTES - lengths.randint(0, way.shortened_bytes_max)
            size = min(size, SIZE_BYTES - at)
            way.write(fd, memoryview(memory)[:size], at)
            at += size
        written_cpu_s = process_time()
        os.close(fd)
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if way.is_read_directly else 0))
        for at in range(0, SIZE_BYTES, READ_BYTES):
            os.preadv(fd, [memoryview(memory)[:READ_BYTES]], at)
        ended_cpu_s, seconds = process_time(), perf_counter() - started_s
        os.close(fd)
        return written_cpu_s - started_cpu_s, ended_cpu_s - written_cpu_s, seconds
    except OSError:
        return None
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _loop_disk(scratch: Path, kind: str) -> Iterator[Path | None]:
    """A new file system in a file; None if this machine cannot make one."""
    image, target = scratch / f"{kind}.image", scratch / kind
    target.mkdir()
    image.touch()
    os.truncate(image, DISK_BYTES)
    try:
        run([f"mkfs.{kind}", "-q", str(image)])
        run(["mount", "-o", "loop", str(image), str(target)])
    except ChildError:
        yield None
        return
    try:
        yield target
    finally:
        subprocess.run(["umount", str(target)], check=True)

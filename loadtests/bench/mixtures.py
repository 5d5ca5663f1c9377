"""Reads of a large file in pieces, beside small files: its speed after it was read whole."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

from loadtests import corpora
from loadtests.bench.origins import ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.cli import Lodefs
from loadtests.measure import drop_page_cache
from loadtests.reading import whole
from loadtests.results import Result

ROUNDS = 3
READ_BYTES = 4096
RANDOM_READS = 20_000
COMPLETE_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 300.0
Order = Callable[[Path], None]


def mixtures(scratch: Path) -> Result:
    """Random 4 KiB and sequential reads of a 1 GiB file that was read whole, after other reads of
    it and of 20,000 small files, against the same after nothing else was read."""
    result = Result("mount-mixtures")
    source = corpora.mixed()
    before: dict[str, Sequence[Order]] = {
        "nothing": (),
        "random reads of it, small files": (_random, _small),
        "half of the small files": (_half,),
        "small files, its end": (_small, _end),
    }
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source, REPO)
        alone: tuple[float, float] | None = None
        for name, orders in before.items():
            rates = _after(origin.lodefs, scratch, orders)
            alone = alone or rates
            asked = None if name == "nothing" else 0.95
            result.add(f"random 4 KiB after {name}", rates[0], "reads/s")
            result.add("against the file alone", rates[0] / alone[0], "x", at_least=asked)
            result.add(f"sequential after {name}", rates[1], "MB/s")
            result.add("against the file alone", rates[1] / alone[1], "x", at_least=asked)
    return result


def _after(lodefs: Lodefs, scratch: Path, orders: Sequence[Order]) -> tuple[float, float]:
    """Reads a second and MB/s of the large file, after other reads and one whole read."""
    with node(lodefs, scratch / "node") as proxy, mounted(lodefs, proxy, scratch / "mnt") as root:
        for order in orders:
            order(root)
        large = root / "large.bin"
        for _ in range(ROUNDS):
            whole(large, timeout_s=READ_TIMEOUT_S)
            drop_page_cache()
        sleep(COMPLETE_TIMEOUT_S / 10)
        rates = [_rate(large) for _ in range(ROUNDS)]
        speeds = []
        for _ in range(ROUNDS):
            _forget(large)
            speeds.append(whole(large, timeout_s=READ_TIMEOUT_S).mb_per_s)
        return median(rates), median(speeds)


def _random(root: Path) -> None:
    fd = os.open(root / "large.bin", os.O_RDONLY)
    source = random.Random(5)
    pages = os.fstat(fd).st_size // READ_BYTES
    for _ in range(200):
        os.pread(fd, READ_BYTES, source.randrange(pages) * READ_BYTES)
    os.close(fd)


def _half(root: Path) -> None:
    _small(root, 0.5)


def _small(root: Path, part: float = 1.0) -> None:
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    for folder in folders[: int(len(folders) * part)]:
        for path in folder.iterdir():
            path.read_bytes()


def _end(root: Path) -> None:
    with (root / "large.bin").open("rb") as file:
        file.seek(-(64 << 20), os.SEEK_END)
        while file.read(1 << 20):
            pass


def _rate(path: Path) -> float:
    """Random reads a second from a file of which the page cache has nothing."""
    _forget(path)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    source = random.Random(6)
    pages = os.fstat(fd).st_size // READ_BYTES
    buffer = mmap.mmap(-1, READ_BYTES)
    start = perf_counter()
    for _ in range(RANDOM_READS):
        os.preadv(fd, (buffer,), source.randrange(pages) * READ_BYTES)
    seconds = perf_counter() - start
    os.close(fd)
    return RANDOM_READS / seconds


def _forget(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)

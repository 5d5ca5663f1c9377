"""Writable mounts: a thousand of one commit, and reads of unchanged files.

The thousand share the mount of the node's mount service. Reads run in turns with the same of an
overlay of the kernel over the local disk, all from memory, and the fastest turn of each counts:
what others do on the machine only slows them down.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from loadtests.cli import Lodefs
from loadtests.errors import LoadtestError
from loadtests.measure import drop_page_cache
from loadtests.results import Result
from lodefs.api.writing import writable
from lodefs.chunkstore.format.names import parse_spec
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session
from tests.support.csi.real_driver import RealDriver, children

FORKS = 1000
LARGE_BYTES, SMALL_FILES, SMALL_BYTES = 256 << 20, 2000, 10_000
ROUNDS = 20
OURS, THEIRS = "lodefs", "overlay over ext4"


def writable_mounts(scratch: Path) -> Result:
    """What one of 1,000 costs in time, disk and processes; reads against the same overlay."""
    if os.geteuid() != 0:
        raise LoadtestError("writable: needs root")
    result = Result("writable")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    _write(scratch / "large", 1, LARGE_BYTES)
    _write(scratch / "small", SMALL_FILES, SMALL_BYTES)
    for repo in MEASURES:
        lodefs.run("push", scratch / repo, repo)
    (below := scratch / "m").mkdir()
    with lodefs.proxy(scratch / "proxy") as proxy, RealDriver(below, proxy.url) as driver:
        socket = driver.folder / "mounter.sock"
        session = Session(
            {
                "HOME": str(scratch / "home"),
                "LODEFS_CONFIG": os.devnull,
                "LODEFS_PROXY": proxy.url,
                writable.MOUNTER_SOCKET: str(socket),
            }
        )
        _forks(result, session, scratch, driver)
        _reads(result, session, scratch)
    return result


def _forks(result: Result, session: Session, scratch: Path, driver: RealDriver) -> None:
    with _mounted(session, scratch, "small"):
        before = _processes(driver)
        places, times_s, bytes_used = [], [], []
        try:
            for number in range(FORKS):
                begun_s = perf_counter()
                made = _mount(session, scratch, f"fork-{number}", "small")
                times_s.append(perf_counter() - begun_s)
                places.append(made.record.mountpoint)
                bytes_used.append(_disk_bytes(made.place.directory))
            result.add("processes of 1,000 more", _processes(driver) - before, "", at_most=0)
            if len(os.listdir(places[-1])) != SMALL_FILES:
                raise LoadtestError("writable: a mount does not show its files")
        finally:
            begun_s = perf_counter()
            for place in places:
                writable.unmount_writable(session, place, discard=True)
            took_s = (perf_counter() - begun_s) / max(len(places), 1)
    result.add("mount, p50", statistics.median(times_s) * 1e3, "ms", at_most=100)
    result.add("mount, p99", statistics.quantiles(times_s, n=100)[-1] * 1e3, "ms")
    result.add("unmount, mean", took_s * 1e3, "ms")
    result.add("disk of one", statistics.median(bytes_used) / 1024, "KiB", at_most=100)


def _reads(result: Result, session: Session, scratch: Path) -> None:
    for repo, measures in MEASURES.items():
        source = scratch / repo
        with _mounted(session, scratch, repo) as ours, _plain_overlay(scratch, source) as theirs:
            seen: dict[tuple[str, str], list[float]] = {}
            for number in range(ROUNDS + 2):
                if (
                    number == 1
                ):  # files lie in memory as they were written, or else as they are read
                    drop_page_cache()
                for name, root in ((OURS, ours), (THEIRS, theirs)):
                    for what, read in measures.items():
                        begun_s = perf_counter()
                        count = read(root)
                        if (
                            number > 1
                        ):  # the first fetches the data to the node, the next into memory
                            rate = count / (perf_counter() - begun_s)
                            seen.setdefault((what, name), []).append(rate)
        for what in measures:
            best = {name: max(seen[what, name]) for name in (OURS, THEIRS)}
            for name, rate in best.items():
                result.add(f"{what}, {name}", rate, "/s")
            result.ratio(f"{what}: {OURS}", best.pop(OURS), best, at_least=0.9)


def _sequential_mib(root: Path) -> int:
    buffer, count = bytearray(1 << 20), 0
    fd = os.open(root / "a", os.O_RDONLY)
    while os.readv(fd, [buffer]):
        count += 1
    os.close(fd)
    return count


def _random_reads(root: Path) -> int:
    offsets = random.Random(1).choices(range(0, LARGE_BYTES - 4096, 512), k=20_000)
    fd = os.open(root / "a", os.O_RDONLY)
    for offset in offsets:
        os.pread(fd, 4096, offset)
    os.close(fd)
    return len(offsets)


def _files(root: Path) -> int:
    for number in range(SMALL_FILES):
        fd = os.open(root / str(number), os.O_RDONLY)
        os.read(fd, 2 * SMALL_BYTES)
        os.close(fd)
    return SMALL_FILES


MEASURES: dict[str, dict[str, Callable[[Path], int]]] = {
    "large": {"MiB in order": _sequential_mib, "random 4 KiB": _random_reads},
    "small": {"files of 10 KB": _files},
}


def _mount(session: Session, scratch: Path, name: str, repo: str) -> writable.WritableMounted:
    (at := scratch / f"on-{name}").mkdir(exist_ok=True)
    requested = MountFile(spec=parse_spec(repo.encode()), directory=str(at))
    return writable.mount_writable(session, requested, upper=str(scratch / "uppers" / name))


@contextmanager
def _mounted(session: Session, scratch: Path, repo: str) -> Iterator[Path]:
    at = _mount(session, scratch, repo, repo).record.mountpoint
    try:
        yield Path(at)
    finally:
        writable.unmount_writable(session, at, discard=True)


@contextmanager
def _plain_overlay(scratch: Path, source: Path) -> Iterator[Path]:
    plain = scratch / f"plain-{source.name}"
    at, upper, work = (plain / name for name in ("mount", "upper", "work"))
    for directory in (at, upper, work):
        directory.mkdir(parents=True)
    options = f"lowerdir={source},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, at], check=True, timeout=60)
    try:
        yield at
    finally:
        subprocess.run(["umount", at], check=True, timeout=60)


def _write(source: Path, files: int, size_bytes: int) -> None:
    source.mkdir()
    for number in range(files):
        (source / (str(number) if files > 1 else "a")).write_bytes(os.urandom(size_bytes))


def _disk_bytes(place: Path) -> int:
    """The disk space of a directory, with its subdirectories."""
    return sum(path.lstat().st_blocks * 512 for path in (place, *place.rglob("*")))


def _processes(driver: RealDriver) -> int:
    """The mount service with all that it has started, and this process."""
    found, waiting = 1, [driver.mounters[-1].pid, os.getpid()]
    while waiting:
        more = children(waiting.pop())
        found += len(more)
        waiting += more
    return found

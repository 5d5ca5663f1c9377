"""Benchmark of cold reads from a mount that was just made, against the mounts of other programs."""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter

import psutil

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, detach, mounted, node
from loadtests.measure import drop_page_cache, read_compared, run
from loadtests.results import Result
from loadtests.services.rclone import RCLONE

ROUNDS = 3
FIRST_BYTES = 4 << 10
RANDOM_BYTES = 64 << 10
RANDOM_READS = 200
MOUNT_TIMEOUT_S = 60.0
PLAIN = "plain"
VOLUME, META = "juicefs", "meta.db"
BEFORE = "LODEFS_BEFORE"  # the program of an earlier version, for comparison
LODEFS, CACHED, JUICEFS = "lodefs", "mount-s3, cache", "juicefs"


@dataclass(frozen=True, slots=True)
class Side:
    """A program that mounts the file. ``mount`` makes a new mount in a directory and yields the
    file's path; the processes of the mount have that ``home``."""

    mount: Callable[[Path], AbstractContextManager[Path]]
    home: Callable[[Path], Path] = lambda folder: folder


@dataclass(slots=True)
class Readings:
    """The figures of each round of one side."""

    rate: list[float] = field(default_factory=list)  # MB/s
    cpu_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    random_rate: list[float] = field(default_factory=list)  # reads a second


def cold_peers(scratch: Path) -> Result:
    """1 GiB in order, the first 4 KiB, and 64 KiB at random, each on a mount that was just made."""
    result = Result("cold-peers")
    source = corpora.random_file()
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source.parent, REPO)
        origin.client.upload_file(str(source), origin.bucket, f"{PLAIN}/{source.name}")
        sides = _sides(origin, scratch, source)
        readings = {name: Readings() for name in sides}
        gets: list[float] = []
        for number in range(ROUNDS):
            gets.append(_two_gets_s(origin, f"{PLAIN}/{source.name}"))
            for at, (name, side) in enumerate(sides.items()):
                _read_round(side, scratch / f"mount-{number}-{at}", source, readings[name])
    _report(result, readings, source.stat().st_size / (1 << 30), statistics.median(gets))
    return result


def _sides(origin: Origin, scratch: Path, source: Path) -> dict[str, Side]:
    """lodefs and each of the others that is installed."""
    sides = {LODEFS: _lodefs(origin, source)}
    if program := os.environ.get(BEFORE):
        earlier = replace(
            origin, lodefs=replace(origin.lodefs, program=Path(program), home=scratch / "earlier")
        )
        earlier.lodefs.home.mkdir()
        sides["the version before"] = _lodefs(earlier, source)
    file = Path(PLAIN) / source.name
    keys = {"AWS_ACCESS_KEY_ID": origin.access_key, "AWS_SECRET_ACCESS_KEY": origin.secret_key}
    if shutil.which("mount-s3"):
        words = ["mount-s3", origin.bucket, "{target}", "--endpoint-url", origin.endpoint_url,
                 "--force-path-style", "--region", "us-east-1", "--read-only", "-f"]  # fmt: skip
        cached = [*words, "--cache", "{folder}/cache"]
        sides[CACHED] = Side(partial(_served, cached, keys, file))
        sides["mount-s3"] = Side(partial(_served, words, keys, file))
    if shutil.which("juicefs"):
        meta = f"sqlite3://{_juicefs_volume(origin, scratch, source, keys)}"
        words = ["juicefs", "mount", meta, "{target}", "--cache-dir", "{folder}/cache",
                 "--read-only", "--no-usage-report", "--no-syslog"]  # fmt: skip
        sides[JUICEFS] = Side(partial(_served, words, keys, Path(source.name)))
    remote = f":s3,provider=Ceph,env_auth=true,endpoint='{origin.endpoint_url}':{origin.bucket}"
    words = [RCLONE, "mount", remote, "{target}", "--vfs-cache-mode", "full", "--read-only",
             "--cache-dir", "{folder}/cache", "--config", os.devnull]  # fmt: skip
    sides["rclone"] = Side(partial(_served, words, keys, file))
    return sides


def _lodefs(origin: Origin, source: Path) -> Side:
    @contextmanager
    def mount(folder: Path) -> Iterator[Path]:
        with (
            node(origin.lodefs, folder / "node") as proxy,
            mounted(origin.lodefs, proxy, folder / "mnt") as target,
        ):
            yield target / source.name

    return Side(mount, lambda _folder: origin.lodefs.home)


def _juicefs_volume(origin: Origin, scratch: Path, source: Path, keys: Mapping[str, str]) -> Path:
    """Makes a volume in a bucket of its own, writes the file to it, and returns the path of its
    metadata."""
    meta = scratch / META
    origin.client.create_bucket(Bucket=VOLUME)
    run(["juicefs", "format", "--storage", "s3", "--bucket", f"{origin.endpoint_url}/{VOLUME}",
         "--trash-days", "0", f"sqlite3://{meta}", VOLUME],
        env={"ACCESS_KEY": origin.access_key, "SECRET_KEY": origin.secret_key})  # fmt: skip
    words = ["juicefs", "mount", f"sqlite3://{meta}", "{target}", "--no-usage-report",
             "--no-syslog", "--cache-dir", "{folder}/cache"]  # fmt: skip
    with _served(words, keys, Path(source.name), scratch / "filling") as path:
        shutil.copy(source, path)
    return meta


@contextmanager
def _served(words: list[str], keys: Mapping[str, str], file: Path, folder: Path) -> Iterator[Path]:
    """A mount that a program in the foreground serves; it is removed afterwards."""
    target = folder / "mnt"
    target.mkdir(parents=True)
    (folder / "cache").mkdir()
    command = [word.format(target=target, folder=folder) for word in words]
    env = {**os.environ, **keys, "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
        )
    try:
        ends_s = perf_counter() + MOUNT_TIMEOUT_S
        while not os.path.ismount(target):
            if process.poll() is not None or perf_counter() > ends_s:
                raise RuntimeError(f"{words[0]}: {(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield target / file
    finally:
        detach(target)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)  # it has data to upload, perhaps
        process.terminate()
        process.wait(MOUNT_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _read_round(side: Side, folder: Path, source: Path, readings: Readings) -> None:
    """Each kind of read on a mount of its own."""
    with side.mount(folder) as path:
        drop_page_cache()
        before = _cpu_s(side, folder)
        start = perf_counter()
        read_compared(path, source)
        readings.rate.append(source.stat().st_size / 1e6 / (perf_counter() - start))
        readings.cpu_s.append(_cpu_s(side, folder) - before)
    with side.mount(folder) as path:
        drop_page_cache()
        start = perf_counter()
        fd = os.open(path, os.O_RDONLY)
        try:
            os.pread(fd, FIRST_BYTES, 0)
            readings.first_s.append(perf_counter() - start)
            readings.random_rate.append(_random_rate(fd, source))
        finally:
            os.close(fd)


def _random_rate(fd: int, source: Path) -> float:
    dice = random.Random(0)
    size_bytes = source.stat().st_size - RANDOM_BYTES
    start = perf_counter()
    for _ in range(RANDOM_READS):
        os.pread(fd, RANDOM_BYTES, dice.randrange(0, size_bytes, FIRST_BYTES))
    return RANDOM_READS / (perf_counter() - start)


def _cpu_s(side: Side, folder: Path) -> float:
    """The processor seconds so far of all processes of a mount: those with its home directory, or
    with its directory in their arguments, since JuiceFS overwrites its environment."""
    total = 0.0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_named = str(folder) in " ".join(process.cmdline())
            if is_named or process.environ().get("HOME") == str(side.home(folder)):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def _two_gets_s(origin: Origin, key: str) -> float:
    """The seconds of two GETs of 64 KiB, one after the other: the median of several."""
    seconds = []
    for number in range(10):
        start = perf_counter()
        for part in range(2):
            first = (2 * number + part) * RANDOM_BYTES
            asked = f"bytes={first}-{first + RANDOM_BYTES - 1}"
            origin.client.get_object(Bucket=origin.bucket, Key=key, Range=asked)["Body"].read()
        seconds.append(perf_counter() - start)
    return statistics.median(seconds)


def _report(result: Result, sides: Mapping[str, Readings], gib: float, two_gets_s: float) -> None:
    median = statistics.median
    result.add("two GETs of 64 KiB by boto3", two_gets_s * 1e3, "ms")
    for name, one in sides.items():
        rates = ", ".join(f"{rate:.0f}" for rate in one.rate)
        result.notes.append(f"{name}: {rates} MB/s in turns")
        result.add(f"{name}: in order", median(one.rate), "MB/s")
        result.add(f"{name}: processor", median(one.cpu_s) / gib, "s/GiB")
        result.add(f"{name}: open and first 4 KiB", median(one.first_s) * 1e3, "ms")
        result.add(f"{name}: random 64 KiB", median(one.random_rate), "/s")
    ours = sides[LODEFS]
    result.add("processor seconds a GiB", median(ours.cpu_s) / gib, "s", at_most=2.6)
    first = median(ours.first_s) / two_gets_s
    result.add("first byte / two GETs", first, "x", at_most=1)
    for peer, least in (CACHED, 1.2), (JUICEFS, 1.0):
        if peer not in sides:
            result.notes.append(f"{peer} is not compared: its program is not installed")
            continue
        rate = median(ours.rate) / median(sides[peer].rate)
        result.add(f"in order / {peer}", rate, "x", at_least=least)
    if CACHED in sides:
        rate = median(ours.random_rate) / median(sides[CACHED].random_rate)
        result.add(f"random / {CACHED}", rate, "x", at_least=1)

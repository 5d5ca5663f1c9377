"""A soak test: half an hour of what nodes do for years, and what is left at the end.

A store on Ceph RGW, a cache that is smaller than the data, a mount whose readers compare every
byte, pushes and mounts of new versions meanwhile; in its first quarter the proxy is ended once and
killed once, and the mount's workers are killed once.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from loadtests import corpora
from loadtests.bench.origins import ceph_origin
from loadtests.bench.sides import detach
from loadtests.bench.survival import Node
from loadtests.cli import Lodefs
from loadtests.results import Result
from loadtests.verifying import EVERYTHING, Verified, verifying

MINUTES = 30.0
SETTLED_MINUTES = 5.0  # processes of this age should be at their final size
HARMS_END = 1 / 4  # of the time; later processes must be old enough at the end
LARGE_BYTES, SMALL_FILES = 128 << 20, 6_000
CACHE_SIZE = "160MiB"
READERS = 3
CHANGED_FILES = 50
EVERY_S = 30.0  # between two versions
SAMPLE_S = 5.0
STALL_S = 10.0  # limit for a read, restarts of the proxy included
IDLE_TIMEOUT_S = 60.0
FIXED, MOVING = "soak-fixed", "soak-moving"
WORK = re.compile(
    r"^(lodefs_\w*(?:in_flight|queued|queue|waiting|streams|joined)\w*)(\{.*\})? (\S+)$"
)


class Sample(NamedTuple):
    """The resources of the node's processes at one time."""

    at_s: float
    proxy_bytes: int
    mount_bytes: int
    proxy_files: int
    mount_files: int


@dataclass(slots=True)
class Soak:
    """The events of the run."""

    samples: list[Sample] = field(default_factory=list)
    versions: int = 0
    wrong: int = 0
    harmed_s: float = 0.0  # when the last process was killed


def soak(scratch: Path, minutes: float = MINUTES) -> Result:
    """Runs the whole test for ``minutes``."""
    result, run = Result("soak"), Soak()
    source = corpora.mixed(LARGE_BYTES, SMALL_FILES)
    with ceph_origin(scratch) as origin:
        lodefs = origin.lodefs
        lodefs.run("push", source, FIXED)
        target = scratch / "mnt"
        target.mkdir()
        node = Node(lodefs, scratch / "node", target, "--cache-size", CACHE_SIZE)
        try:
            lodefs.run("--proxy", node.proxy.url, "mount", FIXED, target)
            with verifying(EVERYTHING, target, source, READERS) as seen:
                _live(node, lodefs, scratch, minutes * 60, run)
            _report(result, run, seen, node)
        finally:
            detach(target)
            node.proxy.stop()
    return result


def _live(node: Node, lodefs: Lodefs, scratch: Path, seconds: float, run: Soak) -> None:
    """Pushes, mounts and restarts until the time is over, and samples the processes meanwhile."""
    begin_s = time.monotonic()
    harms: list[tuple[float, Callable[[], None]]] = [
        (seconds * HARMS_END / 3, node.restart_proxy),
        (seconds * HARMS_END * 2 / 3, node.kill_workers),
        (seconds * HARMS_END, node.kill_proxy),
    ]
    versions = _Versions(lodefs, scratch)
    next_version_s = 0.0
    while (at_s := time.monotonic() - begin_s) < seconds:
        if harms and at_s > harms[0][0]:
            harms.pop(0)[1]()
            run.harmed_s = at_s
        if at_s >= next_version_s:
            run.wrong += versions.push_and_compare(node.proxy.url)
            run.versions += 1
            next_version_s = at_s + EVERY_S
        run.samples.append(_sample(node, time.monotonic() - begin_s))
        time.sleep(SAMPLE_S)


class _Versions:
    """Changes, pushes, mounts and compares a dataset, again and again."""

    def __init__(self, lodefs: Lodefs, scratch: Path) -> None:
        self._lodefs = lodefs
        self._source, self._target = scratch / "moving", scratch / "moving-mnt"
        self._source.mkdir()
        self._target.mkdir()
        self._random = random.Random(6)

    def push_and_compare(self, proxy: str) -> int:
        """The number of files of a new version that differ from what was pushed."""
        changed = {
            f"{self._random.randrange(4 * CHANGED_FILES)}": self._random.randbytes(
                self._random.randrange(100, 200_000)
            )
            for _ in range(CHANGED_FILES)
        }
        for name, content in changed.items():
            (self._source / name).write_bytes(content)
        self._lodefs.run("push", self._source, MOVING)
        commit = self._lodefs.commits(MOVING)[0]
        self._lodefs.run("--proxy", proxy, "mount", f"{MOVING}@{commit}", self._target)
        try:
            return sum((self._target / name).read_bytes() != changed[name] for name in changed)
        finally:
            self._lodefs.run("unmount", self._target)


def _sample(node: Node, at_s: float) -> Sample:
    proxy = _of(psutil.Process(node.proxy.process.pid))
    mount = _of(psutil.Process(node.supervisor()))
    return Sample(at_s, proxy[0], mount[0], proxy[1], mount[1])


def _of(root: psutil.Process) -> tuple[int, int]:
    """Memory (PSS) and descriptors of a process and its children."""
    size_bytes = files = 0
    for process in (root, *root.children(recursive=True)):
        try:
            size_bytes += process.memory_full_info().pss
            files += process.num_fds()
        except psutil.NoSuchProcess:
            continue
    return size_bytes, files


def _report(result: Result, run: Soak, seen: Verified, node: Node) -> None:
    result.add("reads", seen.operations)
    result.add("bytes compared", seen.size_bytes / 2**30, "GiB")
    result.add("errors", seen.errors, at_most=0)
    result.add("wrong bytes", seen.wrong + run.wrong, at_most=0)
    result.add("longest stall", max(seen.longest_s.values(), default=0.0), "s", at_most=STALL_S)
    result.add("versions pushed, mounted and compared", run.versions, at_least=1)
    result.add("bytes evicted", _evicted_bytes(node) / 2**20, "MiB", at_least=1)
    left = _work_left(node)
    result.add("gauges of work above zero", len(left), at_most=0)
    result.notes += [f"left over: {line}" for line in left]
    result.notes += seen.told
    settled_s = run.harmed_s + SETTLED_MINUTES * 60
    settled = next((one for one in run.samples if one.at_s >= settled_s), None)
    if settled is None:
        result.notes.append("too short to say whether memory stays")
        return
    end = run.samples[-1]
    mib = 1 << 20
    for what, before, now in (
        ("proxy", settled.proxy_bytes, end.proxy_bytes),
        ("mount", settled.mount_bytes, end.mount_bytes),
    ):
        result.add(f"{what}: memory 5 minutes after the last kill", before / mib, "MiB")
        result.add(f"{what}: memory at the end / then", now / before, "x", at_most=1.05)
    result.add("proxy: descriptors more than then", end.proxy_files - settled.proxy_files)
    result.add("mount: descriptors more than then", end.mount_files - settled.mount_files)


def _work_left(node: Node) -> list[str]:
    """Gauges of work that are not zero although nobody reads."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while True:
        found = [WORK.match(line) for line in node.proxy.metrics().splitlines()]
        left = [
            match[0]
            for match in found
            # the scrape that asks is a stream itself, as is the one connection of each mount
            if match and not match[1].endswith(("_total", "_seconds")) and float(match[3]) > 1
        ]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(1)


def _evicted_bytes(node: Node) -> float:
    """The value since its last restart."""
    lines = node.proxy.metrics().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("lodefs_cache_evicted_bytes_total")
    )

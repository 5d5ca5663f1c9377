"""Benchmark of a cold sequential read: what each process of a node spends on it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import psutil

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.cli import Lodefs, Proxy
from loadtests.measure import MemoryWatch, drop_page_cache, read_compared
from loadtests.results import Result

ROUNDS = 3
BEFORE = "LODEFS_BEFORE"  # the program of an earlier version, for comparison
SETTING = "[serve]\ndata_processes = {}\n"
MAIN, DATA, MOUNT = "main process", "data processes", "mount"
MEMORY_BYTES_MAX = 400 << 20


@dataclass(frozen=True, slots=True)
class Reading:
    """One cold read: seconds, and processor seconds by kind of process."""

    seconds: float
    cpu_s: Mapping[str, float]
    memory_bytes: int

    @property
    def node_cpu_s(self) -> float:
        """The sum for the node's processes."""
        return sum(self.cpu_s.values())


def cold_sequential(scratch: Path) -> Result:
    """1 GiB read from the beginning to the end, nothing cached, S3 server on loopback: with data
    processes, without, and with the version before, in turns."""
    result = Result("cold-sequential")
    source = corpora.random_file()
    readings: dict[str, list[Reading]] = {}
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source.parent, REPO)
        for number in range(ROUNDS):
            for name, lodefs in _versions(origin).items():
                folder = scratch / f"node-{number}-{len(name)}"
                readings.setdefault(name, []).append(_read_cold(lodefs, folder, source))
    for name, of_version in readings.items():
        _report(result, name, of_version, source.stat().st_size)
    _compare(result, readings)
    return result


def _versions(origin: Origin) -> dict[str, Lodefs]:
    """The sides of the comparison: how each calls lodefs."""
    lodefs = origin.lodefs
    sides = {"data processes": _with(lodefs, 1), "in the main process": _with(lodefs, 0)}
    if program := os.environ.get(BEFORE):
        sides["the version before"] = replace(lodefs, program=Path(program))
    return sides


def _with(lodefs: Lodefs, data_processes: int) -> Lodefs:
    """lodefs with this many data processes; its settings lie in a home directory of their own."""
    home = lodefs.home.with_name(f"home-{data_processes}")
    home.mkdir(exist_ok=True)
    (home / "lodefs.toml").write_text(SETTING.format(data_processes))
    return replace(lodefs, home=home)


def _read_cold(lodefs: Lodefs, folder: Path, source: Path) -> Reading:
    with (
        node(lodefs, folder) as proxy,
        mounted(lodefs, proxy, folder / "mnt") as target,
    ):
        drop_page_cache()
        memory = MemoryWatch(proxy.process.pid)
        before = _cpu_s(lodefs, proxy)
        start = perf_counter()
        read_compared(target / source.name, source)
        seconds = perf_counter() - start
        after = _cpu_s(lodefs, proxy)
        return Reading(seconds, {kind: after[kind] - before[kind] for kind in after}, memory.stop())


def _cpu_s(lodefs: Lodefs, proxy: Proxy) -> dict[str, float]:
    """Processor seconds so far of the proxy, of its children, and of all other processes that
    have the home directory of this lodefs: those of the mount."""
    main = psutil.Process(proxy.process.pid)
    children = {child.pid for child in main.children(recursive=True)}
    found = dict.fromkeys((MAIN, DATA, MOUNT), 0.0)
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") != str(lodefs.home):
                continue
            times = process.cpu_times()
        except psutil.Error:
            continue
        own = MAIN if process.pid == main.pid else DATA if process.pid in children else MOUNT
        found[own] += times.user + times.system
    return found


def _report(result: Result, name: str, readings: list[Reading], size_bytes: int) -> None:
    gib = size_bytes / (1 << 30)
    speed = size_bytes / 1e6 / statistics.median(one.seconds for one in readings)
    result.add(f"{name}: rate", speed, "MB/s")
    for kind in (MAIN, DATA, MOUNT):
        cpu_s = statistics.median(one.cpu_s[kind] for one in readings) / gib
        result.add(f"{name}: processor, {kind}", cpu_s, "s/GiB")
    total = statistics.median(one.node_cpu_s for one in readings) / gib
    result.add(f"{name}: processor, all", total, "s/GiB")
    memory = max(one.memory_bytes for one in readings)
    result.add(f"{name}: memory of the proxy's processes", memory / (1 << 20), "MiB")


def _compare(result: Result, readings: dict[str, list[Reading]]) -> None:
    ours = readings["data processes"]
    main_s = statistics.median(one.cpu_s[MAIN] for one in ours)
    result.add("main process, processor a GiB", main_s, "s", at_most=0.25)
    memory = max(one.memory_bytes for one in ours) / (1 << 20)
    result.add("memory of the proxy's processes", memory, "MiB", at_most=400)
    before = readings.get("the version before")
    if before is None:
        result.notes.append(f"{BEFORE}=PROGRAM adds another version's lodefs to compare with")
        return
    seconds = [statistics.median(one.seconds for one in side) for side in (before, ours)]
    cpu_s = [statistics.median(one.node_cpu_s for one in side) for side in (ours, before)]
    result.add("rate / the version before", seconds[0] / seconds[1], "x", at_least=1.4)
    result.add("processor / the version before", cpu_s[0] / cpu_s[1], "x", at_most=0.65)

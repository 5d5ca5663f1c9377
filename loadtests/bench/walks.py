"""Metadata walks with stat: in the comparison of mounts, and alone over 1,000,000 files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import unquote

import psutil

from loadtests import corpora
from loadtests.bench import mountmeasures
from loadtests.bench.mountmeasures import AGAIN, WARM
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, Side, mounted, node
from loadtests.cli import Proxy
from loadtests.comparison import Comparison
from loadtests.measure import drop_page_cache
from loadtests.reading import walk
from loadtests.results import Result

WALK_TIMEOUT_S = 300.0
ROUNDS = 3
MIB = 1 << 20


def see(result: Comparison, side: Side, state: str) -> None:
    """One walk over the many small files."""
    reading = walk(side.root / "files", timeout_s=WALK_TIMEOUT_S)
    result.see(mountmeasures.walk(state), side.name, reading.per_s)


def warm(result: Comparison, sides: Sequence[Side]) -> None:
    """On a node that knows the tree: after the kernel forgot it, and again at once."""
    for side in sides:
        drop_page_cache()
        see(result, side, WARM)
        see(result, side, AGAIN)


def million(scratch: Path) -> Result:
    """1,000,000 files in 1,000 directories: how soon mounted, how fast walked, in what memory."""
    result = Result("mount-walk")
    source = corpora.million()
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source, REPO)
        with node(origin, scratch / "node") as proxy:
            target = scratch / "mnt"
            unknown_s = _first_mount(result, origin, proxy, target)
            known = [_mount_s(origin, proxy, target) for _ in range(ROUNDS)]
            result.add("ready, snapshot unknown to the node", unknown_s, "s", at_most=1)
            result.add("ready, snapshot known", median(known), "s", at_most=0.1)
            result.add("of that, the start of the command", _start_s(origin), "s")
    drop_page_cache()
    for state in ("first time", "again"):
        reading = walk(source, timeout_s=WALK_TIMEOUT_S)
        result.add(f"walk of the local disk, {state}", reading.per_s, "entries/s")
    return result


def _first_mount(result: Result, origin: Origin, proxy: Proxy, target: Path) -> float:
    """The first mount on the node, its walks and its memory; the seconds until it was ready."""
    start = perf_counter()
    with mounted(origin, proxy, target):
        ready_s = perf_counter() - start
        for state, asked in (("first time on the node", 60_000), ("again", 150_000)):
            reading = walk(target, timeout_s=WALK_TIMEOUT_S)
            if reading.count != 1_001_000:
                raise RuntimeError(f"the walk saw {reading.count:,} entries, not 1,001,000")
            result.add(f"walk, {state}", reading.per_s, "entries/s", at_least=asked)
        processes = mount_processes(origin, target)
        memory = sum(process.memory_full_info().pss for process in processes)
        what = f"memory of {len(processes)} mount processes"
        result.add(what, memory / MIB, "MiB", at_most=150)
        result.add("memory of the proxy", proxy.memory_bytes() / MIB, "MiB")
    return ready_s


def _mount_s(origin: Origin, proxy: Proxy, target: Path) -> float:
    """Seconds until ``lodefs mount`` returned."""
    start = perf_counter()
    with mounted(origin, proxy, target):
        return perf_counter() - start


def _start_s(origin: Origin) -> float:
    """Seconds that the command line takes when it has nothing to do."""
    return median(origin.lodefs.run("version").seconds for _ in range(ROUNDS))


def mount_processes(origin: Origin, target: Path) -> list[psutil.Process]:
    """The processes that serve the mount at ``target``: its supervisor and all its children."""
    for line in origin.lodefs.run("mounts", "--json").output.splitlines():
        mount = json.loads(line)
        if unquote(mount["mountpoint"]) == str(target) and mount["pid"]:
            supervisor = psutil.Process(mount["pid"])
            return [supervisor, *supervisor.children(recursive=True)]
    raise RuntimeError(f"lodefs mounts does not tell of {target}")

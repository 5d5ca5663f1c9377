"""Metadata walks with stat: in the comparison of mounts, and alone over 1,000,000 files."""

from __future__ import annotations

import json
import subprocess
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
from loadtests.cli import Lodefs, Proxy
from loadtests.comparison import Comparison
from loadtests.measure import drop_page_cache
from loadtests.reading import walk
from loadtests.results import Result

WALK_TIMEOUT_S = 300.0
ROUNDS = 3
DIRECTORIES = 5000
MIB = 1 << 20


def see(result: Comparison, side: Side, state: str) -> None:
    """One walk over the many small files."""
    reading = walk(side.root / "files", timeout_s=WALK_TIMEOUT_S)
    result.see(mountmeasures.walk(state), side.name, reading.per_s)


def warm(result: Comparison, sides: Sequence[Side]) -> None:
    """Walks on a node that knows the tree: after the kernel forgot it, and again at once."""
    for side in sides:
        drop_page_cache()
        see(result, side, WARM)
        see(result, side, AGAIN)


def million(scratch: Path) -> Result:
    """1,000,000 files in 1,000 directories: time to mount, speed of walks, memory."""
    result = Result("mount-walk")
    source = corpora.million()
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source, REPO)
        with node(origin.lodefs, scratch / "node") as proxy:
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


def directories(scratch: Path) -> Result:
    """find(1) over 5,000 directories that the node has not seen, in a store in a directory and on
    S3; ls -lR, and what the proxy was asked for."""
    result = Result("mount-directories")
    source = corpora.directories()
    local = Lodefs(str(scratch / "store"), scratch / "home", {})
    local.run("init", local.store)
    local.run("push", source, REPO)
    _walk_cold(result, local, scratch, "store in a directory", ("find",), find_s_max=1.0)
    _walk_cold(result, local, scratch, "store in a directory", ("ls", "-lR"))
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source, REPO)
        _walk_cold(result, origin.lodefs, scratch, "Ceph RGW", ("find",), find_s_max=1.5)
    _walk_local(result, source)
    return result


def _walk_cold(
    result: Result,
    lodefs: Lodefs,
    scratch: Path,
    store: str,
    command: Sequence[str],
    *,
    find_s_max: float | None = None,
) -> None:
    seconds, cpu_s, requests = [], [], []
    for _ in range(ROUNDS):
        with node(lodefs, scratch / "node") as proxy, mounted(lodefs, proxy, scratch / "mnt"):
            before_s = proxy.cpu_s()
            seconds.append(_command_s(command, scratch / "mnt"))
            cpu_s.append(proxy.cpu_s() - before_s)
            requests.append(proxy.requests("children", "node", "lookup"))
    text = f"{' '.join(command)}, {store}"
    result.add(text, median(seconds), "s", at_most=find_s_max)
    result.add(f"{text}: processor of the proxy", median(cpu_s), "s")
    result.add(f"{text}: requests a directory", median(requests) / DIRECTORIES, "", at_most=0.1)


def _walk_local(result: Result, source: Path) -> None:
    drop_page_cache()
    result.add("find, the local disk", _command_s(("find",), source), "s")


def _command_s(command: Sequence[str], folder: Path) -> float:
    start = perf_counter()
    subprocess.run([*command, folder], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def _first_mount(result: Result, origin: Origin, proxy: Proxy, target: Path) -> float:
    """The first mount on the node, its walks and memory. Returns the seconds until it was ready."""
    start = perf_counter()
    with mounted(origin.lodefs, proxy, target):
        ready_s = perf_counter() - start
        for state, asked in (("first time on the node", 60_000), ("again", 150_000)):
            reading = walk(target, timeout_s=WALK_TIMEOUT_S)
            if reading.count != 1_001_000:
                raise RuntimeError(f"the walk saw {reading.count:,} entries, not 1,001,000")
            result.add(f"walk, {state}", reading.per_s, "entries/s", at_least=asked)
        processes = mount_processes(origin.lodefs, target)
        memory = sum(process.memory_full_info().pss for process in processes)
        what = f"memory of {len(processes)} mount processes"
        result.add(what, memory / MIB, "MiB", at_most=150)
        result.add("memory of the proxy", proxy.memory_bytes() / MIB, "MiB")
    return ready_s


def _mount_s(origin: Origin, proxy: Proxy, target: Path) -> float:
    """Seconds until ``lodefs mount`` returned."""
    start = perf_counter()
    with mounted(origin.lodefs, proxy, target):
        return perf_counter() - start


def _start_s(origin: Origin) -> float:
    """Seconds that the command line takes without any work."""
    return median(origin.lodefs.run("version").seconds for _ in range(ROUNDS))


def mount_processes(lodefs: Lodefs, target: Path) -> list[psutil.Process]:
    """The processes that serve the mount at ``target``: its supervisor and all its children."""
    for line in lodefs.run("mounts", "--json").output.splitlines():
        mount = json.loads(line)
        if unquote(mount["mountpoint"]) == str(target) and mount["pid"]:
            supervisor = psutil.Process(mount["pid"])
            return [supervisor, *supervisor.children(recursive=True)]
    raise RuntimeError(f"lodefs mounts does not tell of {target}")

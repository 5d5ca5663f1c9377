"""``./run bench csi``: volumes of Kubernetes, published by the real driver, without a kubelet.

`lodefs serve` with a store in a directory, `lodefs mounter`, `lodefs csi`, and a client that calls
it as a kubelet does. Beside it: `mount --bind` of mount(8), which is what a volume is in the end.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import psutil

from loadtests.cli import Lodefs
from loadtests.errors import LoadtestError
from loadtests.measure import load_note
from loadtests.results import Result
from tests.support.csi.real_driver import RealDriver

REPO = "bench/volumes"
SNAPSHOTS, VOLUMES, AT_ONCE, PODS_READING = 10, 100, 10, 50
RUNS = 50
PUBLISH_S, MANY_S, DRIVER_MIB = 0.15, 2.0, 100
MIB = 1 << 20


def volumes(scratch: Path) -> Result:
    """Publishes a known snapshot, many volumes at once, and reads while the driver is killed."""
    if os.geteuid() != 0:
        raise LoadtestError("csi: needs root, which mounts")
    result = Result("csi")
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    commits = _pushed(lodefs, scratch / "data")
    (scratch / "n").mkdir()
    with (
        lodefs.proxy(scratch / "p") as proxy,
        RealDriver(scratch / "n", proxy.url) as node,
    ):
        _known(result, node, commits[0])
        _many(result, node, commits)
        result.add("driver, 100 volumes", _memory_mib(node.driver.pid), "MiB", at_most=DRIVER_MIB)
        service = node.mounters[0].pid
        result.add("mount service, its helper", _memory_mib(service, all_of_it=True), "MiB")
        _killed(result, node)
    result.notes.append(f"{load_note()}; {os.cpu_count()} processors")
    return result


def _pushed(lodefs: Lodefs, folder: Path) -> list[str]:
    """Snapshots of one repository, by their commits."""
    folder.mkdir()
    lodefs.run("init", lodefs.store)
    for number in range(SNAPSHOTS):
        (folder / "number").write_text(str(number))
        (folder / f"{number}.bin").write_bytes(os.urandom(100_000))
        lodefs.run("push", folder, REPO)
    return lodefs.commits(REPO)


def _known(result: Result, node: RealDriver, commit: str) -> None:
    """Publishes one volume after the other, of a mounted snapshot."""
    context = {"repo": REPO, "commit": commit}
    first_s = _timed(lambda: node.kubelet.publish("first", node.target("first"), context))
    ours, bind = [], []
    for number in range(RUNS):
        target = node.target(f"k{number}")
        ours.append(_timed(lambda t=target: node.kubelet.publish(t.name, t, context)))
        node.kubelet.unpublish(target.name, target)
        target.mkdir()
        words = ["mount", "--bind", node.target("first"), target]
        bind.append(_timed(lambda w=words: subprocess.run(w, check=True)))
        subprocess.run(["umount", target], check=True)
        target.rmdir()
    node.kubelet.unpublish("first", node.target("first"))
    median_s = statistics.median(ours)
    result.add("NodePublishVolume, snapshot new to the node", first_s, "s")
    result.add("NodePublishVolume, snapshot known: p50", median_s, "s", at_most=PUBLISH_S)
    result.add("mount --bind by mount(8): p50", statistics.median(bind), "s")
    result.add("NodePublishVolume / mount --bind", median_s / statistics.median(bind), "x")


def _many(result: Result, node: RealDriver, commits: list[str]) -> None:
    """Publishes a hundred volumes of ten snapshots, ten at a time."""

    def publish(number: int) -> float:
        target = node.target(f"v{number}")
        context = {"repo": REPO, "commit": commits[number % SNAPSHOTS]}
        return _timed(lambda: node.kubelet.publish(target.name, target, context))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        took = sorted(pool.map(publish, range(VOLUMES)))
    what = f"{VOLUMES} volumes of {SNAPSHOTS} snapshots, {AT_ONCE} at a time"
    result.add(f"{what}: p50", statistics.median(took), "s")
    result.add(f"{what}: p99", took[-2], "s", at_most=MANY_S)
    result.add("FUSE mounts for them", len(node.fuse_mounts()), at_most=SNAPSHOTS)
    wrong = [n for n in range(VOLUMES) if not (node.target(f"v{n}") / "number").is_file()]
    result.add("volumes that cannot be read", len(wrong), at_most=0)


def _killed(result: Result, node: RealDriver) -> None:
    """Kills driver and mount service with SIGKILL while volumes are read."""
    counts = {"reads": 0, "failed": 0}
    with _reading(node, counts):
        for restart in (node.restart_driver, node.restart_mounter) * 3:
            restart()
            stats = node.kubelet.stats("v0", node.target("v0"))
            counts["failed"] += stats.volume_condition.abnormal
    result.add(f"reads of {PODS_READING} volumes during 6 times kill -9", counts["reads"])
    result.add("reads that failed, calls that were wrong", counts["failed"], at_most=0)


@contextmanager
def _reading(node: RealDriver, counts: dict[str, int]) -> Iterator[None]:
    end = threading.Event()

    def read() -> None:
        while not end.is_set():
            for number in range(PODS_READING):
                path = node.target(f"v{number}") / f"{SNAPSHOTS - 1 - number % SNAPSHOTS}.bin"
                try:
                    counts["failed"] += len(path.read_bytes()) != 100_000
                except OSError:
                    counts["failed"] += 1
                counts["reads"] += 1

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def _memory_mib(pid: int, *, all_of_it: bool = False) -> float:
    """Proportional set size of a process and the processes below it."""
    process = psutil.Process(pid)
    processes = [process, *(process.children() if all_of_it else [])]
    return sum(int(one.memory_full_info().pss) for one in processes) / MIB

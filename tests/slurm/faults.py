"""What happens to a job that reads. Each is a context, which mends what can be mended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from loadtests.slurm import configs
from loadtests.slurm.cluster import Cluster

Fault = Callable[[Cluster], AbstractContextManager[None]]


@contextmanager
def nothing(_cluster: Cluster) -> Iterator[None]:
    """A job that goes on."""
    yield


@contextmanager
def workers_killed(cluster: Cluster) -> Iterator[None]:
    """Those of all mounts; their supervisors start others."""
    for name in configs.NODES:
        _kill(one.pid for one in cluster.node(name).mount_processes()[1])
    yield


@contextmanager
def mounts_killed(cluster: Cluster) -> Iterator[None]:
    """All processes of all mounts."""
    for name in configs.NODES:
        supervisors, workers = cluster.node(name).mount_processes()
        _kill(one.pid for one in (*supervisors, *workers))
    yield


@contextmanager
def proxies_killed(cluster: Cluster) -> Iterator[None]:
    """Of all nodes; they are started again."""
    _signal_all(cluster, "proxy", signal.SIGKILL)
    yield


@contextmanager
def proxies_stopped(cluster: Cluster) -> Iterator[None]:
    """They answer nobody."""
    _signal_all(cluster, "proxy", signal.SIGSTOP)
    try:
        yield
    finally:
        _signal_all(cluster, "proxy", signal.SIGCONT)


@contextmanager
def services_killed(cluster: Cluster) -> Iterator[None]:
    """The mount services; they are started again."""
    _signal_all(cluster, "mounter", signal.SIGKILL)
    yield


@contextmanager
def slurmds_killed(cluster: Cluster) -> Iterator[None]:
    """Slurm's own processes of the nodes; they are started again."""
    before = [cluster.pid_of(f"slurmd-{name}") for name in configs.NODES]
    _signal_all(cluster, "slurmd", signal.SIGKILL)
    cluster.until(
        lambda: (
            not {*before} & {cluster.pid_of(f"slurmd-{name}") for name in configs.NODES}
            and "reg" not in cluster.output("sinfo", "-h", "-o", "%T")
        ),
        "other slurmds",
    )
    yield


@contextmanager
def all_killed(cluster: Cluster) -> Iterator[None]:
    """Mounts, mount services and proxies, of all nodes."""
    with mounts_killed(cluster), services_killed(cluster), proxies_killed(cluster):
        yield


@contextmanager
def store_away(cluster: Cluster) -> Iterator[None]:
    """The store is not there."""
    store, away = cluster.folder / "store", cluster.folder / "away"
    store.rename(away)
    try:
        yield
    finally:
        away.rename(store)


@contextmanager
def run_full(cluster: Cluster, name: str, left_kib: int = 0) -> Iterator[None]:
    """A node's /run, but for so much. What mounts have left there goes first: a prolog would make
    room with it."""
    fill = configs.RUN / "fill"
    size = ("mount", "-o")
    left_over = " ".join(f"{configs.RUN}/figures*/*.{kind}" for kind in ("jobs", "mount"))
    steps = f"rm -f {left_over}; dd if=/dev/zero of={fill} bs=4k; truncate -s -{left_kib}K {fill}"
    cluster.output(*size, "remount,size=16m", configs.RUN, user="root", node=name)
    try:
        cluster.output("sh", "-c", steps, user="root", node=name)
        yield
    finally:
        cluster.output("rm", "-f", fill, user="root", node=name)
        cluster.output(*size, "remount,size=50%", configs.RUN, user="root", node=name)


def _signal_all(cluster: Cluster, kind: str, number: signal.Signals) -> None:
    for name in configs.NODES:
        cluster.signal(f"{kind}-{name}", number)


def _kill(pids: Iterator[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

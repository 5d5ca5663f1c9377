"""A cluster of three nodes with mounts, and a Prometheus that scrapes it each second."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loadtests.cluster import dataset
from loadtests.cluster.cluster import AS_IT_IS, Cluster, Site
from loadtests.cluster.dataset import Dataset, Group
from loadtests.cluster.network import Network
from loadtests.cluster.node import NUMBER_FIRST, Node
from loadtests.cluster.origin import Origin
from loadtests.cluster.scenario import Changes, Scenario, parse
from loadtests.dashboards import shortened
from loadtests.errors import LoadtestError
from loadtests.services.prometheus import Prometheus, prometheus
from tests.support.chunkstore.certificates import certificate as write_certificate
from tests.support.chunkstore.child_process import Child, run

RULES = Path(__file__).parents[2] / "grafana" / "rules"
PORT = 7440
WATCHER = 3  # the end of its address
MIB = 1 << 20
GROUPS = (
    Group("warm", 6, 8 * MIB),
    Group("small", 1000, 16 << 10),
    *(Group(f"cold{number}", 8, 4 * MIB) for number in range(6)),
)
CERTIFICATE = "tls.pem"
SMALL_DISK = "256m"  # of node 0's cache, which leaves 128 MiB of it free: less than the data
TLS_NODE, SMALL_NODE = 1, 2
SCENARIO = """
title = "dashboards and alerts"
[[dataset]]
name = "warm"
files = 1
size = 1
[reading]
pattern = "everything"
via = "mount"
[nodes]
count = 3
[nodes.serve]
allow_anonymous = true
price_per_1000_gets = 0.0004
price_per_gb = 0.09
[nodes.serve_of.0]
cache_size_bytes_max = "1GiB"
[nodes.serve_of.2]
cache_size_bytes_max = "64MiB"
"""


@dataclass(slots=True)
class Watched:
    """The running cluster. ``readers``: programs that read, and that end with it."""

    cluster: Cluster
    origin: Origin
    data: Dataset
    certificate: Path
    prometheus: Prometheus
    readers: list[Child] = field(default_factory=list)

    def node(self, number: int) -> Node:
        """A node by its number, alive or dead."""
        return self.cluster.nodes[number]

    def read(self, number: int, groups: Sequence[str], *, forever: bool = False) -> Child:
        """Starts a program that reads files of a node's mount past its page cache."""
        folders = " ".join(f'"{self.node(number).mountpoint / name}"' for name in groups)
        once = f"find {folders} -type f | xargs -n 8 -I@ dd if=@ of=/dev/null bs=1M iflag=direct"
        script = f"while :; do {once}; done" if forever else once
        reader = Child(["sh", "-c", f"{script} 2>/dev/null"])
        self.readers.append(reader)
        return reader

    def send(self, number: int, what: signal.Signals) -> None:
        """Sends a signal to a node's proxy."""
        os.kill(self._proxy(number).pid, what)

    def kill_data_processes(self, number: int) -> None:
        """The processes that a node's proxy has started."""
        for child in self._proxy(number).children():
            child.kill()

    def _proxy(self, number: int) -> psutil.Process:
        child = self.node(number).process
        if child is None:
            raise LoadtestError(f"node {number} does not run")
        return psutil.Process(child.pid)


@contextmanager
def watched(scratch: Path, server: str) -> Iterator[Watched]:
    """A ready cluster within the block; everything is removed afterwards."""
    scenario = parse(SCENARIO, Changes())
    with ExitStack() as stack:
        network = stack.enter_context(Network.made())
        origin = stack.enter_context(Origin.started(network, scratch / "s3", server))
        data = dataset.write(scratch / "data", GROUPS)
        origin.push(data)
        numbers = range(scenario.nodes.count)
        hosts = [network.add(f"n{number}", NUMBER_FIRST + number) for number in numbers]
        watcher = network.add("watch", WATCHER)
        small = stack.enter_context(_small_disk(scratch / "disk"))
        certificate = scratch / "tls"
        certificate.mkdir()
        certify(certificate, days=365)
        more = {number: {"listen": f"{host.address}:{PORT}"} for number, host in enumerate(hosts)}
        more[0]["cache_dir"] = str(small)
        more[TLS_NODE] |= {
            "tls_cert_file": str(certificate / CERTIFICATE),
            "tls_key_file": str(certificate / CERTIFICATE),
        }
        site = Site(network, origin, hosts, data, scratch)
        cluster = stack.enter_context(Cluster(site, _with(scenario, more), AS_IT_IS).running())
        folder = scratch / "prometheus"
        folder.mkdir()
        targets = {
            f"node{number}": f"{'https' if number == TLS_NODE else 'http'}://{host.address}:{PORT}"
            for number, host in enumerate(hosts)
        }
        written = {path.name: path.read_text() for path in RULES.glob("[ar]*.yaml")}
        with watcher.entered():
            server_of_metrics = stack.enter_context(
                prometheus(folder, shortened.config(folder, targets, written))
            )
        made = Watched(cluster, origin, data, certificate, server_of_metrics)
        stack.callback(lambda: [reader.kill() for reader in made.readers])
        stack.enter_context(watcher.entered())  # this thread asks Prometheus
        yield made


def certify(folder: Path, days: float) -> None:
    """A certificate with its key, in the place that a node's settings name. Nobody checks what it
    is for."""
    made = write_certificate(folder.parent, days=days)
    made.chmod(0o600)
    made.rename(folder / CERTIFICATE)


def _with(scenario: Scenario, more: dict[int, dict[str, str]]) -> Scenario:
    """The scenario with further settings for each node."""
    of = {
        str(number): {**scenario.nodes.serve_of.get(str(number), {}), **settings}
        for number, settings in more.items()
    }
    nodes = type(scenario.nodes)(
        count=scenario.nodes.count, serve=scenario.nodes.serve, serve_of=of
    )
    return Scenario(
        title=scenario.title, dataset=scenario.dataset, reading=scenario.reading, nodes=nodes
    )


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    """A file system with little room."""
    folder.mkdir()
    run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "lodefs-load", str(folder)])
    try:
        yield folder / "cache"
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Waits until a condition is true. Returns whether that was in time."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True

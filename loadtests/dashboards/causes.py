"""Causes the condition of each alert for real, and ends it again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from loadtests.dashboards.watched import SMALL_NODE, TLS_NODE, Watched, certify

PULSES = 12
PULSE_S = 1.2
KILLS = 6
RESTARTS = 4

Cause = Callable[[Watched], AbstractContextManager[None]]


@contextmanager
def _a_store_that_throttles(watched: Watched) -> Iterator[None]:
    """S3 answers 503 while a node reads what it does not have."""
    watched.origin.relay.behave(outage="503")
    watched.read(TLS_NODE, ["cold5"])
    try:
        yield
    finally:
        watched.origin.relay.behave(outage="")


@contextmanager
def _a_store_that_hangs(watched: Watched) -> Iterator[None]:
    """S3 accepts requests and answers none, while a program waits for a file."""
    watched.origin.relay.behave(outage="blackhole")
    watched.read(TLS_NODE, ["cold4"])
    try:
        yield
    finally:
        watched.origin.relay.behave(outage="")


@contextmanager
def _wrong_bytes(watched: Watched) -> Iterator[None]:
    """One bit of each piece that S3 sends is flipped."""
    watched.origin.relay.behave(fault="flip", fault_below="/")
    watched.read(TLS_NODE, ["cold2"])
    try:
        yield
    finally:
        watched.origin.relay.behave(fault="")


@contextmanager
def _data_processes_die(watched: Watched) -> Iterator[None]:
    """Data processes are killed again and again while they fetch."""
    for _ in range(KILLS):
        watched.read(TLS_NODE, ["cold3"])
        watched.kill_data_processes(TLS_NODE)
        time.sleep(2)
    yield


@contextmanager
def _too_small_a_cache(watched: Watched) -> Iterator[None]:
    """A node reads twice the size of its cache, again and again."""
    reader = watched.read(SMALL_NODE, ["cold0", "cold1", "warm"], forever=True)
    try:
        yield
    finally:
        reader.kill()


@contextmanager
def _a_full_disk(watched: Watched) -> Iterator[None]:
    """A node reads more than the disk of its cache can hold."""
    watched.read(0, [f"cold{number}" for number in range(6)])
    yield


@contextmanager
def _a_certificate_that_ends(watched: Watched) -> Iterator[None]:
    """A node's certificate is replaced by one that expires in ten days."""
    certify(watched.certificate, days=10)
    yield


@contextmanager
def _a_proxy_without_processor_time(watched: Watched) -> Iterator[None]:
    """The proxy is stopped for a second, again and again."""
    for _ in range(PULSES):
        watched.send(SMALL_NODE, signal.SIGSTOP)
        time.sleep(PULSE_S)
        watched.send(SMALL_NODE, signal.SIGCONT)
        time.sleep(PULSE_S / 2)
    yield


@contextmanager
def _restarts(watched: Watched) -> Iterator[None]:
    """A proxy is ended and started, often."""
    for _ in range(RESTARTS):
        watched.node(TLS_NODE).restart()
        time.sleep(3)
    yield


@contextmanager
def _a_dead_node(watched: Watched) -> Iterator[None]:
    """The node is gone, and stays so: the last cause."""
    live = watched.cluster.live
    node = live.pop(SMALL_NODE)
    node.kill()
    yield


CAUSES: tuple[tuple[Cause, tuple[str, ...]], ...] = (
    (_a_certificate_that_ends, ("LodefsCertificateExpires",)),
    (_wrong_bytes, ("LodefsWrongBytes",)),
    (_data_processes_die, ("LodefsDataProcessesRestart",)),
    (_a_store_that_hangs, ("LodefsMountStalled",)),
    (_a_store_that_throttles, ("LodefsStoreThrottled", "LodefsStoreErrors")),
    (_too_small_a_cache, ("LodefsCacheThrashing",)),
    (_a_full_disk, ("LodefsCacheDiskFull",)),
    (_a_proxy_without_processor_time, ("LodefsProxyOverloaded",)),
    (_restarts, ("LodefsProxyRestartsOften",)),
    (_a_dead_node, ("LodefsPeerDown", "LodefsNodeDown")),
)
"""In an order in which none is in the way of the next: first what wants data that no node has."""

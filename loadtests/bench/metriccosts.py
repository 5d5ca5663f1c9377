"""The cost of metrics: on the proxy's hot path, in a mount's worker, and for a scrape."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from typing import cast

from loadtests.results import Result
from lodefs.chunkstore.protocol.figures.mount_counts import Column, MountDescription, Operation
from lodefs.mount.shm.traffic_counters import TrafficTable
from lodefs.proxy.api.fast_path import FastPath, KnownHeaders, Target, parse_plain_get
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.metrics.server_metrics import MetricInputs, Metrics, RequestCounter
from lodefs.proxy.node import Extent, Files
from lodefs.proxy.service.mount_families import MountFamilies

MOUNTS = 100
ROUNDS = 15
HITS = 4000
HIT_BYTES = 4096
FUSE_READ_S = 1 / 32_000  # in one worker: the least that the kernel and Python take for 4 KiB


class _Files:
    """One file in memory; every range of it is a hit."""

    def __init__(self, scratch: Path) -> None:
        path = scratch / "file"
        path.write_bytes(bytes(HIT_BYTES * 2))
        self._fd = os.open(path, os.O_RDONLY)

    def hit(self, _content_id: bytes, first: int, size_bytes: int) -> Extent | None:
        return Extent(self._fd, first, size_bytes)


def costs(scratch: Path) -> Result:
    """Hits with and without counters, in turn; a scrape of a node with 100 mounts."""
    result = Result("metrics-cost")
    _hit_s(scratch, counted=False)  # warm
    with_s, without_s = [], []
    for _ in range(ROUNDS):
        with_s.append(_hit_s(scratch, counted=True))
        without_s.append(_hit_s(scratch, counted=False))
    shares = [one / other - 1 for one, other in zip(with_s, without_s, strict=True)]
    result.add("hits of 4 KiB, counted", 1 / median(with_s), "/s")
    result.add("hits of 4 KiB, not counted", 1 / median(without_s), "/s")
    result.add("cost on the hot path", 100 * median(shares), "%", at_most=2.0)
    read_s = _worker_read_s(scratch)
    result.add("counting one read in a worker", read_s * 1e6, "us")
    result.add("of a read of 4 KiB by FUSE at best", 100 * read_s / FUSE_READ_S, "%", at_most=2.0)
    cpu_s, lines = _scrape(scratch)
    result.add(f"scrape with {MOUNTS} mounts, {lines} lines", cpu_s * 1e3, "ms", at_most=50.0)
    result.notes.append("Processor time; hits over a socket pair, without a client's time.")
    return result


def _hit_s(scratch: Path, *, counted: bool) -> float:
    """Seconds of one hit, without the client's read as far as possible."""
    metrics = Metrics("bench", dict, Counts())
    path = FastPath(cast("Files", _Files(scratch)), metrics, closing=lambda: b"\r\n")
    counter = metrics.hot_counter("files", "bench")
    head = b"HTTP/1.1 206 Partial Content\r\n"
    target = Target("bench", b"c", 2 * HIT_BYTES, head, head, counter)
    asked = parse_plain_get(b"GET /f HTTP/1.1\r\nHost: x\r\nRange: bytes=0-4095\r\n\r\n")
    assert asked is not None
    path.learn(asked, target)
    blocks = KnownHeaders()
    blocks.add(asked.headers, "bench", 0)
    if not counted:
        path._count = _nothing  # type: ignore[assignment, method-assign]
    ours, theirs = socket.socketpair()
    transport = cast("asyncio.Transport", None)  # the socket always has room
    begun_s = process_time()
    for _ in range(HITS):
        assert path.answer(asked, blocks, transport, ours.fileno())
        theirs.recv(1 << 16)
    spent_s = process_time() - begun_s
    ours.close()
    theirs.close()
    return spent_s / HITS


def _nothing(_counter: RequestCounter, _size: int, _elapsed_s: float) -> None:
    """Counts nothing."""


def _worker_read_s(scratch: Path) -> float:
    fd = TrafficTable.create(MountDescription(b"/mnt", "demo", "c" * 64, "1", 0.0), scratch)
    counter = TrafficTable(fd).counter(1)
    clock: Callable[[], float] = monotonic
    direct, read = Column.DIRECT_READS.value, Operation.READ.value
    begun_s = process_time()
    for _ in range(HITS):
        since_s = clock()
        counter.read(direct, HIT_BYTES)
        counter.answered(read, int((clock() - since_s) * 1e9))
    spent_s = process_time() - begun_s
    os.close(fd)
    return spent_s / HITS


def _scrape(scratch: Path) -> tuple[float, int]:
    """Processor seconds of a scrape, and the number of its lines."""
    figures = scratch / "figures"
    figures.mkdir()
    tables = []
    for number in range(MOUNTS):
        said = MountDescription(b"/mnt/%d" % number, "demo", "c" * 64, "1", 0.0)
        tables.append(TrafficTable(TrafficTable.create(said, figures)))
        for slot in range(1, 5):
            tables[-1].counter(slot).answered(Operation.READ, 1000)
    metrics = Metrics("bench", dict, Counts(), MetricInputs(more=MountFamilies(figures)))
    spent_s = []
    for _ in range(ROUNDS):
        begun_s = process_time()
        text, _ = metrics.text()
        spent_s.append(process_time() - begun_s)
    return median(spent_s), text.count(b"\n")

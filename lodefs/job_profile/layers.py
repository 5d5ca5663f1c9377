"""Finds what a job waited for, from samples of its threads and the requests of its mount. Pure.

In each sample the job's threads are blocked, running or asleep. The requests in progress at that
time say what blocked them, in proportion to what each request waited for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from lodefs.mount.kernel.fuse_abi import Opcode
from lodefs.mount.shm.request_trace import Record


class Layer(StrEnum):
    """The layers that a job can wait for."""

    STORE = "store"
    PEERS = "peers"
    DISK = "cache disk"
    CPU = "cpu"  # the proxy, the mount's workers, and processors for both
    JOB = "job"  # its own work, and anything else that it waits for


class Tick(NamedTuple):
    """A sample of the job's threads (CLOCK_MONOTONIC): how many are blocked in the kernel, and how
    many run or could run. ``seen``: False if no thread of the job can be seen."""

    at_s: float
    blocked: int
    running: int
    seen: bool = True


Shares = dict[Layer, float]
_OF_NAMES = frozenset({Opcode.LOOKUP, Opcode.GETATTR, Opcode.READDIR, Opcode.READDIRPLUS})


def shares_of_record(record: Record, *, names_from_store: bool) -> Shares:
    """Returns the waits of one request, as shares of its time."""
    if record.elapsed_s <= 0:
        return {Layer.CPU: 1.0}
    names = names_from_store and record.opcode in _OF_NAMES
    waited = {
        Layer.STORE: record.store_s + (record.proxy_s if names else 0.0),
        Layer.PEERS: record.peers_s,
        Layer.DISK: record.disk_s,
    }
    scale = max(record.elapsed_s, sum(waited.values()))
    shares = {layer: seconds / scale for layer, seconds in waited.items() if seconds > 0}
    return {**shares, Layer.CPU: max(0.0, 1.0 - sum(shares.values()))}


def waiting(
    ticks: Sequence[Tick],
    records: Iterable[Record],
    *,
    passed_through: bool = False,
    names_from_store: bool = False,
) -> Shares:
    """Returns the share of time of each layer; the sum is 1. ``passed_through``: the kernel reads
    files by itself, so that a thread blocked without a request waits for the cache's disk."""
    total = dict.fromkeys(Layer, 0.0)
    if not ticks:
        return {**total, Layer.JOB: 1.0}
    in_work = _in_work(ticks, records, names_from_store=names_from_store)
    for number, tick in enumerate(ticks):
        shares = in_work.get(number)
        share = _blocked_share(tick, in_work=shares is not None)
        total[Layer.JOB] += 1.0 - share
        if shares is None:  # its request is not yet being served, or the kernel reads by itself
            total[Layer.DISK if passed_through else Layer.CPU] += share
        else:
            weight = share / sum(shares.values())
            for layer, part in shares.items():
                total[layer] += part * weight
    return {layer: seconds / len(ticks) for layer, seconds in total.items()}


def _blocked_share(tick: Tick, *, in_work: bool) -> float:
    """Returns the share of the job that waits: of the threads that do not sleep, those blocked."""
    if not tick.seen:
        return 1.0 if in_work else 0.0
    awake = tick.blocked + tick.running
    return tick.blocked / awake if awake else 0.0


def _in_work(
    ticks: Sequence[Tick], records: Iterable[Record], *, names_from_store: bool
) -> Mapping[int, Shares]:
    """Returns, by sample number, the summed waits of the requests in progress at that time."""
    times_s = [tick.at_s for tick in ticks]
    found: dict[int, Shares] = {}
    for record in records:
        first = bisect_left(times_s, record.start_s)
        end = bisect_left(times_s, record.start_s + record.elapsed_s)
        if first < end:
            shares = shares_of_record(record, names_from_store=names_from_store)
            for number in range(first, end):
                sums = found.setdefault(number, {})
                for layer, share in shares.items():
                    sums[layer] = sums.get(layer, 0.0) + share
    return found


def named(shares: Shares) -> Layer:
    """Returns the layer that makes a job slow: the job itself if it waits for data less than half
    of the time, else the layer that it waits for most."""
    if shares[Layer.JOB] >= 0.5:
        return Layer.JOB
    return max((layer for layer in Layer if layer != Layer.JOB), key=lambda one: shares[one])

"""Plans of reads by node and order: pure functions of a dataset, the nodes and a seed.

A plan has one work list for each node; a work list one list of jobs for each stream (a client that
reads one thing after the other).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from loadtests.cluster.dataset import Dataset, File
from loadtests.cluster.scenario import Reading, size

SEED = 1


class Job(NamedTuple):
    """A read: of a whole file, or of ``size_bytes`` from ``first``. ``digest``: BLAKE3, hex."""

    name: str
    first: int
    size_bytes: int
    digest: str
    is_range: bool = False


Streams = list[list[Job]]
Plan = list[Streams]  # by the node's number


def size_of(streams: Streams) -> int:
    """The bytes that a work list asks for."""
    return sum(job.size_bytes for jobs in streams for job in jobs)


def epochs(dataset: Dataset, reading: Reading, nodes: int) -> list[Plan]:
    """The reads of every node, epoch by epoch, as a scenario describes them."""
    return [_epoch(dataset, reading, nodes, number) for number in range(reading.epochs)]


def _epoch(dataset: Dataset, reading: Reading, nodes: int, epoch: int) -> Plan:
    files = dataset.of(reading.groups)
    streams = reading.streams
    own = None if reading.order == "same" else SEED + epoch
    if reading.pattern == "everything":
        return everything(files, nodes, streams, seed=own)
    if reading.pattern == "herd":
        return herd(files, nodes, reading.clients, seed=own)
    if reading.pattern == "shares":
        return shares(files, nodes, streams, seed=SEED + epoch)
    if reading.pattern == "shards":
        return shards(files, nodes, streams, epoch=epoch)
    return ranges(
        dataset, files, nodes, streams,
        reads=reading.reads, size_bytes=size(reading.range), seed=SEED + epoch,
    )  # fmt: skip


def everything(files: Sequence[File], nodes: int, streams: int, *, seed: int | None) -> Plan:
    """Every node reads every file: in the files' order, or with ``seed`` each in one of its own."""
    plan = []
    for node in range(nodes):
        order = _shuffled(files, None if seed is None else seed * nodes + node)
        plan.append(_dealt([whole(file) for file in order], streams))
    return plan


def herd(files: Sequence[File], nodes: int, clients: int, *, seed: int | None) -> Plan:
    """So many clients, spread over the nodes; each reads every file: in the files' order, or with
    ``seed`` each in one of its own."""
    plan: Plan = [[] for _ in range(nodes)]
    for client in range(clients):
        order = _shuffled(files, None if seed is None else seed * clients + client)
        plan[client % nodes].append([whole(file) for file in order])
    return plan


def shares(files: Sequence[File], nodes: int, streams: int, *, seed: int) -> Plan:
    """One epoch in which one node reads every file; each seed distributes them again."""
    order = _shuffled(files, seed)
    return [_dealt([whole(file) for file in order[node::nodes]], streams) for node in range(nodes)]


def shards(files: Sequence[File], nodes: int, streams: int, *, epoch: int) -> Plan:
    """One epoch: every node reads whole shards of its own, which move on by one node an epoch."""
    mine = [[file for n, file in enumerate(files) if (n + epoch) % nodes == node]
            for node in range(nodes)]  # fmt: skip
    return [_dealt([whole(file) for file in own], streams) for own in mine]


def ranges(
    dataset: Dataset, files: Sequence[File], nodes: int, streams: int,
    *, reads: int, size_bytes: int, seed: int,
) -> Plan:  # fmt: skip
    """Every node reads ``reads`` random ranges, as a training job does from a file of tokens."""
    chance = random.Random(seed)
    plan: Plan = []
    for _ in range(nodes):
        jobs = []
        for file in files:
            last = max(0, file.size_bytes - size_bytes)
            size = min(size_bytes, file.size_bytes)
            wanted = [(chance.randint(0, last), size) for _ in range(reads // len(files))]
            digests = dataset.digests(file, wanted)
            jobs += [Job(file.name, first, size, digest, is_range=True)
                     for (first, size), digest in zip(wanted, digests, strict=True)]  # fmt: skip
        chance.shuffle(jobs)
        plan.append(_dealt(jobs, streams))
    return plan


def whole(file: File) -> Job:
    """The read of a whole file."""
    return Job(file.name, 0, file.size_bytes, file.digest)


def _shuffled(files: Sequence[File], seed: int | None) -> list[File]:
    order = list(files)
    if seed is not None:
        random.Random(seed).shuffle(order)
    return order


def _dealt(jobs: list[Job], streams: int) -> Streams:
    """The jobs dealt out to so many streams, none of them empty."""
    return [jobs[number::streams] for number in range(min(streams, len(jobs)))]

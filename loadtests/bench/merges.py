"""``./run bench merge``: a store of 500 small pushes, before and after its small packs are put
together, and what a cold read of one file costs, on Ceph RGW.

The pushes go into a directory, all objects of which are then put into a bucket.

Each read is by a process's first use of the store: what it asks for is counted.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import monotonic
from typing import NamedTuple
from unittest import mock

from loadtests.bench.origins import Origin, ceph_origin
from loadtests.results import Result
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.objects.observing import Observation
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.push.push import PushOptions, push
from lodefs.chunkstore.repo.history import find
from lodefs.chunkstore.repo.store import Store, create_store, open_store

PUSHES = 500
SIZE_BYTES = 4096  # size of the one file that each push adds
READS = 60
BELOW_BYTES = 4 * 1024 * 1024
REPO = "data/set"


class _Cost(NamedTuple):
    requests: float
    seconds: float
    second_requests: float  # for another file, by the same process
    second_seconds: float


def merges(scratch: Path) -> Result:
    """Pushes, reads, merges, and reads the same again."""
    result = Result(f"merge on Ceph RGW, {PUSHES} pushes of a file of {SIZE_BYTES} bytes")
    with ceph_origin(scratch) as origin, mock.patch.dict(os.environ, _environment(origin)):
        _fill(scratch, origin)
        before = _objects(origin)
        apart = _cost(origin)
        began_s = monotonic()
        merged = collect(_open(origin)[0], CollectOptions(merge_below_bytes=BELOW_BYTES)).merged
        took_s = monotonic() - began_s
        after = _objects(origin)
        joined = _cost(origin)
        problems = origin.lodefs.json("verify", "--data")["problems"]
    result.add("objects with packs before", before[0])
    result.add("objects with packs after, tables too", after[0])
    result.add("objects before / after", before[0] / after[0], "x", at_least=100)
    result.add("bytes after / before", after[1] / before[1], "x", at_most=1.1)
    result.add("packs that were merged", merged.packs)
    result.add("time of the merge", took_s, "s")
    for what, a, b in (
        ("requests of a cold read of a file", apart.requests, joined.requests),
        ("time of it, median", apart.seconds * 1000, joined.seconds * 1000),
        ("requests of the second file", apart.second_requests, joined.second_requests),
        ("time of it, median", apart.second_seconds * 1000, joined.second_seconds * 1000),
    ):
        result.add(f"{what}, before", a, "ms" if "time" in what else "")
        result.add(f"{what}, after", b, "ms" if "time" in what else "")
        result.add(f"{what}, after / before", b / a, "x")
    result.add("problems that verify --data finds", len(problems), at_most=0)
    return result


def _fill(scratch: Path, origin: Origin) -> None:
    """Pushes, each of which adds a file."""
    source = scratch / "source"
    source.mkdir()
    here = create_store(open_objects(str(scratch / "store")))
    options = PushOptions("", "", 1_700_000_000, scratch / "machine", workers=0)
    for n in range(PUSHES):
        (source / f"{n:04d}").write_bytes(random.Random(n).randbytes(SIZE_BYTES))
        push(here, source, REPO, "main", options)
    names = [info.key for info in here.objects.list("")]
    there = _open(origin)[0].objects

    def bring(key: str) -> None:
        there.put(key, [here.objects.get(key, size=1 << 30).data])

    with ThreadPoolExecutor(8) as executor:
        for _ in executor.map(bring, names):
            pass


def _cost(origin: Origin) -> _Cost:
    """Medians for a file that nobody has read before, and for another file after it."""
    numbers = random.Random(1).sample(range(PUSHES), 2 * READS)
    costs: list[tuple[int, float, int, float]] = []
    for first, second in zip(numbers[::2], numbers[1::2], strict=True):
        store, calls = _open(origin)
        costs.append((*_timed(store, calls, first), *_timed(store, calls, second)))
        store.close()
    return _Cost(*(median(column) for column in zip(*costs, strict=True)))


def _timed(store: Store, calls: list[Observation], number: int) -> tuple[int, float]:
    began_s, before = monotonic(), len(calls)
    entry = find(store, Spec(REPO, "main", f"{number:04d}".encode()))
    data = b"".join(store.packs.read_file(entry))
    if data != random.Random(number).randbytes(SIZE_BYTES):
        raise AssertionError(f"file {number} has wrong bytes")
    return len(calls) - before, monotonic() - began_s


def _open(origin: Origin) -> tuple[Store, list[Observation]]:
    """A store as a new process sees it, and all its calls from now on."""
    calls: list[Observation] = []
    observe: Callable[[Observation], None] = calls.append
    options = StoreOptions(endpoint_url=origin.endpoint_url, region="us-east-1", observe=observe)
    return open_store(open_objects(origin.lodefs.store, options)), calls


def _objects(origin: Origin) -> tuple[int, int]:
    """The number of objects with packs or their locations, and their bytes."""
    pages = origin.client.get_paginator("list_objects_v2").paginate(Bucket=origin.bucket)
    sizes = [
        one["Size"]
        for page in pages
        for one in page.get("Contents", ())
        if one["Key"].removeprefix("store/").startswith((keys.PACKS, "composites/"))
    ]
    return len(sizes), sum(sizes)


def _environment(origin: Origin) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": origin.access_key, "AWS_SECRET_ACCESS_KEY": origin.secret_key}

"""``./run bench gc-schedules``: collections beside writers, in thousands of random schedules.

In memory, or over a real Ceph RGW: there each schedule has a prefix of its own, each answer has to
be that of the store in memory, and a client that is killed at a put has sent the half of it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from contextlib import ExitStack
from functools import cache
from http.client import HTTPConnection
from multiprocessing.pool import Pool
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, NamedTuple
from unittest import mock
from urllib.parse import urlsplit

from loadtests.results import Result
from loadtests.services import S3Server
from loadtests.services.ceph import ceph_rgw
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.objects.pack_locations import locations_of
from tests.support.maintenance.compared_objects import ComparedObjects
from tests.support.maintenance.schedules import Played, one_at_a_time, play, write_sources

MEMORY, RGW = "memory", "rgw"
SCHEDULES = {MEMORY: 10_000, RGW: 300}
_PART = 50  # schedules in memory that a process plays before it asks for more
_PART_OF_RGW = 5
TIMEOUT_S = 30.0


class Bucket(NamedTuple):
    """Settings of an S3 server that serves only the schedules."""

    server: S3Server
    name: str


def schedules(scratch: Path, count: int | None = None, store: str = MEMORY) -> Result:
    """Plays schedules in as many processes as there are cores, until one breaks a rule."""
    began_s = monotonic()
    count = SCHEDULES[store] if count is None else count
    processes = os.cpu_count() or 1
    memory = Path("/dev/shm")  # push indexes are written and synced very often
    with ExitStack() as stack:
        within = memory if memory.is_dir() else scratch
        directory = Path(stack.enter_context(TemporaryDirectory(dir=within)))
        bucket, part = None, _PART
        if store == RGW:
            server = stack.enter_context(ceph_rgw())
            bucket, part = Bucket(server, server.make_bucket()), _PART_OF_RGW
        shares = [(directory, n, min(part, count - n), bucket) for n in range(0, count, part)]
        pool: Pool = multiprocessing.get_context("spawn").Pool(processes)
        with pool:
            played = list(pool.imap_unordered(_play_share, shares))
    result = Result(f"gc-schedules, store: {store}, {processes} processes")
    result.add("schedules", sum(len(share) for share in played), at_least=count)
    result.add("schedules in which a ref lacked a byte, or garbage stayed", 0, at_most=0)
    for one in (
        "steps",
        "pushes",
        "kept",
        "stored_again",
        "collections",
        "killed",
        "removed",
        "restored",
        "expired",
        "purged",
        "purged_again",
        "repaired",
        "deleted",
    ):
        total = sum(getattr(schedule, one) for share in played for schedule in share)
        result.add(one.replace("_", " "), total)
    needed = Counter(schedule.collections_to_clean for share in played for schedule in share)
    for collections, times in sorted(needed.items()):
        result.add(f"schedules whose garbage was gone after {collections}", times)
    result.add("time", monotonic() - began_s, "s")
    return result


def _play_share(share: tuple[Path, int, int, Bucket | None]) -> list[Played]:
    directory, first, count, bucket = share
    logging.disable(logging.CRITICAL)  # thousands of lines about lost and found objects
    place = directory / f"from{first}"
    sources = write_sources(place / "sources")
    seeds = range(first, first + count)
    with one_at_a_time():
        if bucket is None:
            return [play(seed, place / "indexes", sources) for seed in seeds]
        return [play_on(bucket, seed, place / "indexes", sources) for seed in seeds]


def play_on(bucket: Bucket, seed: int, directory: Path, sources: list[Path]) -> Played:
    """One schedule over a real S3. Raises: AssertionError, also if any answer, or what is there in
    the end, is not what a store in memory has."""
    with mock.patch.dict(os.environ, bucket.server.environment):
        options = StoreOptions(endpoint_url=bucket.server.endpoint_url)
        real = locations_of(open_objects(f"s3://{bucket.name}/seed{seed}", options)).inner
        tear = lambda key, data: torn_put(bucket, f"seed{seed}/{key}", data)  # noqa: E731
        objects = ComparedObjects(real, tear)
        try:
            played = play(seed, directory, sources, objects)
            objects.check()
        finally:
            real.close()
    return played


def torn_put(bucket: Bucket, key: str, data: bytes, share: float = 0.5) -> None:
    """Begins to put an object, and goes when that share of its bytes is sent. If it is all, the
    answer is waited for."""
    where = {"Bucket": bucket.name, "Key": key}
    url = urlsplit(_client(bucket.server).generate_presigned_url("put_object", Params=where))
    connection = HTTPConnection(url.netloc, timeout=TIMEOUT_S)
    try:
        connection.putrequest("PUT", f"{url.path}?{url.query}")
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders(data[: int(len(data) * share)])
        if share == 1:
            connection.getresponse().read()
    finally:
        connection.close()


@cache
def _client(server: S3Server) -> Any:
    """One client for all schedules of a process: boto3 takes a third of a second to make one."""
    return server.client()

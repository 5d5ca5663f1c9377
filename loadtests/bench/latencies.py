"""Benchmark of many readers against a distant S3 server: their waits must overlap."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from loadtests import corpora
from loadtests.bench.fio import RANDOM_4K_16
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.bench.sides import REPO, mounted, node
from loadtests.measure import drop_page_cache
from loadtests.reading import walk
from loadtests.results import Result
from loadtests.services import S3Server
from loadtests.services.latency import far_away

DELAY_S = 0.02
SECONDS = 5.0
ROUNDS = 3
GETS = 20
GET_BYTES = 64 << 10
KEY = "plain"
WALK_TIMEOUT_S = 60.0


def random_reads(scratch: Path) -> Result:
    """Random 4 KiB reads of a cold file by 16 readers, with an S3 that answers after 20 ms."""
    result = Result("mount-latency")
    corpus = scratch / "corpus"
    (corpus / RANDOM_4K_16.folder).mkdir(parents=True)
    shutil.copy(corpora.random_file(), corpus / RANDOM_4K_16.folder / "0.bin")
    with ceph_origin(scratch) as near:
        near.lodefs.run("push", corpus, REPO)
        near.client.upload_file(str(corpora.random_file()), near.bucket, KEY)
        with far(near) as origin:
            latency_s = _latency_s(origin)
            rates = [_rate(origin, scratch, number) for number in range(ROUNDS)]
    possible = RANDOM_4K_16.threads / latency_s
    result.add("latency of one ranged GET", latency_s * 1e3, "ms")
    result.add("16 readers / that latency", possible, "/s")
    result.add("lodefs, 16 readers, cold", median(rates), "/s")
    result.add("lodefs / possible", median(rates) / possible, "x", at_least=0.8)
    return result


@contextmanager
def far(near: Origin) -> Iterator[Origin]:
    """The same store seen over a slow network."""
    server = S3Server(near.endpoint_url, near.access_key, near.secret_key)
    with far_away(server, DELAY_S) as far:
        env = {**near.lodefs.env, "AWS_ENDPOINT_URL": far.endpoint_url}
        lodefs = replace(near.lodefs, env=env)
        yield replace(near, endpoint_url=far.endpoint_url, client=far.client(), lodefs=lodefs)


def _latency_s(origin: Origin) -> float:
    """Seconds of a ranged GET of 64 KiB on an open connection: the median of several."""
    seconds = []
    for number in range(GETS):
        first = number * GET_BYTES
        asked = f"bytes={first}-{first + GET_BYTES - 1}"
        start = perf_counter()
        origin.client.get_object(Bucket=origin.bucket, Key=KEY, Range=asked)["Body"].read()
        seconds.append(perf_counter() - start)
    return median(seconds)


def _rate(origin: Origin, scratch: Path, number: int) -> float:
    """Reads a second on a new node."""
    folder = scratch / f"node-{number}"
    lodefs = origin.lodefs
    with node(lodefs, folder) as proxy, mounted(lodefs, proxy, folder / "mnt") as target:
        walk(target, timeout_s=WALK_TIMEOUT_S)
        drop_page_cache()
        return RANDOM_4K_16.run(target, scratch, seconds=SECONDS, again=False)

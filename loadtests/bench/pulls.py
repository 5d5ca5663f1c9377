"""Benchmark of pull from a real S3 server."""

from __future__ import annotations

import os
import shutil
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.results import Result

PART_BYTES = 8 << 20
THREADS = 8
ROUNDS = 3


def pull(scratch: Path) -> Result:
    """1 GiB from Ceph RGW into a directory, against boto3's ranged GETs into a file."""
    result = Result("pull")
    source = corpora.random_file()
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source.parent, "bench")
        origin.client.upload_file(str(source), origin.bucket, "plain")
        ours, theirs = [], []
        for number in range(ROUNDS):
            theirs.append(_boto3(origin, scratch / "plain"))
            target = scratch / f"pulled-{number}"
            taken = origin.lodefs.run("pull", "--no-sync", "bench", target)
            ours.append(taken.seconds)
            shutil.rmtree(target)
        gib = source.stat().st_size / 2**20
        speeds = {"boto3, 8 threads": gib / statistics.median(theirs)}
        pull_speed = gib / statistics.median(ours)
        result.add("pull", pull_speed, "MiB/s")
        result.add("boto3, 8 threads", speeds["boto3, 8 threads"], "MiB/s")
        result.ratio("pull", pull_speed, speeds, at_least=0.6)
    return result


def _boto3(origin: Origin, target: Path) -> float:
    """Seconds to read the plain object in parts by threads into one file."""
    size = origin.client.head_object(Bucket=origin.bucket, Key="plain")["ContentLength"]
    start = perf_counter()
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def part(first: int) -> None:
        last = min(first + PART_BYTES, size) - 1
        answer = origin.client.get_object(
            Bucket=origin.bucket, Key="plain", Range=f"bytes={first}-{last}"
        )
        os.pwrite(fd, answer["Body"].read(), first)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(part, range(0, size, PART_BYTES)))
    os.close(fd)
    seconds = perf_counter() - start
    target.unlink()
    return seconds

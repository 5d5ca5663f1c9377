"""Benchmarks of warm: a large file against pull, and small files from a distant S3 server."""

from __future__ import annotations

import shutil
import statistics
from pathlib import Path
from time import perf_counter

from loadtests import corpora
from loadtests.bench import mountcorpus
from loadtests.bench.latencies import far
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.results import Result

REPO = "bench"
ROUNDS = 3
FILES_PER_S = 10_000


def warm(scratch: Path) -> Result:
    """1 GiB from Ceph RGW into a new cache, in turns with pull; 20,000 files of 10 KB with S3
    answering after 20 ms."""
    result = Result("warm")
    source = corpora.random_file()
    small = mountcorpus.kept(mountcorpus.FULL) / "files"
    with ceph_origin(scratch) as near:
        near.lodefs.run("push", source.parent, REPO)
        mib = source.stat().st_size / 2**20
        warms, pulls = _in_turns(near, scratch)
        result.add("warm, 1 GiB", mib / warms, "MiB/s")
        result.add("pull, 1 GiB", mib / pulls, "MiB/s")
        result.add("1 GiB: warm / pull", pulls / warms, "x", at_least=1)
        near.lodefs.run("push", "--allow-removals", small, REPO)
        files = mountcorpus.FULL.files
        with far(near) as origin:
            warms, pulls = _in_turns(origin, scratch)
        result.add("warm, small files, 20 ms", files / warms, "files/s", at_least=FILES_PER_S)
        result.add("pull, small files, 20 ms", files / pulls, "files/s")
        result.add("small files: warm / pull", pulls / warms, "x", at_least=1)
    result.notes.append(f"medians of {ROUNDS} rounds, the commands' starts and all; no --sync")
    return result


def _in_turns(origin: Origin, scratch: Path) -> tuple[float, float]:
    """Seconds of a warm into a new cache and of a pull into a new directory, in turn: medians."""
    warms, pulls = [], []
    for number in range(ROUNDS):
        target, folder = scratch / f"pulled-{number}", scratch / f"node-{number}"
        pulls.append(origin.lodefs.run("pull", "--no-sync", REPO, target).seconds)
        shutil.rmtree(target)
        with origin.lodefs.proxy(folder) as proxy:
            start = perf_counter()
            status = origin.lodefs.json("--proxy", proxy.url, "warm", REPO)
            warms.append(perf_counter() - start)
        if status["state"] != "done" or status["fetched_bytes"] != status["bytes_total"]:
            raise RuntimeError(f"not all of it was warmed, or not all was cold: {status}")
        shutil.rmtree(folder)
    return statistics.median(warms), statistics.median(pulls)

"""Benchmark of a push from a bucket into a store on the same real S3 server."""

from __future__ import annotations

import statistics
from pathlib import Path

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.measure import Run, run
from loadtests.results import Result
from loadtests.services.rclone import RCLONE

ROUNDS = 3
TRANSFERS = 24  # for rclone: as many requests at once as lodefs has here
SOURCE = "s3://bench/source"


def push_url(scratch: Path) -> Result:
    """1 GiB and 20,000 small objects from a bucket on Ceph RGW into a store there, in turns with
    rclone copy of the same to another prefix; then both again, with nothing changed."""
    result = Result("push-url")
    source = corpora.mixed()
    mib = sum(path.stat().st_size for path in source.rglob("*") if path.is_file()) / 2**20
    ours: list[Run] = []
    theirs: list[Run] = []
    again: list[float] = []
    theirs_again: list[float] = []
    for number in range(ROUNDS):
        with ceph_origin(scratch / str(number)) as origin:  # its data is in its memory
            _rclone(origin, scratch, str(source), "a:bench/source")
            if number % 2:
                ours.append(_push(origin))
            theirs.append(_copy(origin, scratch))
            if not number % 2:
                ours.append(_push(origin))
            again.append(_push(origin).seconds)
            theirs_again.append(_copy(origin, scratch).seconds)
            read = origin.lodefs.json("push", SOURCE, "bench")["files_read"]
    first, second = _seconds(ours), statistics.median(again)
    speeds = {"rclone copy": mib / _seconds(theirs)}
    result.add("lodefs push", mib / first, "MiB/s")
    result.add("rclone copy", speeds["rclone copy"], "MiB/s")
    result.ratio("push", mib / first, speeds, at_least=1)
    result.add("processor time", statistics.median(one.cpu_s for one in ours), "s")
    result.add("rclone's", statistics.median(one.cpu_s for one in theirs), "s")
    memory_bytes = max(one.memory_bytes for one in ours)
    result.add("memory", memory_bytes / 2**20, "MiB", at_most=400)
    result.add("again", second, "s")
    result.add("rclone again", statistics.median(theirs_again), "s")
    result.add("first time / again", first / second, "x", at_least=10)
    result.add("objects read again", read, "", at_most=0)
    return result


def _seconds(runs: list[Run]) -> float:
    return statistics.median(one.seconds for one in runs)


def _push(origin: Origin) -> Run:
    return origin.lodefs.run("push", SOURCE, "bench", watch_memory=True)


def _copy(origin: Origin, scratch: Path) -> Run:
    return _rclone(origin, scratch, "a:bench/source", "b:bench/copy")


def _rclone(origin: Origin, scratch: Path, source: str, there: str) -> Run:
    """rclone copy; between its two remotes all bytes come through this machine."""
    config = scratch / "rclone.conf"
    remote = (
        "type = s3\nprovider = Ceph\nno_check_bucket = true\n"
        f"endpoint = {origin.endpoint_url}\naccess_key_id = {origin.access_key}\n"
        f"secret_access_key = {origin.secret_key}\n"
    )
    config.write_text(f"[a]\n{remote}\n[b]\n{remote}\n")
    return run(
        [
            RCLONE, "copy", "--config", str(config), "--transfers", str(TRANSFERS),
            "--checkers", str(TRANSFERS), "--server-side-across-configs=false", source, there,
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(scratch)},
    )  # fmt: skip

"""Benchmark of a copy between two stores on a real S3 server."""

from __future__ import annotations

import statistics
from pathlib import Path

from loadtests import corpora
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.measure import Run, run
from loadtests.results import Result
from loadtests.services.rclone import RCLONE

ROUNDS = 3
TRANSFERS = 8  # for rclone: as many as lodefs has workers


def copy(scratch: Path) -> Result:
    """1 GiB from a store on Ceph RGW to another one there, in turns with rclone on the packs: byte
    by byte through this machine, and copied by the server itself."""
    result = Result("copy")
    source = corpora.random_file()
    mib = source.stat().st_size / 2**20
    ours, again, theirs, theirs_again = [], [], [], []
    by_server, theirs_by_server = [], []
    for number in range(ROUNDS):
        with ceph_origin(
            scratch / str(number)
        ) as origin:  # a new server, since all data is in its memory
            origin.lodefs.run("push", source.parent, "bench")
            theirs.append(_rclone(origin, scratch))
            theirs_again.append(_rclone(origin, scratch).seconds)
            ours.append(_ours(origin, "copy", "--check"))
            again.append(_ours(origin, "copy", "--check").seconds)
            theirs_by_server.append(_rclone(origin, scratch, by_server=True).seconds)
            by_server.append(_ours(origin, "server").seconds)
    first, second = _seconds(ours), statistics.median(again)
    speeds = {"rclone copy": mib / _seconds(theirs)}
    result.add("copy --check", mib / first, "MiB/s")
    result.add("rclone copy of the packs", speeds["rclone copy"], "MiB/s")
    result.ratio("copy", mib / first, speeds, at_least=0.8)
    result.add("processor time", statistics.median(one.cpu_s for one in ours), "s")
    result.add("rclone's", statistics.median(one.cpu_s for one in theirs), "s")
    result.add("again", second, "s")
    result.add("rclone again", statistics.median(theirs_again), "s")
    result.add("first time / again", first / second, "x", at_least=10)
    server_s, rclone_s = statistics.median(by_server), statistics.median(theirs_by_server)
    result.add("copy by the server", server_s, "s")
    result.add("rclone copy by the server", rclone_s, "s")
    result.add("by the server / through here", first / server_s, "x")
    return result


def _seconds(runs: list[Run]) -> float:
    return statistics.median(one.seconds for one in runs)


def _ours(origin: Origin, name: str, *options: str) -> Run:
    """Copies the store to another prefix, in which the first call creates one."""
    there = f"s3://bench/{name}"
    if not origin.client.list_objects_v2(Bucket="bench", Prefix=f"{name}/").get("KeyCount"):
        origin.lodefs.run("init", there)
    return origin.lodefs.run("copy", *options, origin.lodefs.store, there, "bench")


def _rclone(origin: Origin, scratch: Path, *, by_server: bool = False) -> Run:
    """rclone's copy of all packs to another prefix: through this machine, unless ``by_server``, by
    requests to the server to copy them itself."""
    config = scratch / "rclone.conf"
    remote = (
        "type = s3\nprovider = Ceph\nno_check_bucket = true\n"
        f"endpoint = {origin.endpoint_url}\naccess_key_id = {origin.access_key}\n"
        f"secret_access_key = {origin.secret_key}\n"
    )
    config.write_text(f"[a]\n{remote}\n[b]\n{remote}\n")
    there = "a:bench/rclone-server" if by_server else "b:bench/rclone"
    return run(
        [
            RCLONE, "copy", "--config", str(config), "--transfers", str(TRANSFERS),
            "--server-side-across-configs=false", "a:bench/store/packs", f"{there}/packs",
        ],
        env={"PATH": "/usr/bin:/bin", "HOME": str(scratch)},
    )  # fmt: skip

"""Benchmarks of the mount."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from loadtests import corpora
from loadtests.bench.discarding import discard
from loadtests.bench.origins import Origin, ceph_origin
from loadtests.measure import drop_page_cache
from loadtests.results import Result
from loadtests.services.rclone import RCLONE

ROUNDS = 3
READ_BYTES = 1 << 20
MOUNT_TIMEOUT_S = 60


def cold(scratch: Path) -> Result:
    """1 GiB read in order, nothing cached, S3 server on loopback."""
    result = Result("mount-cold")
    source = corpora.random_file()
    size_mb = source.stat().st_size / 1e6
    with ceph_origin(scratch) as origin:
        origin.lodefs.run("push", source.parent, "bench")
        origin.client.upload_file(str(source), origin.bucket, f"plain/{source.name}")
        ours, theirs, limits, cpu = [], [], [], []
        for number in range(ROUNDS):
            limits.append(discard(origin, f"plain/{source.name}"))
            theirs.append(_rclone(origin, scratch / f"rclone-{number}", source.name))
            seconds, cpu_s = _lodefs(origin, scratch / f"node-{number}", source.name)
            ours.append(seconds)
            cpu.append(cpu_s)
        speeds = {"rclone mount": size_mb / statistics.median(theirs)}
        speed = size_mb / statistics.median(ours)
        result.add("lodefs mount", speed, "MB/s")
        result.add("rclone mount", speeds["rclone mount"], "MB/s")
        limit = size_mb / statistics.median(limits)
        result.add("S3 server alone, bytes thrown away", limit, "MB/s")
        result.add("processor of the proxy", statistics.median(cpu), "s")
        result.ratio("lodefs", speed, speeds, at_least=2)
        result.add("S3 server alone / rclone mount", limit / speeds["rclone mount"], "x")
    return result


def _lodefs(origin: Origin, folder: Path, name: str) -> tuple[float, float]:
    """Seconds of one cold read through a new node, and its proxy's processor seconds."""
    target = folder / "mnt"
    target.mkdir(parents=True)
    with origin.lodefs.proxy(folder / "proxy") as proxy:
        origin.lodefs.run("--proxy", proxy.url, "mount", "bench", target)
        try:
            drop_page_cache()
            before = proxy.cpu_s()
            seconds = _read(target / name)
            cpu_s = proxy.cpu_s() - before
        finally:
            origin.lodefs.run("unmount", target)
    shutil.rmtree(folder)
    return seconds, cpu_s


def _rclone(origin: Origin, folder: Path, name: str) -> float:
    """Seconds of one cold read through ``rclone mount --vfs-cache-mode full``."""
    with rclone_mount(origin, folder) as target:
        drop_page_cache()
        seconds = _read(target / "plain" / name)
    shutil.rmtree(folder)
    return seconds


@contextmanager
def rclone_mount(origin: Origin, folder: Path) -> Iterator[Path]:
    """The bucket mounted by rclone with its full cache in ``folder``."""
    target = folder / "mnt"
    target.mkdir(parents=True)
    remote = (
        f":s3,provider=Ceph,access_key_id={origin.access_key},"
        f"secret_access_key={origin.secret_key},endpoint='{origin.endpoint_url}':{origin.bucket}"
    )
    command = [RCLONE, "mount", remote, str(target), "--vfs-cache-mode", "full", "--read-only",
               "--cache-dir", str(folder / "cache"), "--config", os.devnull]  # fmt: skip
    with (folder / "rclone.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        start = perf_counter()
        while not os.path.ismount(target):
            if process.poll() is not None or perf_counter() - start > MOUNT_TIMEOUT_S:
                raise RuntimeError((folder / "rclone.log").read_text()[-2000:])
            time.sleep(0.05)
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=False, timeout=60)
        process.terminate()
        process.wait(60)


def _read(path: Path) -> float:
    """Seconds of one sequential read by 1 MiB pieces into one buffer."""
    buffer = bytearray(READ_BYTES)
    start = perf_counter()
    fd = os.open(path, os.O_RDONLY)
    while os.readv(fd, [buffer]):
        pass
    os.close(fd)
    return perf_counter() - start

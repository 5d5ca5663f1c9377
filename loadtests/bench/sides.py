"""The sides of a comparison of mounts: the path of the corpus on each, and how it becomes cold."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from loadtests.bench.mounts import rclone_mount
from loadtests.bench.origins import Origin
from loadtests.cli import Lodefs, Proxy
from loadtests.services.rclone import RCLONE
from tests.support.chunkstore.child_process import run

REPO = "bench"
PLAIN = "plain"  # the prefix of the bucket that rclone mounts
UPLOAD_TIMEOUT_S = 900
UNMOUNT_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Side:
    """The corpus as one side shows it.

    ``cache_files``: where it keeps bytes on the local disk, None where that is not known.
    """

    name: str
    root: Path
    cache_files: Path | None


def fill(origin: Origin, corpus: Path) -> None:
    """Uploads the corpus to the bucket, once for lodefs and once as plain objects."""
    origin.lodefs.run("push", corpus, REPO)
    words = ["copy", str(corpus), f":s3:{origin.bucket}/{PLAIN}", "--transfers", "16"]
    env = {
        "RCLONE_CONFIG": os.devnull,
        "RCLONE_S3_PROVIDER": "Ceph",
        "RCLONE_S3_ENDPOINT": origin.endpoint_url,
        "RCLONE_S3_ACCESS_KEY_ID": origin.access_key,
        "RCLONE_S3_SECRET_ACCESS_KEY": origin.secret_key,
    }
    run([RCLONE, *words, "--no-check-dest", "--s3-no-check-bucket"], env=env,
        timeout_s=UPLOAD_TIMEOUT_S)  # fmt: skip


@contextmanager
def lodefs_side(origin: Origin, folder: Path) -> Iterator[Side]:
    """A new node with an empty cache, and a mount of the corpus; both are removed at the end."""
    lodefs = origin.lodefs
    with node(lodefs, folder) as proxy, mounted(lodefs, proxy, folder / "mnt") as target:
        yield Side("lodefs", target, folder / "node" / "cache")


@contextmanager
def node(lodefs: Lodefs, folder: Path) -> Iterator[Proxy]:
    """A proxy with an empty cache in ``folder``, which is removed afterwards."""
    folder.mkdir(parents=True)
    try:
        with lodefs.proxy(folder / "node") as proxy:
            yield proxy
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mounted(lodefs: Lodefs, proxy: Proxy, target: Path, *words: str) -> Iterator[Path]:
    """The repository mounted on ``target`` through the node's proxy, with options ``words``."""
    target.mkdir(exist_ok=True)
    try:
        lodefs.run("--proxy", proxy.url, "mount", REPO, target, *words)
        yield target
    finally:
        with suppress(Exception):  # an earlier failure must be reported, not this one
            lodefs.run("unmount", target)
        detach(target)


@contextmanager
def rclone_side(origin: Origin, folder: Path) -> Iterator[Side]:
    """rclone's mount with an empty full cache; it is removed at the end."""
    folder.mkdir(parents=True)
    try:
        with rclone_mount(origin, folder) as target:
            yield Side("rclone", target / PLAIN, folder / "cache")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def detach(target: Path) -> None:
    """Unmounts what is still mounted there; a mount in use ends with its last user."""
    if os.path.ismount(target):
        words = ["umount", "-l", str(target)]
        subprocess.run(words, check=False, capture_output=True, timeout=UNMOUNT_TIMEOUT_S)

"""`lodefs profile` on a real mount, with a job that waits for a store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from lodefs.chunkstore.protocol.wire import Origin
from lodefs.mount.process.mounter import trace_of
from tests.support.lodefs.command_line import Lodefs
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import SAMPLE, Mounts, until

KEYS = {"mountpoint", "repo", "commit", "seconds", "layer", "waiting", "requests",
        "lost_requests", "passthrough_opens", "operations", "reads", "slowest",
        "advice"}  # fmt: skip
STORE_DELAY_S = 0.1
JOB = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
while True:
    for first in range(0, 5_000_000, 1 << 18):
        os.pread(fd, 1 << 18, first)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
"""

pytestmark = pytest.mark.fuse


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[FakeProxy]:
    """One whose store answers late."""

    def late(path: str) -> bytes | None:
        if "/data" in path:
            Event().wait(STORE_DELAY_S)
        return None

    with FakeProxy(SAMPLE, tmp_path) as made:
        made.origin = Origin.STORE
        made.hook = late
        yield made


@pytest.fixture
def mounts(tmp_path: Path, proxy: FakeProxy) -> Iterator[Mounts]:
    """A mount through it."""
    made = Mounts(tmp_path, proxy)
    made.mount()
    yield made
    made.close()


@contextmanager
def job(mounts: Mounts) -> Iterator[subprocess.Popen[bytes]]:
    """A program that reads a file again and again."""
    command = [sys.executable, "-S", "-c", JOB, str(mounts.place / "big")]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def test_job_that_waits_for_the_store(
    mounts: Mounts, lodefs: Lodefs, proxy: FakeProxy, tmp_path: Path
) -> None:
    """The store is named, with the file and the advice; the trace is off again."""
    with job(mounts):
        until(lambda: proxy.requests > 5)
        found = lodefs("profile", str(mounts.place / "deep"), "--seconds", "1.5", "--json").json
        shown = lodefs("profile", str(mounts.place), "--seconds", "0.5").out
    assert found.keys() == KEYS
    assert found["layer"] == "store", found
    assert found["slowest"][0]["path"] == "big"
    assert found["reads"]["sequential_share"] > 0.5
    assert "lodefs warm demo@" in found["advice"][0]
    assert "of the waiting is the store" in shown
    writer = trace_of(str(mounts.place)).writer(1)
    assert writer is not None and not writer.is_on(time.monotonic())


def test_nobody_reads(mounts: Mounts, lodefs: Lodefs) -> None:
    """A mount that nobody uses is said to be so."""
    found = lodefs("profile", str(mounts.place), "--seconds", "0.2", "--json").json
    assert found["advice"] == ["nothing was read through this mount during this time"]
    assert (found["requests"], found["layer"]) == (0, "job")


def test_something_else(lodefs: Lodefs, tmp_path: Path) -> None:
    """What is no lodefs mount, or is not there, is refused with where to look."""
    ran = lodefs("profile", str(tmp_path))
    assert (
        ran.code == 2 and "not in a lodefs mount, but on" in ran.err and "lodefs mounts" in ran.err
    )
    assert lodefs("profile", str(tmp_path / "missing")).code == 3
    assert os.listdir(tmp_path) == []

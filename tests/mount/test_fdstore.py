"""Mounts of a service whose descriptors systemd keeps; here something else does as systemd does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mount import mounter, mounttable
from mount.fdstore import FdStore
from mount.testing.load import Load
from mount.testing.mounts import BIG, SAMPLE, WAIT_S, Mounts, alive, kill, until, workers_of
from mount.testing.server import FakeProxy
from mount.testing.systemd import FakeSystemd

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

SERVICE = """
import sys
from mount.mounter import mount_here
from mount.options import MountOptions
place, proxy, rev, workers = sys.argv[1:]
options = MountOptions(repo="demo", mountpoint=place, proxy=proxy, rev=rev, workers=int(workers))
mount_here(options, lambda mounted: print(mounted.commit, mounted.pid, flush=True))
print("ended", flush=True)
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[FakeSystemd]:
    with FakeSystemd(tmp_path) as made:
        yield made


class Service:
    """A unit that mounts the sample."""

    def __init__(self, systemd: FakeSystemd, mounts: Mounts) -> None:
        self._systemd = systemd
        self._mounts = mounts

    def start(self, rev: str = "main", workers: int = 2) -> subprocess.Popen[str]:
        """Start it, and wait until it is ready."""
        before = self._systemd.ready
        options = self._mounts.options()
        process = self._systemd.start(
            "-c", SERVICE, options.mountpoint, options.proxy, rev, str(workers)
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"{SAMPLE.snapshot.commit} {process.pid}\n"
        until(lambda: self._systemd.ready == before + 1)
        self._mounts.watch(process.pid)
        for pid in workers_of(process.pid):
            self._mounts.watch(pid)
        return process


@pytest.fixture
def service(systemd: FakeSystemd, mounts: Mounts) -> Service:
    return Service(systemd, mounts)


@pytest.mark.parametrize("workers_too", [False, True])
def test_killed_and_started_again(
    service: Service, systemd: FakeSystemd, mounts: Mounts, workers_too: bool
) -> None:
    """The next process goes on with the mount; readers notice nothing, even with all workers
    dead meanwhile."""
    first = service.start()
    mounted = mounttable.on_top(str(mounts.place))
    orphans = workers_of(first.pid)
    # A first close of any file asks the mount (FLUSH). Starting a process while readers have files
    # open closes them in it, which must not wait for the very process that is being started.
    assert (mounts.place / "a").read_bytes() == b"hello"
    with Load(mounts.place / "big", BIG) as load:
        until(load.everyone_read())
        first.kill()
        first.wait(WAIT_S)
        for pid in orphans if workers_too else []:
            kill(pid, signal.SIGKILL)
        stored = systemd.names()
        second = service.start()
        until(load.everyone_read())
    assert load.wrong == []
    assert mounttable.on_top(str(mounts.place)) == mounted
    assert systemd.names() == stored
    assert [m.pid for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)] == [
        second.pid
    ]
    second.terminate()
    assert second.stdout is not None
    assert second.stdout.readline() == "ended\n"
    assert second.wait(WAIT_S) == 0
    assert mounttable.on_top(str(mounts.place)) is None
    until(lambda: systemd.names() == [])


def test_left_and_started_again(service: Service, systemd: FakeSystemd, mounts: Mounts) -> None:
    """SIGUSR2 ends the process without the mount, which the next one goes on with."""
    first = service.start(workers=2)
    with Load(mounts.place / "big", BIG) as load:
        first.send_signal(signal.SIGUSR2)
        assert first.wait(WAIT_S) == 0
        until(load.everyone_read())
        service.start(workers=3)
        until(load.everyone_read())
    assert load.wrong == []


def test_another_revision_is_mounted_anew(
    service: Service, systemd: FakeSystemd, mounts: Mounts
) -> None:
    """A unit that was changed gets what it asks for, not what was kept."""
    first = service.start()
    orphans = workers_of(first.pid)
    first.kill()
    first.wait(WAIT_S)
    second = service.start(rev=SAMPLE.snapshot.commit)
    until(lambda: not any(map(alive, orphans)))
    assert len([m for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)]) == 1
    assert (mounts.place / "a").read_bytes() == b"hello"
    second.terminate()
    until(lambda: systemd.names() == [])


def test_unmounted_while_it_was_down(
    service: Service, systemd: FakeSystemd, mounts: Mounts
) -> None:
    """Descriptors of a mount that is gone are of no use: it is mounted anew."""
    first = service.start()
    first.kill()
    first.wait(WAIT_S)
    mounter.unmount(str(mounts.place))
    service.start()
    assert (mounts.place / "a").read_bytes() == b"hello"


def test_taken_over_by_hand_and_back(
    service: Service, systemd: FakeSystemd, mounts: Mounts
) -> None:
    """When somebody took the mount over, the unit's next process relieves that one."""
    first = service.start()
    with Load(mounts.place / "big", BIG) as load:
        taken = mounts.take_over()
        assert first.wait(WAIT_S) == 0
        until(load.everyone_read())
        second = service.start()
        until(load.everyone_read())
    assert load.wrong == []
    assert taken.pid is not None
    assert [m.pid for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)] == [
        second.pid
    ]


def test_without_systemd_nothing_is_kept(proxy: FakeProxy) -> None:
    """Neither descriptors nor messages, whatever the environment says of another process."""
    assert FdStore({}).recover() is None
    assert FdStore({"LISTEN_FDS": "3", "LISTEN_PID": "1"}).recover() is None
    mine = {"LISTEN_FDS": "many", "LISTEN_PID": str(os.getpid())}
    assert FdStore(mine).recover() is None
    FdStore({}).ready()
    FdStore({}).forget()

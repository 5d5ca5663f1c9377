"""Mounts of a service whose descriptors systemd keeps; here something else does as systemd does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.mount.process import mounter
from lodefs.mount.process.systemd_fdstore import FdStore
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.kernels import DISTINCT
from tests.support.mount.load import Load
from tests.support.mount.mounts import (
    BIG,
    SAMPLE,
    WAIT_S,
    Mounts,
    alive,
    hold_reads,
    kill,
    read_in_thread,
    until,
    workers_of,
)
from tests.support.mount.systemd import FakeSystemd

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

PROMPTLY_S = WAIT_S / 2  # much longer than a worker takes that is looked after
HANGS_S = 5.0  # so long a worker does nothing until it is replaced

SERVICE = """
import sys
import msgspec
from lodefs.mount.process.mounter import mount_here
from lodefs.mount.options import MountOptions
options = msgspec.json.decode(sys.argv[1], type=MountOptions)
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

    def start(self, rev: str = "main", workers: int = 2, **more: object) -> subprocess.Popen[str]:
        """Start it, and wait until it is ready."""
        before = self._systemd.ready
        options = self._mounts.options(rev=rev, workers=workers, **more)
        process = self._systemd.start("-c", SERVICE, msgspec.json.encode(options).decode())
        assert process.stdout is not None
        assert process.stdout.readline() == f"{SAMPLE.snapshot.commit} {process.pid}\n"
        until(lambda: self._systemd.ready == before + 1)
        self._mounts.watch(process.pid)
        for pid in workers_of(process.pid):
            self._mounts.watch(pid)
        return process

    def end(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Have it end, and wait for that."""
        process.send_signal(number)
        process.wait(WAIT_S)


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
    mounted = mount_table.on_top(str(mounts.place))
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
    assert mount_table.on_top(str(mounts.place)) == mounted
    assert systemd.names() == stored
    assert [m.pid for m in mounter.list_mounts() if m.mountpoint == str(mounts.place)] == [
        second.pid
    ]
    second.terminate()
    assert second.stdout is not None
    assert second.stdout.readline() == "ended\n"
    assert second.wait(WAIT_S) == 0
    assert mount_table.on_top(str(mounts.place)) is None
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


def test_ended_while_it_starts(systemd: FakeSystemd, mounts: Mounts, proxy: FakeProxy) -> None:
    """SIGTERM ends a service whose mount is still being made, though what holds it is kept."""
    came, go = hold_reads(proxy, reads=100, where="/children")
    process = systemd.start("-c", SERVICE, msgspec.json.encode(mounts.options()).decode())
    assert came.wait(WAIT_S)
    process.terminate()
    process.wait(PROMPTLY_S)
    go.set()
    assert mount_table.on_top(str(mounts.place)) is None
    assert systemd.ready == 0


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


@pytest.mark.parametrize("rev", ["main", SAMPLE.snapshot.commit])
def test_taken_off_its_directory_while_in_use(
    service: Service, systemd: FakeSystemd, mounts: Mounts, rev: str
) -> None:
    """Descriptors of a mount that is out of sight are no mount: it is mounted anew, whether its
    file was changed or not, and who uses the old one reads on."""
    first = service.start()
    old = mount_table.on_top(str(mounts.place))
    assert (mounts.place / "a").read_bytes() == b"hello"
    fd = os.open(mounts.place / "big", os.O_RDONLY)
    mount_syscalls.detach(str(mounts.place), lazy=True)
    first.kill()
    first.wait(WAIT_S)
    service.start(rev=rev)
    new = mount_table.on_top(str(mounts.place))
    assert new is not None
    assert new != old
    assert (mounts.place / "a").read_bytes() == b"hello"
    assert os.pread(fd, 1000, 4_000_000) == BIG[4_000_000:4_001_000]
    os.close(fd)
    assert systemd.names().count("lodefs-job") == 1


def test_another_mount_has_the_directory(
    service: Service, systemd: FakeSystemd, mounts: Mounts
) -> None:
    """Whose mount was taken off, while somebody else mounted the same there, is not ready, and
    leaves that one alone."""
    first = service.start()
    assert (mounts.place / "a").read_bytes() == b"hello"
    fd = os.open(mounts.place / "big", os.O_RDONLY)
    mount_syscalls.detach(str(mounts.place), lazy=True)
    first.kill()
    first.wait(WAIT_S)
    mounts.mount()
    other = mount_table.on_top(str(mounts.place))
    ready = systemd.ready
    second = systemd.start("-c", SERVICE, msgspec.json.encode(mounts.options()).decode())
    assert second.wait(WAIT_S) != 0
    assert systemd.ready == ready
    assert mount_table.on_top(str(mounts.place)) == other
    assert (mounts.place / "a").read_bytes() == b"hello"
    os.close(fd)


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


@pytest.mark.parametrize("kernel", DISTINCT, indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_worker_leaves_no_reader_behind(
    service: Service, mounts: Mounts, proxy: FakeProxy, number: signal.Signals
) -> None:
    """Where requests are not sent again, those of a dead worker fail although systemd keeps
    descriptors; the mount goes on."""
    process = service.start(hang_margin_s=HANGS_S - WAIT_S)
    came, go = hold_reads(proxy)
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    before = workers_of(process.pid)
    for pid in before:
        kill(pid, number)
    try:
        thread.join(PROMPTLY_S)
        ended = not thread.is_alive()
    finally:
        go.set()
        if thread.is_alive():
            mount_syscalls.detach(str(mounts.place), lazy=True, abort=True)
    assert ended
    # The kernel may have asked again for the page itself, which had been part of a read-ahead.
    assert isinstance(result[0], OSError) or result == [b"hello"]
    until(lambda: not set(before) & set(workers_of(process.pid)))  # one that dies may take more
    assert (mounts.place / "a").read_bytes() == b"hello"
    assert (mounts.place / "big").read_bytes() == BIG
    until(lambda: len(workers_of(process.pid)) == len(before))


@pytest.mark.parametrize("kernel", DISTINCT, indirect=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2])
def test_killed_or_left_without_resend_and_started_again(
    service: Service, mounts: Mounts, proxy: FakeProxy, number: signal.Signals
) -> None:
    """Where requests are not sent again, the next process goes on with the mount too, twice: what
    was being read fails, files that are open can be read on."""
    service.end(service.start(), number)
    first = service.start()
    mounted = mount_table.on_top(str(mounts.place))
    assert (mounts.place / "empty").read_bytes() == b""  # as above: a close that asks the mount
    fd = os.open(mounts.place / "big", os.O_RDONLY)
    came, go = hold_reads(proxy)
    thread, result = read_in_thread(mounts.place / "a")
    assert came.wait(WAIT_S)
    service.end(first, number)
    service.start()
    try:
        thread.join(PROMPTLY_S)
        ended = not thread.is_alive()
    finally:
        go.set()
        if thread.is_alive():
            mount_syscalls.detach(str(mounts.place), lazy=True, abort=True)
    assert ended
    assert isinstance(result[0], OSError) or result == [b"hello"]
    assert mount_table.on_top(str(mounts.place)) == mounted
    assert os.pread(fd, 1000, 4_000_000) == BIG[4_000_000:4_001_000]
    os.close(fd)


def test_without_systemd_nothing_is_kept(proxy: FakeProxy) -> None:
    """Neither descriptors nor messages, whatever the environment says of another process."""
    assert FdStore({}).recover() is None
    assert FdStore({"LISTEN_FDS": "3", "LISTEN_PID": "1"}).recover() is None
    mine = {"LISTEN_FDS": "many", "LISTEN_PID": str(os.getpid())}
    assert FdStore(mine).recover() is None
    FdStore({}).ready()
    FdStore({}).forget()

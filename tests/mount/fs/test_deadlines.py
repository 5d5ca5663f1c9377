"""Reads that wait for a proxy which does not answer: killed readers, unmounting, time limits."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from threading import Event

import pytest

from lodefs.mount.kernel import mount_table
from lodefs.mount.process import mounter
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import BIG, WAIT_S, Mounts, hold_reads, kernel_since, kill, until

pytestmark = [pytest.mark.fuse, pytest.mark.slow]

AS_OLD_ONES = pytest.mark.parametrize("kernel", ["this one", "rhel9-5.14"], indirect=True)

LONG_S = 3000.0  # a time limit that no test waits for

READ = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | (os.O_DIRECT if sys.argv[3] == "direct" else 0))
print("begun", flush=True)
os.write(1, b"%r" % os.pread(fd, 5, int(sys.argv[2])))
"""
STAT = "import os, sys; print('begun', flush=True); os.stat(sys.argv[1])"
LIST = "import os, sys; print('begun', flush=True); os.listdir(sys.argv[1])"
PATIENT = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
""" + READ  # fmt: skip


class Readers:
    """Processes of applications, which are gone when the test is over."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, script: str, *words: object) -> subprocess.Popen[str]:
        """One, which has begun."""
        process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, words)], stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    def end(self) -> None:
        """Kill all: each ends although its request is not answered."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(WAIT_S)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.end()


class Stuck:
    """A mount whose proxy is silent at ``where``; ``asked`` counts what it was asked there."""

    def __init__(self, mounts: Mounts, proxy: FakeProxy, where: str = "/data") -> None:
        self.go = Event()
        self.asked = 0
        self.mounted = mounts.mount(read_timeout_s=LONG_S, workers=2, threads=2)

        def hook(path: str) -> None:
            if where in path:
                self.asked += 1
                self.go.wait(2 * WAIT_S)

        proxy.hook = hook


@AS_OLD_ONES
@pytest.mark.parametrize(
    ("script", "words", "where"),
    [
        (READ, ("a", 0, "cached"), "/data"),
        (READ, ("a", 0, "direct"), "/data"),
        (STAT, ("deep/er",), "/lookup"),
        (LIST, ("many",), "/children"),
    ],
)
def test_killed_reader_ends_at_once(
    mounts: Mounts,
    proxy: FakeProxy,
    readers: Readers,
    script: str,
    words: tuple[object, ...],
    where: str,
) -> None:
    """SIGKILL ends a process that waits for an answer, long before the answer's time limit."""
    stuck = Stuck(mounts, proxy, where)
    process = readers.start(script, mounts.place / str(words[0]), *words[1:])
    until(lambda: stuck.asked > 0)
    process.kill()
    assert process.wait(WAIT_S) == -signal.SIGKILL
    stuck.go.set()
    assert (mounts.place / "a").read_bytes() == b"hello"


def test_killed_readers_beyond_all_threads(
    mounts: Mounts, proxy: FakeProxy, readers: Readers
) -> None:
    """Also when every thread of every worker waits, and more readers than these."""
    stuck = Stuck(mounts, proxy)
    for number in range(12):
        readers.start(READ, mounts.place / "big", 300_000 * number, "direct")
    until(lambda: stuck.asked >= 4)
    readers.end()
    stuck.go.set()
    assert (mounts.place / "big").read_bytes() == BIG


def test_a_killed_reader_frees_its_thread(
    mounts: Mounts, proxy: FakeProxy, readers: Readers
) -> None:
    """Threads that waited for killed readers answer others, while the proxy is still stuck."""
    stuck = Stuck(mounts, proxy)
    for number in range(12):
        readers.start(READ, mounts.place / "big", 300_000 * number, "direct")
    until(lambda: stuck.asked >= 4)
    readers.end()
    assert len(os.listdir(mounts.place / "many")) == 5000
    stuck.go.set()


def test_other_signals_interrupt_nothing(
    mounts: Mounts, proxy: FakeProxy, readers: Readers
) -> None:
    """A signal with a handler does not make a read fail; one that kills is honoured after it."""
    stuck = Stuck(mounts, proxy)
    patient = readers.start(PATIENT, mounts.place / "a", 0, "direct")
    killed = readers.start(PATIENT, mounts.place / "big", 1000, "direct")
    until(lambda: stuck.asked == 2)
    for process in (patient, killed):
        process.send_signal(signal.SIGUSR1)
    killed.send_signal(signal.SIGTERM)
    assert killed.wait(WAIT_S) == -signal.SIGTERM
    assert patient.poll() is None
    stuck.go.set()
    assert patient.stdout is not None
    assert patient.stdout.readline() == "b'hello'"
    assert patient.wait(WAIT_S) == 0


def test_killed_after_a_worker_was_replaced(
    mounts: Mounts, proxy: FakeProxy, readers: Readers
) -> None:
    """A request that was sent again to another worker can be interrupted there."""
    if not kernel_since(6, 9):
        return
    stuck = Stuck(mounts, proxy)
    process = readers.start(READ, mounts.place / "a", 0, "direct")
    until(lambda: stuck.asked == 1)
    mounts.take_over()
    until(lambda: stuck.asked >= 2)
    process.kill()
    assert process.wait(WAIT_S) == -signal.SIGKILL
    stuck.go.set()


@AS_OLD_ONES
@pytest.mark.parametrize("how", ["umount", "umount -l", "lodefs"])
def test_unmounting_with_a_stuck_proxy(
    mounts: Mounts, proxy: FakeProxy, readers: Readers, how: str
) -> None:
    """All ways to unmount work while all threads wait, and the mount's process ends."""
    stuck = Stuck(mounts, proxy)
    for number in range(8):
        readers.start(READ, mounts.place / "big", 300_000 * number, "direct")
    until(lambda: stuck.asked >= 4)
    if how == "umount":
        busy = subprocess.run(
            [how, str(mounts.place)], capture_output=True, timeout=WAIT_S, check=False
        )
        assert b"busy" in busy.stderr
        readers.end()
    if how == "lodefs":
        assert mounter.unmount(str(mounts.place)).lazy
    else:
        subprocess.run([*how.split(), str(mounts.place)], check=True, timeout=WAIT_S)
    assert mount_table.on_top(str(mounts.place)) is None
    readers.end()
    mounts.wait_for_end()
    stuck.go.set()


def test_listing_mounts_with_a_stuck_proxy(
    mounts: Mounts, proxy: FakeProxy, readers: Readers
) -> None:
    """Who answers for a mount is told although no thread of it is free."""
    stuck = Stuck(mounts, proxy)
    for number in range(8):
        readers.start(READ, mounts.place / "big", 300_000 * number, "direct")
    until(lambda: stuck.asked >= 4)
    assert stuck.mounted in mounter.list_mounts()
    stuck.go.set()


def test_reads_beyond_all_threads_end_in_time(mounts: Mounts, proxy: FakeProxy) -> None:
    """The time limit runs for requests, too, that no thread can take: all end with EIO."""
    mounts.mount(read_timeout_s=5.0, workers=1, threads=1)
    _, go = hold_reads(proxy, reads=1000)
    script = """
import errno, os, sys
from threading import Thread
def read(number):
    fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
    try:
        os.pread(fd, 5, 1000 * number)
    except OSError as error:
        codes.append(error.errno)
codes = []
threads = [Thread(target=read, args=(number,)) for number in range(40)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(codes == [errno.EIO] * 40)
"""
    # One after the other they would take 200 seconds.
    done = subprocess.run(
        [sys.executable, "-c", script, str(mounts.place / "big")],
        capture_output=True, text=True, timeout=2 * WAIT_S, check=True,
    )  # fmt: skip
    assert done.stdout == "True\n"
    go.set()


def test_proxy_restarted_under_load(mounts: Mounts, proxy: FakeProxy) -> None:
    """Reads wait for a proxy that is restarted again and again, and notice nothing."""
    from tests.support.mount.load import Load

    mounts.mount()
    with Load(mounts.place / "big", BIG) as load:
        for _ in range(5):
            until(load.everyone_read())
            proxy.stop()
            proxy.start()
        until(load.everyone_read())
    assert load.wrong == []


def test_interrupts_leave_the_log_alone(mounts: Mounts, proxy: FakeProxy, readers: Readers) -> None:
    """A reader that was killed is no failure."""
    stuck = Stuck(mounts, proxy)
    process = readers.start(READ, mounts.place / "a", 0, "direct")
    until(lambda: stuck.asked > 0)
    process.kill()
    process.wait(WAIT_S)
    stuck.go.set()
    kill(stuck.mounted.pid, signal.SIGTERM)
    mounts.wait_for_end()
    assert "READ" not in mounts.log.read_text()
    assert errno.errorcode[errno.EINTR] not in mounts.log.read_text()

"""When a worker counts as hanging."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from lodefs.mount.process import worker_place
from lodefs.mount.process.worker_place import WorkerPlace

HANG_S = 5.0


@pytest.fixture
def place() -> Iterator[WorkerPlace]:
    """With a process that does nothing, and two threads' marks."""
    with subprocess.Popen(["sleep", "600"]) as child:
        (made,) = worker_place.make(1, 2, -1, [])
        made.pid, made.pid_fd = child.pid, os.pidfd_open(child.pid)
        yield made
        child.kill()
        os.close(made.pid_fd)


def send(place: WorkerPlace, number: signal.Signals, seen: int) -> None:
    """Send a signal, and wait until it has had its effect."""
    os.kill(place.pid, number)
    os.waitid(os.P_PID, place.pid, seen | os.WNOWAIT)


def test_a_thread_that_is_busy_for_too_long(place: WorkerPlace) -> None:
    """One is enough; a thread that waits does not count, however long."""
    assert not place.hangs(100.0, HANG_S)
    place.marks[1] = 100.0
    assert not place.hangs(105.0, HANG_S)
    assert place.hangs(105.1, HANG_S)
    place.was_killed()
    assert not place.hangs(105.2, HANG_S)


def test_stopped_for_too_long(place: WorkerPlace) -> None:
    """A worker that does nothing hangs if it is stopped for so long without a break."""
    send(place, signal.SIGSTOP, os.WSTOPPED)
    assert not place.hangs(100.0, HANG_S)
    send(place, signal.SIGCONT, os.WCONTINUED)
    assert not place.hangs(104.0, HANG_S)
    send(place, signal.SIGSTOP, os.WSTOPPED)
    assert not place.hangs(108.0, HANG_S)
    assert not place.hangs(113.0, HANG_S)
    assert place.hangs(113.1, HANG_S)


def test_an_ended_process_does_not_hang(place: WorkerPlace) -> None:
    """It is reaped for another reason, whatever state it was in before."""
    send(place, signal.SIGSTOP, os.WSTOPPED)
    assert not place.hangs(100.0, HANG_S)
    send(place, signal.SIGKILL, os.WEXITED)
    assert not place.hangs(200.0, HANG_S)

"""Who leads while a disk is read, on a device that a test holds the other end of."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock, Thread

import pytest

from lodefs.mount.fs import device_lead
from lodefs.mount.fs.device_lead import CurrentRequest, DeviceTurn, DiskWatch
from lodefs.mount.fs.pending_requests import PendingRequests
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.kernel.fuse_abi import Opcode
from tests.support.mount.kernel import FakeKernel
from tests.support.mount.mounts import until

UNIQUE = 8


class Worker:
    """One thread that leads and has a request, with what its worker shares."""

    def __init__(self) -> None:
        self.kernel = FakeKernel()
        self.now_s = 100.0
        self.pending = PendingRequests(4, is_doomed=lambda _pid: True)
        self.watch = DiskWatch(self.kernel.device, self.pending, lambda: self.now_s)
        self.lock = Lock()
        self.turn = DeviceTurn(self.lock)
        self.request = CurrentRequest(self.turn, self.pending, self.watch)
        self.begin()

    def begin(self) -> None:
        self.turn.acquire()
        header = fuse_abi.IN_HEADER.pack(
            fuse_abi.IN_HEADER_BYTES, Opcode.READ, UNIQUE, 1, 0, 0, 1, 0, 0
        )
        self.request.message = memoryview(header)

    def close(self) -> None:
        self.watch.close()
        self.kernel.close()
        self.kernel.release()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(device_lead, "DISK_PATIENCE_S", 60.0)  # no disk is slow unless a test says
    made = Worker()
    yield made
    made.close()


def test_the_lead_is_kept_for_a_short_read(worker: Worker) -> None:
    """A read from the disk that nobody waits behind wakes no thread, and is no waiting request."""
    for _ in range(3):
        worker.request.disk()
        assert worker.turn.is_held
        assert worker.pending.interrupt(UNIQUE) is None
        worker.request.done()


def test_the_lead_is_passed_on_if_a_request_waits(worker: Worker) -> None:
    """A request in the device, or in the queue, is left to another thread before the disk is
    read."""
    worker.kernel.send(Opcode.STATFS, 1)
    worker.request.disk()
    assert not worker.turn.is_held
    assert worker.lock.acquire(blocking=False)
    assert worker.pending.interrupt(UNIQUE) is True


def test_the_lead_is_passed_on_behind_a_queue(worker: Worker) -> None:
    """Requests that were queued before are not held up by a disk."""
    worker.pending.put(bytes(worker.request.message), 0.0)
    worker.request.disk()
    assert not worker.turn.is_held


def test_a_slow_disk_loses_the_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that lasts is entered among those that wait, and can be interrupted; others lead. The
    disk counts as slow for a while."""
    monkeypatch.setattr(device_lead, "DISK_PATIENCE_S", 0.001)
    worker = Worker()
    worker.request.disk()
    until(lambda: worker.lock.acquire(blocking=False))
    assert not worker.turn.is_held
    until(lambda: worker.pending.interrupt(UNIQUE) is True)
    assert worker.request.cancelled
    worker.request.done()
    worker.lock.release()
    worker.begin()
    monkeypatch.setattr(device_lead, "DISK_PATIENCE_S", 60.0)
    worker.request.disk()
    assert not worker.turn.is_held
    worker.request.done()
    worker.now_s += 2 * device_lead.EAGER_S
    worker.begin()
    worker.request.disk()
    assert worker.turn.is_held
    worker.request.done()
    worker.close()


def test_waiting_after_the_disk_passes_the_lead_on(worker: Worker) -> None:
    """If the disk did not have the bytes and the proxy is asked, another thread leads."""
    worker.request.disk()
    worker.request()
    assert not worker.turn.is_held
    assert worker.pending.interrupt(UNIQUE) is True


def test_reads_are_watched_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watch rests while no disk is read, and begins again with the next read."""
    monkeypatch.setattr(device_lead, "DISK_PATIENCE_S", 0.0)
    monkeypatch.setattr(device_lead, "IDLE_TICKS_MAX", 2)
    worker = Worker()
    for _ in range(3):
        worker.request.disk()
        worker.request.done()
        until(lambda: not worker.watch.is_watching)
        worker.now_s += 2 * device_lead.EAGER_S
        worker.begin()
    worker.request.disk()
    until(lambda: not worker.turn.is_held)
    worker.request.done()
    worker.close()


def test_without_room_for_a_thread_the_lead_is_passed_on(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that nobody can watch is treated as a slow one."""

    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    worker.request.disk()
    assert not worker.turn.is_held

"""The lead of a worker's threads: the thread that has it waits on the device.

Passing the lead on wakes another thread, which can cost as much as the read from the disk itself.
A thread that reads from a disk therefore keeps the lead while no request waits. If requests wait,
or a read takes longer than DISK_PATIENCE_S (then the thread of ``DiskWatch`` passes the lead on),
every read from the disk passes the lead on first, for EAGER_S.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Protocol

from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.mount.fs.pending_requests import PendingRequests, Waiting
from lodefs.mount.kernel import fuse_abi
from lodefs.mount.shm.traffic_counters import Count, ignore_count

DISK_PATIENCE_S = 0.005  # for a read from the disk by the thread with the lead
EAGER_S = 0.1  # for this long after a long read, each read passes the lead on
IDLE_TICKS_MAX = 200  # periods without a read from the disk, after which the watch stops


class BeforeBlocking(Protocol):
    """The calls that a reader makes before it waits."""

    def __call__(self) -> None:
        """Says that the next step may take long."""
        ...

    def disk(self) -> None:
        """Says that the next step is a read from a disk, mostly a short one."""
        ...

    @property
    def user(self) -> int:
        """The user whose request it is; 0 if it is unknown."""
        ...

    @property
    def pid(self) -> int:
        """The thread that asks, in the mount's process namespace; 0 if it is unknown."""
        ...


class DeviceTurn:
    """The right to wait on the device, held by one thread at a time. ``follow`` makes sure that
    another thread can take it; False if that must be tried again."""

    def __init__(self, lock: Lock, follow: Callable[[], bool] = lambda: True) -> None:
        self._lock = lock
        self.is_held = False
        self._follow = follow
        self._followed = False

    def acquire(self) -> None:
        """Waits until this thread leads."""
        if not self.is_held:
            self._lock.acquire()
            self.is_held = True

    def release(self) -> None:
        """Lets another thread lead; does nothing in a thread that does not lead."""
        if self.is_held:
            self.is_held = False
            self._lock.release()
            if not self._followed:
                self._followed = self._follow()


class DiskWatch:
    """Watches the thread of one worker that reads from a disk and keeps the lead of ``fd``."""

    def __init__(
        self, fd: int, pending: PendingRequests, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pending = pending
        self._clock = clock
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._lock = Lock()
        self._request: CurrentRequest | None = None
        self._reads = 0
        self._eager_until_s = 0.0
        self._wanted = Event()
        self.is_watching = False
        self._is_started = False
        self._over = Event()

    def begin(self, request: CurrentRequest) -> bool:
        """Whether the thread of ``request`` may keep the lead during a read from the disk."""
        now_s = self._clock()
        if now_s < self._eager_until_s:
            return False
        if self._pending.queue or self._poll.poll(0):
            self._eager_until_s = now_s + EAGER_S
            return False
        with self._lock:
            if not self.is_watching and not self._watch():
                return False
            self._request = request
            self._reads += 1
        return True

    def end(self) -> None:
        """The disk has answered."""
        with self._lock:
            self._request = None

    def close(self) -> None:
        """Stops the watch at the end of the connection."""
        self.end()
        self._over.set()
        self._wanted.set()

    def _watch(self) -> bool:
        if not self._is_started:
            try:
                Thread(target=self._run, name="fuse-disk", daemon=True).start()
            except RuntimeError:  # the system cannot start a thread now
                return False
            self._is_started = True
        self.is_watching = True
        self._wanted.set()
        return True

    def _run(self) -> None:
        while self._wanted.wait() and not self._over.is_set():
            self._wanted.clear()
            seen, idle = -1, 0
            while idle < IDLE_TICKS_MAX and not self._over.is_set():
                time.sleep(DISK_PATIENCE_S)  # Event.wait would take more processor time
                idle = idle + 1 if seen == self._reads else 0
                seen = self._look(seen)
            with self._lock:
                self.is_watching = seen != self._reads
                if self.is_watching or self._over.is_set():
                    self._wanted.set()

    def _look(self, seen: int) -> int:
        """Passes the lead on if the read that was ``seen`` still lasts. Returns the latest read."""
        with self._lock:
            if self._request is not None and self._reads == seen:
                self._request.pass_on()
                self._request = None
                self._eager_until_s = self._clock() + EAGER_S
            return self._reads


class CurrentRequest:
    """One thread's request. It is entered among the waiting ones when it first has to wait. The
    thread's reader calls it before it waits (``BeforeBlocking``)."""

    def __init__(
        self,
        turn: DeviceTurn,
        pending: PendingRequests,
        disk_watch: DiskWatch,
        count: Count = ignore_count,
    ) -> None:
        self.turn = turn
        self._pending = pending
        self._disk_watch = disk_watch
        self._count = count
        self._is_watched = False
        self._entered = 0
        self._waiting: Waiting | None = None
        self._cancel: Callable[[], None] = lambda: None
        self.message = memoryview(b"")
        self.cancelled = False

    def __call__(self) -> None:
        """Says that the next step may take long."""
        self._end_watch()
        self.pass_on()

    def disk(self) -> None:
        """Says that the next step is a read from a disk: keeps the lead if nobody needs it."""
        self._end_watch()
        if self.turn.is_held and self._disk_watch.begin(self):
            self._is_watched = True
        else:
            self.pass_on()

    @property
    def user(self) -> int:
        """See BeforeBlocking."""
        if not self.message:
            return 0
        _, _, _, _, uid, *_ = fuse_abi.IN_HEADER.unpack_from(self.message)
        return int(uid)

    @property
    def pid(self) -> int:
        """See BeforeBlocking."""
        if not self.message:
            return 0
        (pid,) = fuse_abi.IN_HEADER_PID.unpack_from(self.message, fuse_abi.IN_HEADER_PID_OFFSET)
        return int(pid)

    def pass_on(self) -> None:
        """Enters the request among the waiting ones, and lets another thread lead. Called by this
        thread, or by the watch of its read from the disk."""
        if self._waiting is None and self.message:
            _, _, self._entered, _, _, _, pid, *_ = fuse_abi.IN_HEADER.unpack_from(self.message)
            self.cancelled = False
            self._waiting = self._pending.enter(self._entered, pid, self.cancel)
            self._count(Column.WAITING, 1)
        self.turn.release()

    def _end_watch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._disk_watch.end()

    def ends_with(self, cancel: Callable[[], None]) -> None:
        """Sets the function that ends the wait."""
        self._cancel = cancel

    def cancel(self) -> None:
        """Says, from another thread, that this answer is not wanted any more."""
        self.cancelled = True
        self._cancel()

    def done(self) -> None:
        """Says that the request is answered."""
        self._end_watch()
        if self._waiting is not None:
            self._pending.leave(self._entered, self._waiting)
            self._entered, self._waiting = 0, None
            self._count(Column.WAITING, -1)
            self.cancelled = False

"""The waiting requests of one worker: in a thread for the proxy, or in a queue for a thread.

While a thread is free, requests wait in the kernel until it takes them. When all threads of all
workers wait, requests are queued here, so that their time limit runs, interrupts are read, and the
end of the connection is seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition
from typing import NamedTuple

import msgspec

from lodefs.mount.fs.interrupts import doomed
from lodefs.mount.kernel import fuse_abi

QUEUE_REQUESTS_MAX = 4096


class Waiting(msgspec.Struct, frozen=True, eq=False):
    """A waiting request; its identity distinguishes it from one that was sent again."""

    pid: int
    cancel: Callable[[], None]


class Queued(NamedTuple):
    """A request that has waited for a thread since ``since_s``."""

    message: bytes
    since_s: float
    waiting: Waiting


class PendingRequests:
    """Shared by the threads of one worker; ``threads``: their number.

    ``is_doomed``: whether the thread of an application, given by its number, was killed.
    """

    def __init__(
        self,
        threads: int,
        *,
        is_doomed: Callable[[int], bool] = doomed,
        queue_requests_max: int = QUEUE_REQUESTS_MAX,
    ) -> None:
        self._threads = threads
        self._is_doomed = is_doomed
        self._queue_requests_max = queue_requests_max
        self._changed = Condition()
        self._known: dict[
            int, Waiting
        ] = {}  # by unique number, without the bit for repeated requests
        self._busy = 0
        self._over = False
        self.queue: deque[Queued] = deque()  # read without the lock to see whether it is empty

    def enter(self, unique: int, pid: int, cancel: Callable[[], None]) -> Waiting:
        """Enters a request that a thread begins to wait with; ``cancel`` ends the wait, unanswered.

        A thread that waits with the same request, which was sent again, becomes free.
        """
        waiting = Waiting(pid, cancel)
        with self._changed:
            self._know(unique, waiting)
            self._busy += 1
            if self._busy >= self._threads:
                self._changed.notify_all()
        return waiting

    def leave(self, unique: int, waiting: Waiting) -> None:
        """Removes a request that the thread has done."""
        with self._changed:
            if self._known.get(unique & ~fuse_abi.UNIQUE_RESEND) is waiting:
                del self._known[unique & ~fuse_abi.UNIQUE_RESEND]
            if self._busy >= self._threads:  # otherwise nobody waits for this
                self._changed.notify_all()
            self._busy -= 1

    def put(self, message: bytes, since_s: float) -> None:
        """Queues a request for the next free thread."""
        _, _, unique, _, _, _, pid, *_ = fuse_abi.IN_HEADER.unpack_from(message)
        with self._changed:
            queued = Queued(message, since_s, Waiting(pid, lambda: None))
            self._know(unique, queued.waiting)
            self.queue.append(queued)

    def take(self) -> Queued | None:
        """Returns the oldest queued request that is still wanted; None without one."""
        with self._changed:
            while self.queue:
                found = self.queue.popleft()
                key = fuse_abi.IN_HEADER.unpack_from(found.message)[2] & ~fuse_abi.UNIQUE_RESEND
                if self._known.get(key) is found.waiting:
                    del self._known[key]
                    return found
        return None

    def interrupt(self, unique: int) -> bool | None:
        """Lets go of a request whose reader was killed: True, and the caller must answer it.

        False if its reader lives; None if no such request waits here.
        """
        key = unique & ~fuse_abi.UNIQUE_RESEND
        with self._changed:
            found = self._known.get(key)
        if found is None:
            return None
        if not self._is_doomed(found.pid):
            return False
        with self._changed:
            if self._known.get(key) is not found:
                return None
            del self._known[key]
            found.cancel()
        return True

    def end(self) -> None:
        """Ends all waiting at the end of the connection."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait_until_full(self) -> bool:
        """Waits until all threads wait and the queue has room; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._full())
            return not self._over

    def stays_full(self, seconds: float) -> bool:
        """Whether no thread becomes free for a while."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._over or not self._full(), seconds)

    def _know(self, unique: int, waiting: Waiting) -> None:
        before = self._known.get(unique & ~fuse_abi.UNIQUE_RESEND)
        self._known[unique & ~fuse_abi.UNIQUE_RESEND] = waiting
        if before is not None:
            before.cancel()

    def _full(self) -> bool:
        return self._busy >= self._threads and len(self.queue) < self._queue_requests_max

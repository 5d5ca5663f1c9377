"""Limits the time of a whole transfer, whatever the other side does.

A socket's own timeout restarts with every byte, so a body that trickles never ends. The watchdog
closes the connection from another thread instead, and the transfer fails at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic


class Transfer:
    """One operation under way. ``expired``: it failed because its time was over."""

    __slots__ = ("_cancel", "ends_at", "expired")

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.expired = False
        self._cancel: Callable[[], None] | None = None

    def cancel_by(self, cancel: Callable[[], None]) -> None:
        """Sets ``cancel``, which makes the operation fail. It is called once; at once if time is
        over."""
        self._cancel = cancel
        if self.expired:
            cancel()

    def expire(self) -> None:
        """Ends the operation, since its time is over."""
        self.expired = True
        if self._cancel is not None:
            self._cancel()


class Watchdog:
    """Ends transfers whose time is over, in one thread that the first transfer starts."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._active: set[Transfer] = set()  # one for each operation under way
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wakes_at: float | None = None  # None: asleep until a transfer begins
        self._closed = False

    @contextmanager
    def watch(self, timeout_s: float | None = None) -> Iterator[Transfer]:
        """Watches one operation, and never cancels it after the block. ``timeout_s`` replaces the
        usual time if it is shorter."""
        timeout_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        transfer = Transfer(self._clock() + timeout_s)
        with self._changed:
            self._active.add(transfer)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="lodefs-deadlines", daemon=True
                )
                self._thread.start()
            elif self._wakes_at is None or transfer.ends_at < self._wakes_at:
                self._changed.notify()
        try:
            yield transfer
        finally:
            with self._changed:  # not while the thread cancels it
                self._active.discard(transfer)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def expire_due(self) -> float | None:
        """Cancels the transfers whose time is over. Returns when the next one's is, or None.

        The thread calls it with its lock held; only tests call it directly.
        """
        now = self._clock()
        for transfer in [one for one in self._active if one.ends_at <= now]:
            self._active.discard(transfer)
            transfer.expire()
        return min((one.ends_at for one in self._active), default=None)

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._wakes_at = self.expire_due()
                wait_s = None if self._wakes_at is None else self._wakes_at - self._clock()
                self._changed.wait(wait_s)

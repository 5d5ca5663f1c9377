"""Work whose callers wait only as long as they have time.

Each piece of work runs in a thread of its own. Callers that ask for work that is under way join it.
A caller that has waited too long gets LateError, and the work continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from lodefs.chunkstore.errors import DeadlineExceeded, Unavailable

CALLS_MAX = 1024  # threads
_log = logging.getLogger("lodefs.mounts")

T = TypeVar("T")


class LateError(DeadlineExceeded):
    """The work is not done in the caller's time, and continues. Work itself never raises this."""


class _Call(Generic[T]):
    """One piece of work. The lock of its Calls guards its fields."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.waiting = 0
        self.result: T | None = None
        self.error: BaseException | None = None


class Calls:
    """All work under way, by key."""

    def __init__(self, calls_max: int = CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Call[object]] = {}
        self._mending = 0  # works that run ``late`` after their callers have gone
        self._idle = threading.Condition(self._lock)

    def run(
        self,
        key: Hashable,
        work: Callable[[], T],
        timeout_s: float,
        late: Callable[[T], None] = lambda _result: None,
    ) -> T:
        """Returns the result of ``work``, or its error. ``late`` gets a result that nobody waited
        for.

        The first of several callers with one ``key`` has its work done for all. Raises: LateError
        after ``timeout_s``; Unavailable if too much is under way.
        """
        call = self._join(key, work, late, waiting=1)
        call.done.wait(timeout_s)
        with self._lock:
            call.waiting -= 1
            if not call.done.is_set():
                raise LateError(
                    f"the work is not done after {timeout_s:g} s, and continues; try again"
                )
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]  # the key decides the type

    def is_wanted(self, key: Hashable) -> bool:
        """Whether somebody still waits for the work with a key."""
        with self._lock:
            call = self._running.get(key)
            return call is not None and call.waiting > 0

    def begin(self, key: Hashable, work: Callable[[], object]) -> None:
        """Starts work without waiting, unless it is already under way. Raises: Unavailable."""
        self._join(key, work, lambda _result: None, waiting=0)

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until nothing is under way; False if something still is."""
        with self._lock:
            return self._idle.wait_for(lambda: not self._running and not self._mending, timeout_s)

    def _join(
        self,
        key: Hashable,
        work: Callable[[], T],
        late: Callable[[T], None],
        waiting: int,
    ) -> _Call[T]:
        with self._lock:
            there = self._running.get(key)
            if there is not None:
                there.waiting += waiting
                return there  # type: ignore[return-value]  # the same key means the same work
            if len(self._running) >= self._calls_max:
                raise Unavailable(f"{self._calls_max} calls are under way; try again")
            call: _Call[T] = _Call()
            call.waiting = waiting
            self._running[key] = call  # type: ignore[assignment]
        thread = threading.Thread(
            target=self._work, args=(key, call, work, late), name="lodefs-call", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            with self._lock:
                del self._running[key]
            call.error = Unavailable(f"no thread can be started: {error}")
            call.done.set()  # for callers that joined meanwhile
            raise Unavailable(f"no thread can be started: {error}") from error
        return call

    def _work(
        self,
        key: Hashable,
        call: _Call[T],
        work: Callable[[], T],
        late: Callable[[T], None],
    ) -> None:
        try:
            call.result = work()
        except BaseException as error:  # noqa: BLE001 - the caller gets any error
            call.error = error
        if self._end(key, call):
            return
        try:
            if call.error is None:
                late(call.result)  # type: ignore[arg-type]
            else:
                _log.warning("%s, and no caller waits any more: %s", _name(key), call.error)
        except Exception:  # noqa: BLE001 - nobody waits for it
            _log.exception("after a call that was late")
        finally:
            with self._lock:
                self._mending -= 1
                self._idle.notify_all()

    def _end(self, key: Hashable, call: _Call[T]) -> bool:
        """Gives the result to waiting callers. False if there are none: then ``late`` is next."""
        with self._lock:
            del self._running[key]
            call.done.set()
            self._mending += not call.waiting
            self._idle.notify_all()
            return call.waiting > 0


def _name(key: Hashable) -> str:
    """Returns the name of work for a log: the words of its key."""
    parts = key if isinstance(key, tuple) else (key,)
    return " ".join(part for part in parts if isinstance(part, str))


def left_s(deadline_s: float) -> float:
    """Returns the time until a deadline, as a time limit, which may not be 0."""
    return max(deadline_s - time.monotonic(), 0.001)

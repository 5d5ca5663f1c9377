"""Virtual time: a queue of calls, each due at a time; equal times go in the order of asking."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Call = Callable[..., None]


class Clock:
    """Seconds since the simulation began. Whatever happens is a call made here."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        self._queue: list[tuple[float, int, Call, tuple[Any, ...]]] = []
        self._asked = 0

    def at(self, due_s: float, call: Call, *args: Any) -> None:
        """Makes the call at that time, or now if it is over."""
        self._asked += 1
        heapq.heappush(self._queue, (due_s, self._asked, call, args))

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        """Makes the call so much later."""
        self.at(self.now_s + delay_s, call, *args)

    def run(self, until: Callable[[], bool], *, calls_max: int) -> bool:
        """Runs until it says so; False if there was nothing left to do, or too much of it."""
        queue = self._queue
        while not until():
            if not queue or self.calls >= calls_max:
                return False
            due_s, _, call, args = heapq.heappop(queue)
            if due_s > self.now_s:
                self.now_s = due_s
            self.calls += 1
            call(*args)
        return True

"""How long a data process says that its disk took, on a machine whose processors are busy."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from lodefs.proxy.data.process import STUCK_S, WriteLock
from tests.support.proxy.stalled_thread import Stalled

WAIT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_writer_without_a_processor_is_not_stuck() -> None:
    """A process that was killed for that lost all its orders, which were fetched again; a write
    that the disk holds up is stuck, and one that has ended is not."""
    clock = Clock()
    lock = WriteLock(clock, lambda: Stalled(1, 0.0))

    def write() -> None:
        clock.advance(STUCK_S + 1.4)
        assert not lock.is_stuck()
        clock.advance(0.2)
        assert lock.is_stuck()

    assert round(lock.run(write), 3) == STUCK_S + 0.1
    assert not lock.is_stuck()


def test_who_waits_for_a_writer_without_a_processor_has_no_slow_disk() -> None:
    """The disk's part of that wait counts, and no more."""
    clock = Clock()
    lock = WriteLock(clock, lambda: Stalled(1, 0.0))
    begins = threading.Event()

    def write_after() -> float:
        begins.set()
        return lock.run(partial(clock.advance, 1.6))

    def write() -> None:
        later.append(threads.submit(write_after))
        assert begins.wait(WAIT_S)
        clock.advance(1.7)

    with ThreadPoolExecutor(1) as threads:
        later: list[Future[float]] = []
        assert round(lock.run(write), 3) == 0.2
        assert round(later[0].result(WAIT_S), 3) in (0.1, 0.3)  # it may have begun late

"""The limit on whole transfers, by a fake clock."""

from __future__ import annotations

import threading

from lodefs.chunkstore.system.systemd.watchdog import Watchdog

TIMEOUT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_only_due_transfers_are_cancelled() -> None:
    """A transfer is cancelled once when its time is over, others go on."""
    clock = Clock()
    watchdog = Watchdog(10.0, clock)
    cancelled: list[str] = []
    with watchdog.watch() as first:
        first.cancel_by(lambda: cancelled.append("first"))
        clock.now_s += 5
        with watchdog.watch() as second:
            second.cancel_by(lambda: cancelled.append("second"))
            clock.now_s += 4.9
            assert watchdog.expire_due() == first.ends_at
            assert (cancelled, first.expired) == ([], False)
            clock.now_s += 0.1
            assert watchdog.expire_due() == second.ends_at
            assert watchdog.expire_due() == second.ends_at
            assert (cancelled, first.expired, second.expired) == (["first"], True, False)
    clock.now_s += 100
    assert watchdog.expire_due() is None
    assert cancelled == ["first"]
    watchdog.close()


def test_connection_found_after_the_time_was_over() -> None:
    """A transfer that gets its connection too late is cancelled at once."""
    clock = Clock()
    watchdog = Watchdog(1.0, clock)
    cancelled: list[str] = []
    with watchdog.watch() as transfer:
        clock.now_s += 1
        watchdog.expire_due()
        assert transfer.expired
        transfer.cancel_by(lambda: cancelled.append("late"))
    assert cancelled == ["late"]
    watchdog.close()


def test_thread_cancels_by_itself() -> None:
    """The thread wakes for what is due, also where it slept without any transfer before."""
    watchdog = Watchdog(0.01)
    for _ in range(3):
        cancelled = threading.Event()
        with watchdog.watch() as transfer:
            transfer.cancel_by(cancelled.set)
            assert cancelled.wait(TIMEOUT_S)
            assert transfer.expired
    watchdog.close()


def test_close_ends_the_thread() -> None:
    """After close no thread is left, used or not."""
    before = threading.active_count()
    unused, used = Watchdog(60.0), Watchdog(60.0)
    with used.watch():
        assert threading.active_count() == before + 1
    unused.close()
    used.close()
    used.close()
    assert threading.active_count() == before

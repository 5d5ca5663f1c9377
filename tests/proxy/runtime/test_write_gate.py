"""Who may write to the cache while its disk is fast, slow or dead."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from lodefs.proxy.runtime.processor_wait import WAIT_S_MAX, ProcessorWait
from lodefs.proxy.runtime.write_gate import WriteGate
from tests.support.proxy.stalled_thread import Stalled

WAIT_S = 60.0


class Clock:
    """A time that tests move."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


def test_only_so_much_waits_for_a_disk() -> None:
    """Beyond the bound nobody gets a turn once a write is slow, and nobody waits for one."""
    clock = Clock()
    gate = WriteGate(100, slow_s=1.0, clock_s=clock)
    with ExitStack() as writes:
        assert writes.enter_context(gate.turn(60))
        assert writes.enter_context(gate.turn(40))
        clock.now_s += 1.5
        assert gate.is_slow()
        assert gate.refuses()
        with gate.turn(1) as may_write:
            assert not may_write
        assert gate.unwritten_bytes == 100
    assert gate.unwritten_bytes == 0
    assert not gate.refuses()


def test_only_so_many_wait_for_a_disk() -> None:
    """However small the writes are."""
    clock = Clock()
    gate = WriteGate(1000, writes_max=2, slow_s=1.0, clock_s=clock)
    with gate.turn(1), gate.turn(1):
        clock.now_s += 1.5
        with gate.turn(1) as may_write:
            assert not may_write


def test_a_disk_is_slow_until_a_write_was_fast() -> None:
    """After a slow write, or the word of somebody else, until there was another."""
    clock = Clock()
    gate = WriteGate(100, slow_s=1.0, clock_s=clock)
    with gate.turn(10):
        clock.now_s += 1.5
    assert gate.is_slow()
    with gate.turn(10) as may_write:
        assert may_write
    assert not gate.is_slow()
    gate.note_slow()
    assert gate.is_slow()


def test_a_thread_without_a_processor_is_no_slow_disk() -> None:
    """While its write is under way, and when it ends; what the disk took counts."""
    clock = Clock()
    gate = WriteGate(100, slow_s=1.0, clock_s=clock, begin_wait=lambda: Stalled(1, 0.0))
    for more_s, is_slow in ((1.9, False), (2.6, True)):
        with gate.turn(10):
            clock.now_s += more_s
            assert gate.is_slow() is is_slow
        assert gate.is_slow() is is_slow


def test_waits_for_a_processor_are_those_of_the_kernel() -> None:
    """They grow, have a limit, and are nothing for a thread that is not there."""
    assert 0.0 <= ProcessorWait.begin().since_s() <= WAIT_S_MAX
    assert ProcessorWait(ProcessorWait.begin().thread, -1e9).since_s() == WAIT_S_MAX
    assert ProcessorWait(2**22 + 1, 0.0).since_s() == 0.0


def test_one_write_larger_than_the_bound_has_its_turn() -> None:
    """So that a small bound does not refuse everything."""
    gate = WriteGate(1)
    with gate.turn(1000) as may_write:
        assert may_write


def test_a_fast_disk_is_waited_for() -> None:
    """Who finds no room while writes are quick gets a turn when one has ended."""
    gate = WriteGate(10, slow_s=WAIT_S)
    has_turn, ends = threading.Event(), threading.Event()

    def write() -> None:
        with gate.turn(10) as may_write:
            assert may_write
            has_turn.set()
            assert ends.wait(WAIT_S)

    def write_after() -> bool:
        with gate.turn(10) as may_write:
            return may_write

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(write)
        assert has_turn.wait(WAIT_S)
        second = threads.submit(write_after)
        assert not second.done()
        ends.set()
        assert second.result(WAIT_S)
        first.result(WAIT_S)

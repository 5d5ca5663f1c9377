"""Tasks with executors that lose results, raise errors of their own, or end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import ModuleType
from typing import Any

import pytest

from lodefs.api.parts.executors import opened_executor
from lodefs.api.parts.part_tasks import (
    ATTEMPTS_MAX,
    IN_FLIGHT_MAX,
    WAITING_MAX,
    TaskResult,
    map_tasks,
    run_tasks,
)
from lodefs.chunkstore.errors import Denied, Unavailable


class FakeExecutor(Executor):
    """Runs a task when it is submitted. ``outcome`` may change what becomes of the future."""

    def __init__(self, outcome: Callable[[Future[Any], Any], bool] = lambda *_: False) -> None:
        self.calls: list[Any] = []
        self.open: set[Future[Any]] = set()
        self.most = 0
        self._outcome = outcome

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append(args[0])
        if not self._outcome(future, args[0]):
            future.set_result(fn(*args, **kwargs))
        return future


def _fine(number: int) -> TaskResult:
    return TaskResult(number, files=1)


def _never(number: int) -> bool:
    return False


def test_all_tasks_run_with_a_bound_on_those_in_flight() -> None:
    """Each once, in their order, if nothing goes wrong."""
    executor = FakeExecutor()
    numbers = range(3 * IN_FLIGHT_MAX)
    assert run_tasks(executor, _fine, numbers, _never) == []
    assert executor.calls == list(numbers)


def test_a_result_that_is_lost_is_looked_for_in_the_store() -> None:
    """A future that never ends does not hold up a part that is done."""
    executor = FakeExecutor(lambda _future, number: number == 1)
    assert run_tasks(executor, _fine, range(3), lambda n: n == 1, look_every_s=0.01) == []


def test_errors_of_the_executor_are_tried_again() -> None:
    """At most three times for each task; what a task itself says for good, once."""

    def outcome(future: Future[Any], number: int) -> bool:
        if number == 1 and executor.calls.count(1) < ATTEMPTS_MAX:
            future.set_exception(OSError("worker lost"))
            return True
        if number == 2:
            future.cancel()
            return True
        return False

    def task(number: int) -> TaskResult:
        return TaskResult(number, "changed") if number == 3 else _fine(number)

    executor = FakeExecutor(outcome)
    failed = run_tasks(executor, task, range(4), _never, look_every_s=0.01)
    assert [one.number for one in failed] == [2, 3]
    assert "the executor has lost it: CancelledError" in str(failed[0].error)
    assert [executor.calls.count(n) for n in range(4)] == [1, 3, 3, 1]


def test_results_come_in_the_order_of_the_items() -> None:
    """Whatever the executor does first, and though it loses some without a word. Items are taken
    on demand."""

    def outcome(future: Future[Any], numbered: Any) -> bool:
        number = numbered[0]
        if number % 5 == 1 and executor.calls.count(numbered) < ATTEMPTS_MAX:
            return True  # lost
        if number % 5 == 2 and executor.calls.count(numbered) == 1:
            future.set_exception(OSError("worker lost"))
            return True
        return False

    executor = FakeExecutor(outcome)
    taken: list[int] = []
    items = (taken.append(n) or n for n in range(IN_FLIGHT_MAX + 40))
    found = map_tasks(executor, lambda n: n * n, items, look_every_s=0.0001)
    assert next(found) == 0
    assert len(taken) < IN_FLIGHT_MAX + 40
    assert [0, *found] == [n * n for n in range(IN_FLIGHT_MAX + 40)]


def test_results_that_wait_for_a_slow_task_are_bounded() -> None:
    """Until the executor gets the first one again, only so many items after it are taken."""
    executor = FakeExecutor(lambda *_: len(executor.calls) == 1)
    taken: list[int] = []
    items = (taken.append(n) or n for n in range(10 * WAITING_MAX))
    assert next(map_tasks(executor, str, items, look_every_s=0.0001)) == "0"
    assert len(taken) <= WAITING_MAX + IN_FLIGHT_MAX


def test_what_a_function_raises_is_raised() -> None:
    """At once; what may pass, after three attempts; and an item that is lost each time is named as
    lost."""

    def denied(item: int) -> int:
        raise Denied("no") if item == 3 else Unavailable("busy")

    executor = FakeExecutor()
    with pytest.raises(Denied, match="no"):
        list(map_tasks(executor, denied, [3, 3]))
    with pytest.raises(Unavailable, match="busy"):
        list(map_tasks(executor, denied, [4]))
    assert executor.calls.count((0, 4)) == ATTEMPTS_MAX
    silent = FakeExecutor(lambda _future, numbered: numbered[0] == 1)
    with pytest.raises(Unavailable, match="lost it, and has been silent"):
        list(map_tasks(silent, str, range(2), look_every_s=0.0001))
    assert silent.calls.count((1, 1)) == ATTEMPTS_MAX


def test_an_executor_that_has_ended_is_named() -> None:
    """Its own error is in the message, and what runs is cancelled."""
    left: list[Future[Any]] = []

    def outcome(future: Future[Any], number: int) -> bool:
        if number == 1:
            raise RuntimeError("cannot schedule new futures after shutdown")
        left.append(future)
        return True

    with pytest.raises(Unavailable, match="after shutdown"):
        run_tasks(FakeExecutor(outcome), _fine, range(2), _never)
    assert [one.cancelled() for one in left] == [True]


class _RayWithoutCluster(ModuleType):
    """Ray's library, if no client server answers, or it wants a token."""

    @staticmethod
    def init(_address: str | None) -> None:
        raise ConnectionError("ray client connection timeout")


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what may be wrong there."""
    monkeypatch.setitem(sys.modules, "ray", _RayWithoutCluster("ray"))
    with (
        pytest.raises(Unavailable, match=r"ray://x:1 does not answer .*RAY_AUTH_MODE=token"),
        opened_executor("ray://x:1"),
    ):
        pass

"""Runs tasks with any executor of ``concurrent.futures``.

Of an executor only ``submit`` is used. Tasks may be done twice and their results may be lost: what
a task of a plan has done is in the store, and a task that only reads is done again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.chunkstore.system.progress import Progress

IN_FLIGHT_MAX = 256  # tasks that an executor has at once: more than two for each of 100 workers
WAITING_MAX = 4 * IN_FLIGHT_MAX  # results that are kept until a slow task before them is done
ATTEMPTS_MAX = 3  # at a task that fails for a reason that may pass
LOOK_EVERY_S = 60.0  # for results that the executor has lost
SILENT_LOOKS_MAX = 30  # then short tasks count as lost, and the executor gets them again
_LOST = "the executor has lost it"

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The outcome of a task: its error, which may pass if ``may_pass``, or its result. ``value`` is
    what a function has returned or raised, if that is nowhere else (``map_tasks``)."""

    number: int
    error: str | None = None
    may_pass: bool = False
    files: int = 0
    size_bytes: int = 0
    value: Any = None


def run_tasks(
    executor: Executor,
    task: Callable[[int], TaskResult],
    numbers: Iterable[int],
    is_done: Callable[[int], bool],
    progress: Progress | None = None,
    look_every_s: float = LOOK_EVERY_S,
) -> list[TaskResult]:
    """Runs a task for each number, some of them more than once, and returns those that failed at
    last. ``is_done`` is called when the executor has been silent for ``look_every_s``.

    Raises: Unavailable if the executor takes no more tasks.
    """
    progress = progress or Progress()
    failed = []
    items = ((number, number) for number in numbers)
    for result in _Tasks(executor, task, items, is_done, look_every_s).results():
        progress.files_done += result.files
        progress.bytes_done += result.size_bytes
        if result.error is not None:
            failed.append(result)
    return sorted(failed, key=lambda one: one.number)


def map_tasks(
    executor: Executor,
    function: Callable[[T], U],
    items: Iterable[T],
    look_every_s: float = LOOK_EVERY_S,
) -> Iterator[U]:
    """Yields what a function returns for each item, in their order; it takes them on demand. A call
    should take seconds, and may be made more than once. At most WAITING_MAX results wait for one
    before them.

    Raises: what the function raises; Unavailable if the executor takes no more tasks, or loses one
    again and again.
    """
    found: dict[int, TaskResult] = {}
    numbered = enumerate(enumerate(items))
    tasks = _Tasks(executor, _Function(function), numbered, None, look_every_s, found)
    first = 0
    for one in tasks.results():
        found[one.number] = one
        while (result := found.pop(first, None)) is not None:
            first += 1
            if isinstance(result.value, LodefsError):
                raise result.value
            if result.error is not None:
                raise Unavailable(result.error)
            yield result.value


@dataclass(frozen=True, slots=True)
class _Function(Generic[T, U]):
    """A function as a task that can be pickled, if the function can."""

    function: Callable[[T], U]

    def __call__(self, numbered: tuple[int, T]) -> TaskResult:
        number, item = numbered
        try:
            return TaskResult(number, value=self.function(item))
        except LodefsError as error:
            return TaskResult(number, str(error), isinstance(error, Unavailable), value=error)


class _Tasks(Generic[T]):
    """Tasks that an executor does, each for one item. For one thread."""

    def __init__(
        self,
        executor: Executor,
        task: Callable[[T], TaskResult],
        items: Iterable[tuple[int, T]],
        is_done: Callable[[int], bool] | None,
        look_every_s: float,
        waiting: Sized = (),
    ) -> None:
        """Each item has a number of its own, and is taken on demand. ``is_done`` None: only the
        executor has the results, and the tasks are so short that long silence means a loss.
        ``waiting`` are results that wait for others: too many of them hold up new items."""
        self._executor = executor
        self._task = task
        self._items = iter(items)
        self._is_done = is_done
        self._look_every_s = look_every_s
        self._waiting = waiting
        self._open: dict[int, T] = {}  # the items without a result
        self._later: deque[int] = deque()  # to be tried again
        self._attempts = Counter[int]()
        self._running: dict[Future[TaskResult], int] = {}
        self._has_begun = False
        self._silent_looks = 0

    def results(self) -> Iterator[TaskResult]:
        """Yields the result of each item, as they come. Raises: Unavailable."""
        try:
            while self._fill():
                for future in self._done():
                    result = self._result(future)
                    if result is not None:
                        del self._open[result.number]
                        yield result
        finally:
            for future in self._running:
                future.cancel()

    def _fill(self) -> bool:
        """Submits as many tasks as may run. Returns whether any item has no result."""
        while len(self._running) < IN_FLIGHT_MAX:
            is_full = len(self._waiting) >= WAITING_MAX
            numbered = None if is_full else next(self._items, None)
            if numbered is not None:
                self._open[numbered[0]] = numbered[1]
                self._submit(numbered[0])
            elif self._later:
                self._submit(self._later.popleft())
            else:
                break
        return bool(self._open)

    def _submit(self, number: int) -> None:
        self._attempts[number] += 1
        try:
            future = self._executor.submit(self._task, self._open[number])
        except Exception as error:  # each executor has its own
            raise Unavailable(
                f"the executor takes no more tasks ({error!r}): repeat this, with another executor "
                "if this one has ended"
            ) from error
        self._running[future] = number

    def _done(self) -> Collection[Future[TaskResult]]:
        """Waits for a while, and returns the futures that are done or count as lost. An executor
        that has not done anything yet may still wait for its workers."""
        done, _ = wait(self._running, self._look_every_s, FIRST_COMPLETED)
        if done:
            self._has_begun, self._silent_looks = True, 0
            return done
        if self._is_done is not None:
            is_done = self._is_done
            return [one for one, number in self._running.items() if one.done() or is_done(number)]
        self._silent_looks += self._has_begun
        if self._silent_looks < SILENT_LOOKS_MAX:
            return done
        self._silent_looks = 0
        return list(self._running)

    def _result(self, future: Future[TaskResult]) -> TaskResult | None:
        """Returns the result of an item; None if it gets another attempt."""
        number = self._running.pop(future)
        result = self._outcome(future, number)
        if result.may_pass and self._attempts[number] < ATTEMPTS_MAX:
            self._later.append(number)
            return None
        return result

    def _outcome(self, future: Future[TaskResult], number: int) -> TaskResult:
        """Returns the result of a future that is done or counts as lost."""
        if not future.done():
            future.cancel()
            if self._is_done is not None:
                return TaskResult(number)
            return TaskResult(number, f"{_LOST}, and has been silent since", may_pass=True)
        try:
            return future.result()
        except BaseException as error:
            if future.cancelled() or isinstance(error, Exception):
                return TaskResult(number, f"{_LOST}: {error!r}", may_pass=True)
            raise

"""Runs tasks with any executor of ``concurrent.futures``, and the executors that a name stands for.

Of an executor only ``submit`` is used. Tasks may be done twice and their results may be lost: what
a task has done is in the store.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.system.progress import Progress

IN_FLIGHT_MAX = 256  # tasks that an executor has at once: more than two for each of 100 workers
ATTEMPTS_MAX = 3  # at a task that fails for a reason that may pass
LOOK_EVERY_S = 60.0  # for results that the executor has lost


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The outcome of a part: its error, which may pass if ``may_pass``, or its result."""

    number: int
    error: str | None = None
    may_pass: bool = False
    files: int = 0
    size_bytes: int = 0


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
    waiting, attempts = deque(numbers), Counter[int]()
    running: dict[Future[TaskResult], int] = {}
    failed: dict[int, TaskResult] = {}
    try:
        while waiting or running:
            while waiting and len(running) < IN_FLIGHT_MAX:
                number = waiting.popleft()
                attempts[number] += 1
                running[_submitted(executor, task, number)] = number
            done, _ = wait(running, look_every_s, FIRST_COMPLETED)
            if not done:
                done = {f for f, number in running.items() if f.done() or is_done(number)}
            for future in done:
                number = running.pop(future)
                result = _result(future, number)
                progress.files_done += result.files
                progress.bytes_done += result.size_bytes
                if result.error is None:
                    failed.pop(number, None)
                elif result.may_pass and attempts[number] < ATTEMPTS_MAX:
                    waiting.append(number)
                else:
                    failed[number] = result
    finally:
        for future in running:
            future.cancel()
    return [failed[number] for number in sorted(failed)]


def _submitted(
    executor: Executor, task: Callable[[int], TaskResult], number: int
) -> Future[TaskResult]:
    try:
        return executor.submit(task, number)
    except Exception as error:  # each executor has its own
        raise Unavailable(
            f"the executor takes no more tasks ({error!r}): use another one"
        ) from error


def _result(future: Future[TaskResult], number: int) -> TaskResult:
    """Returns the result of a future that is done, or that was lost though its part is done."""
    if not future.done():
        future.cancel()
        return TaskResult(number)
    try:
        return future.result()
    except BaseException as error:
        if future.cancelled() or isinstance(error, Exception):
            return TaskResult(number, f"the executor has lost it: {error!r}", may_pass=True)
        raise


@contextmanager
def opened_executor(name: str | Executor) -> Iterator[Executor]:
    """Opens the executor that a name stands for: ``processes:N``, ``dask://HOST:PORT``, ``mpi``,
    ``ray://HOST:PORT`` or ``ray`` (on this machine). An executor itself stays open afterwards.
    Raises: InvalidInput, also for a library that is not installed, with the command that installs
    it; Unavailable for a scheduler or cluster that does not answer."""
    if isinstance(name, Executor):
        yield name
        return
    kind = name.partition(":")[0]
    opener = _OPENERS.get(kind)
    if opener is None:
        raise InvalidInput(
            f"{name!r} is not an executor: use processes:N, dask://HOST:PORT, mpi or "
            "ray://HOST:PORT"
        )
    library, install, make = opener
    try:
        executor = make(name)
    except ImportError as error:
        raise InvalidInput(
            f"{name} needs the package {library}, which is not installed here: {install}"
        ) from error
    except OSError as error:
        raise Unavailable(
            f"{name} does not answer ({error}): look whether it runs there, and whether it wants "
            "a token (Ray: RAY_AUTH_MODE=token)"
        ) from error
    with executor:
        yield executor


def _processes(name: str) -> Executor:
    count = name.partition(":")[2]
    if not count.isdecimal() or not 1 <= int(count) <= 1024:
        raise InvalidInput(f"{name!r}: name the number of processes, as in processes:8")
    return ProcessPoolExecutor(int(count), multiprocessing.get_context("spawn"))


def _dask(name: str) -> Executor:
    from distributed import Client

    return _DaskExecutor(Client(name.replace("dask://", "tcp://", 1)))


def _mpi(_name: str) -> Executor:
    from mpi4py.futures import MPIPoolExecutor

    executor: Executor = MPIPoolExecutor()
    return executor


def _ray(name: str) -> Executor:
    import ray

    ray.init(name if "://" in name else None)
    return _RayExecutor(ray)


class _DaskExecutor(Executor):
    """The executor of a Dask client, which closes the client at its end."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._executor = client.get_executor(pure=False, retries=ATTEMPTS_MAX)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT002, ARG002
        self._executor.shutdown(wait=wait)
        self._client.close()


class _RayExecutor(Executor):
    """Ray as an executor. https://docs.ray.io/en/latest/ray-core/api/doc/ray.ObjectRef.html says
    that a reference has a future."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._call = ray.remote(_call)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = self._call.remote(fn, args, kwargs).future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT002, ARG002
        self._ray.shutdown()


def _call(fn: Any, args: Any, kwargs: Any) -> Any:
    return fn(*args, **kwargs)


# The package that each needs, the command that installs it, and what opens it
_OPENERS: dict[str, tuple[str, str, Callable[[str], Executor]]] = {
    "processes": ("", "", _processes),
    "dask": ("distributed", "pip install distributed", _dask),
    "mpi": ("mpi4py", "pip install mpi4py", _mpi),
    "ray": ("ray", 'pip install "ray[client]"', _ray),
}

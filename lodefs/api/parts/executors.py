"""The executors that a name stands for: of processes, Dask, MPI and Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from lodefs.chunkstore.errors import InvalidInput, Unavailable

EXECUTORS = "processes:N, dask://HOST:PORT, mpi or ray://HOST:PORT."  # for help
RETRIES = 3  # of a task by Dask, which it repeats if a worker is lost


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
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

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
        self._executor = client.get_executor(pure=False, retries=RETRIES)

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

"""``-n N``: tests run in N processes, each of which is a fork of the one that has collected them.

Collection takes 20 s of a processor, and what it leaves takes 700 MB, which forks share.
"""

from __future__ import annotations

import gc
import itertools
import os
import select
import signal
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

from lodefs.chunkstore.system import processes
from tests import mount_namespace

NUMBER = "LODEFS_TEST_WORKER"  # environment variable: 0, 1, ...; no other worker has the same
ENDS_TIMEOUT_S = 30.0  # for servers of tests
_NUMBER_BYTES = 4

# Tests that share what is slow to make (packages, a booted machine, servers) or what a machine has
# once stay in one process. The longest come first, else a process ends with them alone.
TOGETHER = (
    ("tests/kube/",),  # one Kubernetes
    ("tests/deploy/test_managed_plugin",),  # shares nothing with the others there, which take long
    ("tests/deploy/test_units",),
    ("tests/deploy/",),
    ("tests/loadtests/test_docker",),
    ("tests/chunkstore/objects/test_interface", "tests/chunkstore/repo/test_store_probe"),  # RGW
    ("tests/loadtests/cluster/",),  # network namespaces
    (  # a real dockerd, and clients by the hundred
        "tests/mount/docker/containers/",
        "tests/adversary/test_docker_clients",
        "tests/lodefs/commands/test_docker_plugin",
    ),
    (  # processes that are stopped, and mount namespaces, which copy the mounts of those
        "tests/mount/process/",
        "tests/mount/helper/",
        "tests/mount/fs/test_passing",
        "tests/mount/fs/test_interrupts",
        "tests/mount/read/test_stored_ahead",
    ),
)


def group(nodeid: str) -> str:
    """The tests that one process runs one after the other: a file, or files that share."""
    path = nodeid.partition("::")[0]
    return next((each[0] for each in TOGETHER if path.startswith(each)), path)


def repeated(nodeids: Iterable[str]) -> list[str]:
    """The ids that several tests have."""
    return [nodeid for nodeid, times in Counter(nodeids).items() if times > 1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The number of processes."""
    of_pytest = parser.getgroup("workers")._addoption  # lower case, which it keeps for itself
    of_pytest("-n", dest="workers", type=int, default=0, help="run tests in this many processes")


def pytest_configure() -> None:
    """Nothing of a collection is garbage, and looking for some takes a quarter of its time."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow groups first, if there are several processes. UsageError if tests have one id."""
    if again := repeated(item.nodeid for item in items):
        raise pytest.UsageError(f"failures of these ids could not be told apart: {again}")
    if not config.option.workers:
        return
    ranks = {each[0]: rank for rank, each in enumerate(TOGETHER)}
    slow = {group(item.nodeid) for item in items if item.get_closest_marker("slow")}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        name = group(item.nodeid)
        return ranks.get(name, len(ranks)), name not in slow

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Tests have their garbage collected, without looking at what was collected of them."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Takes the place of pytest's own loop if there are several processes."""
    option = session.config.option
    if not option.workers or option.collectonly or session.testsfailed:
        return None
    with _Workers(session) as workers:
        workers.run(option.workers)
    return True


class _Workers:
    """Processes that take group after group of a session's tests, and report to this one.

    A context manager, which ends those that still run.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._queue = _Queue(session.items)
        self._running: dict[int, _Worker] = {}  # by pidfd
        self._started = 0

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *exc: object) -> None:
        for pid_fd in self._running:
            processes.send(pid_fd, signal.SIGINT)
        processes.are_over(list(self._running), ENDS_TIMEOUT_S)
        for pid_fd, worker in self._running.items():
            processes.send(pid_fd)
            processes.reap(worker.pid)
            os.close(pid_fd)
        self._queue.close()

    def run(self, count: int) -> None:
        """Returns when all tests have run. Raises: Failed, Interrupted, as pytest's own loop; then
        each worker has come to the end of its group."""
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for _ in range(min(count, len(self._queue))):
            self._start([])
        while self._running:
            readers = {worker.reader: worker for worker in self._running.values()}
            poll = select.poll()
            for fd in itertools.chain(self._running, (reader.fileno() for reader in readers)):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            for reader, worker in readers.items():
                if reader.fileno() in ready:
                    self._receive(worker)
            for pid_fd in ready & self._running.keys():
                self._ended(pid_fd)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _start(self, items: list[pytest.Item]) -> None:
        number = self._started
        self._started += 1
        reader, writer = Pipe(duplex=False)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            _work(self._session, number, parent, _items(items, self._queue, writer), writer)
        writer.close()
        self._running[processes.watch(pid)] = _Worker(pid, reader, list(items))

    def _receive(self, worker: _Worker) -> None:
        """Reads the numbers of groups that a worker took, and how phases of tests went."""
        while worker.reader.poll():
            try:
                message = worker.reader.recv()
            except EOFError:
                return
            if isinstance(message, int):
                worker.left += self._queue[message]
            else:
                self._log(message)
                if message["when"] == "teardown":
                    del worker.left[0]

    def _log(self, data: dict[str, Any]) -> None:
        hook = self._session.config.hook
        report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
        hook.pytest_runtest_logreport(report=report)
        if self._session.shouldfail or self._session.shouldstop:
            self._queue.empty()

    def _ended(self, pid_fd: int) -> None:
        """If a test has ended its process, that failed, and another one does what is left."""
        worker = self._running.pop(pid_fd)
        self._receive(worker)
        os.close(pid_fd)
        worker.reader.close()
        _, status = os.waitpid(worker.pid, 0)
        if not worker.left:
            return
        item, *rest = worker.left
        text = f"the process of this test ended: {os.waitstatus_to_exitcode(status)}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if not (self._session.shouldfail or self._session.shouldstop):
            self._start(rest)


class _Worker:
    """A process, where it reports, and the tests that it has taken and not ended."""

    def __init__(self, pid: int, reader: Connection, left: list[pytest.Item]) -> None:
        self.pid = pid
        self.reader = reader
        self.left = left


class _Queue:
    """Groups of tests by their numbers. What is left of them is one for all forks: the rest of a
    file, which has one position."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        by_group = itertools.groupby(items, key=lambda item: group(item.nodeid))
        self._groups = [list(each) for _, each in by_group]
        self._fd = os.memfd_create("groups")
        numbers = range(len(self._groups))
        os.write(self._fd, b"".join(n.to_bytes(_NUMBER_BYTES, "big") for n in numbers))
        os.lseek(self._fd, 0, os.SEEK_SET)

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, number: int) -> list[pytest.Item]:
        return self._groups[number]

    def take(self) -> int | None:
        """The number of the next group; None: there is none."""
        number = os.read(self._fd, _NUMBER_BYTES)
        return int.from_bytes(number, "big") if number else None

    def empty(self) -> None:
        """Nobody gets a further group."""
        os.lseek(self._fd, 0, os.SEEK_END)

    def close(self) -> None:
        """Frees the file."""
        os.close(self._fd)


class _Reporter:
    """A plug-in that sends reports elsewhere, instead of showing them to other plug-ins."""

    def __init__(self, writer: Connection) -> None:
        self._writer = writer

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Takes the place of pytest's own."""
        hook = item.config.hook
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            data = hook.pytest_report_to_serializable(config=item.config, report=report)
            self._writer.send(data)
        return True


def _work(
    session: pytest.Session,
    number: int,
    parent: int,
    items: Iterator[pytest.Item],
    writer: Connection,
) -> NoReturn:
    code = 1
    try:
        processes.die_with_parent(parent)
        os.environ[NUMBER] = str(number)
        mount_namespace.enter()
        _separate(session.config, number)
        session.config.pluginmanager.register(_Reporter(writer))
        item = next(items, None)
        while item is not None:
            following = next(items, None)  # what both use is kept
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        code = 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        session._setupstate.teardown_exact(None)
    except BaseException:  # noqa: BLE001 - the process ends with it
        traceback.print_exc()
    finally:
        os._exit(code)  # what pytest does at its end is done once


def _items(
    first: Iterable[pytest.Item], queue: _Queue, writer: Connection
) -> Iterator[pytest.Item]:
    yield from first
    while (number := queue.take()) is not None:
        writer.send(number)
        yield from queue[number]


def _separate(config: pytest.Config, number: int) -> None:
    """Captures output, and makes temporary directories, where no other process does."""
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    paths: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    paths._basetemp = paths.mktemp(f"worker{number}", numbered=False)

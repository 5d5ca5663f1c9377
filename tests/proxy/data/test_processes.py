"""Data processes: what they are told to do, and whatever may happen to them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.names import digest_of
from lodefs.proxy.data import order as orders
from lodefs.proxy.data.order import FetchOrder, WriteTarget
from lodefs.proxy.data.processes import DataProcesses, DataSettings, NotDone, processes_default
from tests.support.chunkstore.child_process import Child

WAIT_S = 60.0
MIB = 1 << 20
LARGE = 80 * MIB  # more than malloc has left of what it reserved


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    ends_s, pause = time.monotonic() + WAIT_S, threading.Event()
    while not condition():
        assert time.monotonic() < ends_s, "what was waited for did not happen"
        pause.wait(0.01)


@contextmanager
def running(data: DataSettings | None = None) -> Iterator[DataProcesses]:
    """Processes that take orders; ended afterwards."""
    data = data or DataSettings(1)
    processes = DataProcesses(data)
    try:
        processes.start()
        until(lambda: len(processes.pids) == data.processes)
        yield processes
    finally:
        processes.close()


def stored(raws: Sequence[bytes]) -> tuple[bytes, FetchOrder]:
    """What a pack holds of chunks, and an order for all of them, one after the other."""
    packed = [compress(raw) for raw in raws]
    order = FetchOrder(
        None,
        0,
        b"".join(map(digest_of, raws)),
        array("I", [len(data) for _, data in packed]).tobytes(),
        array("I", map(len, raws)).tobytes(),
        bytes(codec for codec, _ in packed),
        (WriteTarget(0, len(raws), 0, 0),),
    )
    return b"".join(bytes(data) for _, data in packed), order


@contextmanager
def files(folder: Path, pack: bytes) -> Iterator[tuple[list[int], Path]]:
    """Descriptors of a pack and of an empty file to write to, and the latter's path."""
    (folder / "pack").write_bytes(pack)
    target = folder / "target"
    target.write_bytes(b"")
    fds = [os.open(folder / "pack", os.O_RDONLY), os.open(target, os.O_RDWR)]
    try:
        yield fds, target
    finally:
        orders.close_all(fds)


@pytest.fixture(scope="module")
def processes() -> Iterator[DataProcesses]:
    with running() as processes:
        yield processes


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    raws=st.lists(
        st.one_of(
            st.binary(min_size=1, max_size=300),
            st.integers(1, 300_000).map(lambda n: b"ab" * n),
            st.integers(1, 200_000).map(os.urandom),
        ),
        min_size=1,
        max_size=12,
    ),
    data=st.data(),
)
def test_chunks_come_to_their_places(
    processes: DataProcesses, tmp_path: Path, raws: list[bytes], data: st.DataObject
) -> None:
    """Each chunk that has a target lies there, whatever others do, and nothing lies elsewhere."""
    pack, order = stored(raws)
    wanted = data.draw(st.lists(st.booleans(), min_size=len(raws), max_size=len(raws)))
    targets, expected, at = [], bytearray(), 0
    for n, raw in enumerate(raws):
        if wanted[n]:
            targets.append(WriteTarget(n, n + 1, 0, at))
            expected += raw
            at += len(raw)
    order = msgspec.structs.replace(order, targets=tuple(targets))
    with files(tmp_path, pack) as (fds, target):
        report = processes.carry_out(order, fds, WAIT_S)
        assert (report.outcome, report.received_bytes) == (orders.DONE, len(pack))
        assert target.read_bytes() == expected


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_a_wrong_chunk_is_named(processes: DataProcesses, tmp_path: Path, bad: int) -> None:
    """A chunk that is not what its id says is reported, and is not written."""
    raws = [os.urandom(200_000) for _ in range(8)]
    pack, order = stored(raws)
    spoilt = bytearray(pack)
    spoilt[bad * 200_000 + 5] ^= 1
    with files(tmp_path, bytes(spoilt)) as (fds, target):
        report = processes.carry_out(order, fds, WAIT_S)
        assert (report.outcome, report.number) == (orders.WRONG, bad)
        assert bytes(spoilt[bad * 200_000 :][:200_000]) not in target.read_bytes()


def test_a_short_pack_is_not_done(processes: DataProcesses, tmp_path: Path) -> None:
    """A source that ends too early is a failure, and the process goes on."""
    pack, order = stored([os.urandom(1000)] * 3)
    with files(tmp_path, pack[:-1]) as (fds, _):
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.FAILED
    with files(tmp_path, pack) as (fds, _):
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE


def test_a_killed_process_comes_again(tmp_path: Path) -> None:
    """After SIGKILL there is another process, which is counted and takes orders."""
    pack, order = stored([b"x" * 5000])
    with running() as processes, files(tmp_path, pack) as (fds, _):
        (pid,) = processes.pids
        os.kill(pid, signal.SIGKILL)
        until(lambda: processes.pids not in ([], [pid]))
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        assert processes.status()["data_processes_restarts"] == 1


def test_a_stopped_process_is_replaced(tmp_path: Path) -> None:
    """Who gave an order to a process that is stopped is told that it is not done, and that nothing
    of it will be; the process is killed and another one started."""
    pack, order = stored([b"x" * 5000])
    data = DataSettings(1, look_s=0.05, hang_s=0.2)
    with running(data) as processes, files(tmp_path, pack) as (fds, target):
        (pid,) = processes.pids
        os.kill(pid, signal.SIGSTOP)
        until(lambda: state_of(pid) == "T")
        with pytest.raises(NotDone) as failure:
            processes.carry_out(order, fds, WAIT_S)
        assert failure.value.is_over
        assert target.read_bytes() == b""
        until(lambda: processes.pids not in ([], [pid]))


def test_a_busy_process_is_not_taken_for_a_stopped_one(tmp_path: Path) -> None:
    """An order may take longer than the time after which a process is asked whether it lives."""
    raws = [os.urandom(200_000)] * 100
    pack, order = stored(raws)
    with (
        running(DataSettings(1, look_s=0.001)) as processes,
        files(tmp_path, pack) as (fds, target),
    ):
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        assert target.stat().st_size == sum(map(len, raws))
        assert processes.status()["data_processes_restarts"] == 0


@pytest.mark.parametrize("kind", ["memory", "descriptors"])
def test_a_process_that_lacks_something_says_so(tmp_path: Path, kind: str) -> None:
    """Without memory or descriptors an order is not done; the same process does it later."""
    pack, order = stored([os.urandom(LARGE)])
    limit = resource.RLIMIT_AS if kind == "memory" else resource.RLIMIT_NOFILE
    with running() as processes, files(tmp_path, pack) as (fds, _):
        (pid,) = processes.pids
        if kind == "memory":
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            low = pages * os.sysconf("SC_PAGESIZE") + MIB
        else:
            low = 3  # its lowest numbers are taken
        _, hard = before = resource.prlimit(pid, limit)
        resource.prlimit(pid, limit, (low, hard))
        report = processes.carry_out(order, fds, WAIT_S)
        assert report.outcome == orders.FAILED
        resource.prlimit(pid, limit, before)
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        assert processes.pids == [pid]


def test_without_a_free_thread_nothing_is_done(tmp_path: Path) -> None:
    """An order that no thread is free for is refused at once."""
    pack, order = stored([b"x"])
    processes = DataProcesses(DataSettings(1, argv=("/bin/false",)))
    processes.start()
    try:
        with files(tmp_path, pack) as (fds, _), pytest.raises(NotDone):
            processes.carry_out(order, fds, WAIT_S)
    finally:
        processes.close()


def test_a_process_knows_no_secret() -> None:
    """Neither the arguments nor the environment of a data process hold credentials."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        patch.setenv("NOTIFY_SOCKET", "/nowhere")
        with running() as processes:
            (pid,) = processes.pids
            for name in ("environ", "cmdline"):
                seen = Path(f"/proc/{pid}/{name}").read_bytes()
                assert b"very-secret" not in seen
                assert b"NOTIFY_SOCKET" not in seen
            assert Path(f"/proc/{pid}/comm").read_text() == "lodefs-data\n"


def test_signals_for_the_proxy_end_no_process(tmp_path: Path) -> None:
    """SIGTERM and SIGINT, which reach the whole group, leave orders to be carried out."""
    pack, order = stored([b"x" * 5000])
    with running() as processes, files(tmp_path, pack) as (fds, _):
        (pid,) = processes.pids
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(pid, number)
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        assert processes.pids == [pid]


def test_a_killed_proxy_leaves_none_behind() -> None:
    """When the process that started them is killed, data processes end, also a stopped one."""
    program = (
        "import time\n"
        "from lodefs.proxy.data.processes import DataProcesses, DataSettings\n"
        "processes = DataProcesses(DataSettings(2))\n"
        "processes.start()\n"
        "while len(processes.pids) < 2: time.sleep(0.01)\n"
        "print('pids', *processes.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    with Child([sys.executable, "-c", program]) as child:
        pids = [int(pid) for pid in child.wait_for(r"^pids (\d+) (\d+)$").groups()]
        os.kill(pids[0], signal.SIGSTOP)
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: not any(is_running(pid) for pid in pids))


def test_closing_ends_a_process_that_starts_or_is_stopped() -> None:
    """``close`` returns when all processes have ended, whatever they were doing."""
    starting = DataProcesses(DataSettings(2))
    starting.start()
    starting.close()
    assert not starting.start()
    with running() as processes:
        (pid,) = processes.pids
        os.kill(pid, signal.SIGSTOP)
    assert not is_running(pid)


def test_the_default_number() -> None:
    """One for each two processors, at least one and at most eight."""
    assert [processes_default(n) for n in (1, 2, 3, 4, 16, 64)] == [1, 1, 1, 2, 8, 8]


def is_running(pid: int) -> bool:
    """Whether a process is there and not dead."""
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int) -> str:
    """As ps(1) has it; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""

"""Data processes: what they are told to do, and whatever may happen to them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InUse
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol import rpc
from lodefs.proxy.cache.directory import CacheDir
from lodefs.proxy.data import order as orders
from lodefs.proxy.data.order import FetchTask, WriteTarget
from lodefs.proxy.data.processes import (
    PAUSE_S_FIRST,
    PAUSE_S_MAX,
    DataProcesses,
    DataSettings,
    NotDone,
    next_pause_s,
)
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


def stored(raws: Sequence[bytes]) -> tuple[bytes, FetchTask]:
    """What a pack holds of chunks, and an order for all of them, one after the other."""
    packed = [compress(raw) for raw in raws]
    order = FetchTask(
        None,
        0,
        b"".join(map(digest_of, raws)),
        array("I", [len(data) for _, data in packed]).tobytes(),
        array("I", map(len, raws)).tobytes(),
        bytes(codec for codec, _ in packed),
        (WriteTarget(0, len(raws), 0, 0),),
        (0,),
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
        rpc.close_all(fds)


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


def test_an_order_that_no_packet_holds(processes: DataProcesses, tmp_path: Path) -> None:
    """Many small chunks are one order, too; what lies in its memory file is closed with it."""
    raws = [n.to_bytes(2, "big") for n in range(5000)]
    pack, order = stored(raws)
    (pid,) = processes.pids
    before = len(os.listdir(f"/proc/{pid}/fd"))
    assert len(msgspec.msgpack.encode(order)) > rpc.PACKET_BYTES_MAX
    with files(tmp_path, pack) as (fds, target):
        for _ in range(3):
            assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        assert target.read_bytes() == b"".join(raws)
    assert len(os.listdir(f"/proc/{pid}/fd")) == before


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_a_wrong_chunk_is_named(processes: DataProcesses, tmp_path: Path, bad: int) -> None:
    """A chunk that is not what its id says is reported, and is not written."""
    raws = [os.urandom(200_000) for _ in range(8)]
    pack, order = stored(raws)
    damaged = bytearray(pack)
    damaged[bad * 200_000 + 5] ^= 1
    with files(tmp_path, bytes(damaged)) as (fds, target):
        report = processes.carry_out(order, fds, WAIT_S)
        assert (report.outcome, report.number) == (orders.WRONG, bad)
        assert bytes(damaged[bad * 200_000 :][:200_000]) not in target.read_bytes()


def test_a_short_pack_is_not_done(processes: DataProcesses, tmp_path: Path) -> None:
    """A source that ends too early is a failure, and the process goes on."""
    pack, order = stored([os.urandom(1000)] * 3)
    with files(tmp_path, pack[:-1]) as (fds, _):
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.FAILED
    with files(tmp_path, pack) as (fds, _):
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE


def test_many_bytes_of_few_take_little_memory(processes: DataProcesses) -> None:
    """Chunks that compress to nearly nothing are not all decompressed at once."""
    pack, order = stored([bytes(256 * 1024)] * 400)  # more than the peak may be
    (pid,) = processes.pids
    # A busy disk or processor may be slow, which ends an order before all of it is written
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        files(Path(memory), pack) as (fds, target),
    ):
        until(lambda: processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE)
        assert target.stat().st_size == 400 * 256 * 1024
    status = Path(f"/proc/{pid}/status").read_text()
    peak_kib = int(status.partition("VmHWM:")[2].split()[0])
    assert peak_kib < 64 * 1024


@pytest.mark.parametrize("harm", ["truncated", "removed"])
def test_a_file_that_was_damaged_is_not_written_to(
    processes: DataProcesses, tmp_path: Path, harm: str
) -> None:
    """Nothing is written to a file that is shorter than it was, or gone; the report names it."""
    pack, order = stored([b"x" * 5000])
    order = msgspec.structs.replace(order, lengths_bytes=(9000,))
    with files(tmp_path, pack) as (fds, target):
        os.truncate(target, 9000)
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        if harm == "truncated":
            os.truncate(target, 8999)
        else:
            target.unlink()
        report = processes.carry_out(order, fds, WAIT_S)
        assert (report.outcome, report.number) == (orders.DAMAGED, 0)
        assert harm in report.why


def test_what_cannot_start_is_tried_more_and_more_slowly() -> None:
    """The pause before a start doubles up to a minute, until a process has lived for a while."""
    pauses = [PAUSE_S_FIRST]
    for _ in range(12):
        pauses.append(next_pause_s(pauses[-1], lived_s=0.5))
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-2:] == [PAUSE_S_MAX, PAUSE_S_MAX]
    assert next_pause_s(PAUSE_S_MAX, lived_s=600.0) == PAUSE_S_FIRST


def restarts_of(processes: DataProcesses) -> int:
    """How often a process was started again."""
    restarts = processes.status()["data_processes_restarts"]
    assert isinstance(restarts, int)
    return restarts


@pytest.mark.parametrize("argv", [("/bin/false",), ("/nowhere/python",)])
def test_starts_that_fail_are_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture, argv: tuple[str, ...]
) -> None:
    """Processes that can never start are a figure, and one line of the log."""
    processes = DataProcesses(DataSettings(1, argv=argv))
    processes.start()
    try:
        until(lambda: restarts_of(processes) >= 3)
    finally:
        processes.close()
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1


def test_a_process_that_never_begins_is_killed(tmp_path: Path) -> None:
    """One that says nothing after its start does not take the place of another for ever."""
    program = tmp_path / "silent"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    processes = DataProcesses(DataSettings(1, argv=(str(program),), start_s=0.05))
    processes.start()
    try:
        until(lambda: restarts_of(processes) >= 2)
        assert not processes.pids
    finally:
        processes.close()


def test_a_killed_process_comes_again(tmp_path: Path) -> None:
    """After SIGKILL there is another process, which is counted and takes orders."""
    pack, order = stored([b"x" * 5000])
    with running() as processes, files(tmp_path, pack) as (fds, _):
        (pid,) = processes.pids
        os.kill(pid, signal.SIGKILL)
        until(lambda: processes.pids not in ([], [pid]))
        assert processes.carry_out(order, fds, WAIT_S).outcome == orders.DONE
        status = processes.status()
        assert (status["data_processes_restarts"], status["data_processes_orders"]) == (1, 1)


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


def test_a_process_that_does_not_end_keeps_its_cache(tmp_path: Path) -> None:
    """While a data process is left of a proxy, another one does not get the cache's directory; it
    gets it as soon as that process is gone."""
    path = tmp_path / "cache"
    owner = CacheDir(path)
    with running(DataSettings(1, (owner.writers_fd,))) as processes:
        (pid,) = processes.pids
        owner.close()
        with pytest.raises(InUse, match="data process of a killed proxy"):
            CacheDir(path, left_s_max=0)
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(CacheDir, path, left_s_max=WAIT_S)
            processes.close()
            waiting.result(WAIT_S).close()
        assert not is_running(pid)


def test_closing_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """A process that cannot be killed, as one in a write to a dead disk, is left behind."""
    with running() as processes:
        (keeper,) = processes._keepers
        assert keeper._process is not None
        real, stuck = keeper._process.reap, threading.Event()

        def reap(timeout_s: float | None = None) -> int:
            stuck.wait(WAIT_S)
            return real(timeout_s)

        keeper._process.reap = reap  # type: ignore[method-assign]  # the kernel's part
        processes.close(timeout_s=0.05)
        stuck.set()
    assert "does not end" in caplog.text


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


def is_running(pid: int) -> bool:
    """Whether a process is there and not dead."""
    return state_of(pid) not in ("", "Z", "X")


def state_of(pid: int) -> str:
    """As ps(1) has it; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""

"""Worker processes: how they start, die and end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.push.workers.pipeline import CutUnit
from lodefs.chunkstore.push.workers.pool import WorkerPool
from lodefs.chunkstore.push.workers.source_files import SourceFile
from lodefs.chunkstore.types import Buffer

TIMEOUT_MS = 60_000


class Taker:
    """A sink that wants all and keeps nothing."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def wanted(self, unit: CutUnit) -> Sequence[bool]:
        self.tokens += [file.token for file in unit.files]
        return [True for file in unit.files for _ in file.chunks]

    def store(self, unit: CutUnit, stored: Sequence[tuple[int, Buffer]]) -> None:
        """Nothing is kept."""


def make_files(root: Path, count: int) -> list[SourceFile]:
    for number in range(count):
        (root / f"{number:04}").write_bytes(b"%d" % number * 500)
    return [
        SourceFile(b"%04d" % number, (root / f"{number:04}").stat().st_size, number)
        for number in range(count)
    ]


def ended(pidfd: int) -> bool:
    """Whether a process ends within a generous time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(TIMEOUT_MS))


def test_close_leaves_no_process() -> None:
    """After close the workers are gone and reaped."""
    workers = WorkerPool(workers=3)
    pids = workers.pids
    workers.close()
    assert len(pids) == 3
    for pid in pids:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


def test_killed_workers_end_the_run(tmp_path: Path) -> None:
    """When workers are killed in a run, it ends with Unavailable, which names one."""
    workers = WorkerPool(workers=2, files_max=4)
    pids = workers.pids

    class Killer(Taker):
        def wanted(self, unit: CutUnit) -> Sequence[bool]:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return super().wanted(unit)

    with pytest.raises(Unavailable, match="worker process") as caught:
        workers.run(tmp_path, make_files(tmp_path, 60), Killer())
    assert any(str(pid) in str(caught.value) for pid in pids)
    assert workers.pids == []


def test_killed_between_runs(tmp_path: Path) -> None:
    """A worker that died before the run is noticed in it."""
    workers = WorkerPool(workers=1)
    pidfd = os.pidfd_open(workers.pids[0])
    os.kill(workers.pids[0], signal.SIGKILL)
    assert ended(pidfd)
    os.close(pidfd)
    with pytest.raises(Unavailable, match="died"):
        workers.run(tmp_path, make_files(tmp_path, 1), Taker())


def test_interrupt_is_the_parents_to_answer(tmp_path: Path) -> None:
    """SIGINT, which a terminal sends to all, does not end a worker."""
    with WorkerPool(workers=2, files_max=1) as workers:
        sink = Taker()
        workers.run(tmp_path, make_files(tmp_path, 10), sink)  # each worker had something to do
        for pid in workers.pids:
            assert ignores_interrupt(pid)
            os.kill(pid, signal.SIGINT)
        workers.run(tmp_path, make_files(tmp_path, 10), sink)
        assert sink.tokens == list(range(10)) * 2


def ignores_interrupt(pid: int) -> bool:
    """Whether the process ignores SIGINT, as the kernel knows it."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(mask.split()[1], 16) & 1 << (signal.SIGINT - 1))


def test_workers_keep_no_descriptor_of_the_parent(tmp_path: Path) -> None:
    """A worker holds its socket and the root: no lock or socket of the parent outlives it there."""
    with (tmp_path / "lock").open("w") as lock, WorkerPool(workers=1) as workers:
        assert not lock.closed
        workers.run(tmp_path, make_files(tmp_path, 3), Taker())
        folder = Path(f"/proc/{workers.pids[0]}/fd")
        targets = [os.readlink(fd) for fd in folder.iterdir() if int(fd.name) > 2]
        assert len(targets) == 2
        assert str(tmp_path) in targets
        assert str(tmp_path / "lock") not in targets


def test_made_in_a_thread(tmp_path: Path) -> None:
    """Workers can be made and used by a thread that is not the main one."""
    files = make_files(tmp_path, 10)
    sink = Taker()

    def work() -> None:
        with WorkerPool(workers=2) as workers:
            workers.run(tmp_path, files, sink)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT_MS / 1000)
    assert sink.tokens == list(range(10))


PARENT = """
import os, signal, sys
from lodefs.chunkstore.push.workers.pool import WorkerPool
workers = WorkerPool(workers=2)
print(*workers.pids, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_workers_die_with_their_parent() -> None:
    """When the parent is killed, the workers end by themselves."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
    )
    assert parent.stdin is not None and parent.stdout is not None
    with parent:
        pidfds = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert parent.wait(TIMEOUT_MS / 1000) == -signal.SIGKILL
        assert len(pidfds) == 2
        for pidfd in pidfds:
            assert ended(pidfd)
            os.close(pidfd)

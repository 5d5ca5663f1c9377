"""The table of a mount's processes."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.shm.process_table import SLOTS, ProcessTable, start_time


@pytest.fixture
def table() -> Iterator[int]:
    fd = ProcessTable.create()
    yield fd
    os.close(fd)


def child(process_table: ProcessTable, slot: int) -> int:
    """A process that has entered itself."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        process_table.enter(slot)
        os.write(writer, b"x")
        signal.pause()
        os._exit(0)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)
    return pid


def listed(process_table: ProcessTable) -> list[tuple[int, int]]:
    found = []
    for slot, pid, pid_fd in process_table.living():
        os.close(pid_fd)
        found.append((slot, pid))
    return found


def test_processes_are_found_and_killed(table: int) -> None:
    """Who is in the table is seen through any view of it, until it ends."""
    ours, theirs = ProcessTable(table), ProcessTable(table)
    slots = [ours.reserve() for _ in range(2)]
    assert listed(theirs) == []
    pids = [child(ours, slot) for slot in slots]
    assert listed(theirs) == list(zip(slots, pids, strict=True))
    assert [theirs.pid(slot) for slot in slots] == pids
    theirs.kill_all()
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert listed(theirs) == []
    assert ours.reserve() == slots[0]


def test_another_process_with_the_number_is_left_alone(table: int) -> None:
    """A process that got a dead worker's number later is neither listed nor killed."""
    process_table = ProcessTable(table)
    slot = process_table.reserve()
    process_table.enter(slot)
    started = start_time(os.getpid())
    assert started is not None
    assert listed(process_table) == [(slot, os.getpid())]
    process_table._write(slot, os.getpid(), started - 1)
    assert listed(process_table) == []
    process_table.kill_all()


def test_the_supervisor(table: int) -> None:
    """It is in the table, but none of those who are replaced."""
    process_table = ProcessTable(table)
    assert not process_table.has_supervisor()
    process_table.turn()
    assert process_table.has_supervisor()
    assert listed(process_table) == []


def test_a_full_table(table: int) -> None:
    """More workers than there is room for are refused, not written over others."""
    process_table = ProcessTable(table)
    for _ in range(SLOTS - 1):
        process_table.reserve()
    with pytest.raises(Unavailable, match="workers"):
        process_table.reserve()


def test_start_time() -> None:
    """It is there for a living process, and None for one that has ended."""
    assert start_time(os.getpid())
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert start_time(pid) is None


def test_who_cannot_be_looked_at_is_not_dead(table: int) -> None:
    """Without descriptors it is Unavailable whether a process lives; its slot stays, and it is
    found again afterwards."""
    process_table = ProcessTable(table)
    slot = process_table.reserve()
    process_table.enter(slot)
    process_table.turn()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(Unavailable, match="whether process"):
            listed(process_table)
        with pytest.raises(Unavailable):
            process_table.has_supervisor()
        with pytest.raises(Unavailable):
            start_time(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert listed(process_table) == [(slot, os.getpid())]
    assert process_table.has_supervisor()

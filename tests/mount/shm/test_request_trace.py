"""The trace of a mount's requests: off by itself, bounded, and never torn."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol.read_client import WaitTimes
from lodefs.mount.shm.request_trace import RECORDS_MAX, SLOTS, RequestTrace, TraceWriter


@pytest.fixture
def trace() -> Iterator[RequestTrace]:
    """An empty one."""
    fd = RequestTrace.create()
    yield RequestTrace(fd)
    os.close(fd)


def writer_of(trace: RequestTrace, slot: int = 0) -> TraceWriter:
    """Of a process that is traced."""
    found = trace.writer(slot)
    assert found is not None
    return found


def write(writer: TraceWriter, ino: int) -> None:
    """A request of an inode that began at 1 s and took 2."""
    waited = WaitTimes()
    waited.for_proxy(b"store", 1.5)
    waited.for_disk(0.25)
    writer.add(1.0, waited, opcode=15, ino=ino, pid=7, first=ino << 33, size_bytes=9,
               clock=lambda: 3.0)  # fmt: skip


def test_off_by_itself(trace: RequestTrace) -> None:
    """It is on until the time that was said, and off without anybody's doing."""
    writer = writer_of(trace)
    assert not writer.is_on(0.0)
    trace.switch_on(10.0)
    assert writer.is_on(9.9) and not writer.is_on(10.0)
    trace.switch_on(0.0)
    assert not writer.is_on(9.9)


def test_round_trip(trace: RequestTrace) -> None:
    """A reader gets what was written since it was made, once, from all processes."""
    write(writer_of(trace), 1)
    reader = trace.reader()
    write(writer_of(trace, 0), 2)
    write(writer_of(trace, SLOTS - 1), 3)
    first, second = reader.read()
    assert (first.ino, second.ino) == (2, 3)
    assert (first.start_s, first.elapsed_s, first.first, first.pid) == (1.0, 2.0, 2 << 33, 7)
    assert (first.store_s, first.disk_s, first.peers_s, first.errno) == (1.5, 0.25, 0.0, 0)
    assert list(reader.read()) == []
    assert reader.lost == 0


def test_lost_requests_are_counted(trace: RequestTrace) -> None:
    """A ring that is filled more than once has its latest requests; the others are counted."""
    reader, writer = trace.reader(), writer_of(trace)
    for ino in range(RECORDS_MAX + 10):
        write(writer, ino)
    found = [record.ino for record in reader.read()]
    assert found[-1] == RECORDS_MAX + 9
    assert found == list(range(found[0], found[-1] + 1))
    assert reader.lost + len(found) == RECORDS_MAX + 10
    assert reader.lost >= 10


def test_strange_memory() -> None:
    """A file of another size is refused; processes beyond the slots are not traced."""
    fd = os.memfd_create("short")
    os.ftruncate(fd, 4096)
    with pytest.raises(InvalidInput):
        RequestTrace(fd)
    os.close(fd)
    fd = RequestTrace.create()
    assert RequestTrace(fd).writer(SLOTS) is None
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 4096)  # who looks must not be killed by who shows
    os.close(fd)

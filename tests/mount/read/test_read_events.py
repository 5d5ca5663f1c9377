"""What workers tell the process that stores ahead."""

from __future__ import annotations

import os

from lodefs.mount.read.read_events import LOOK_UP, QUIET, ReadEvent, ReadEvents

ONE, TWO = ReadEvent(2, 0, 4096), ReadEvent((1 << 63) - 1, 1 << 40, 1 << 20)


def test_wishes_come_in_order() -> None:
    """What several tell is received together; to look up is no wish."""
    events = ReadEvents(quiet=0)
    events.emit(ONE)
    events.emit(LOOK_UP)
    events.emit(TWO)
    assert events.receive(60.0) == [ONE, TWO]
    events.emit(LOOK_UP)
    assert events.receive(60.0) == []
    assert events.receive(0.0) == []


def test_who_does_not_listen_blocks_nobody() -> None:
    """However much is told, telling goes on; what is received is whole."""
    events = ReadEvents(quiet=0)
    for n in range(20_000):
        events.emit(ONE._replace(first=n))
    told = events.receive(60.0)
    assert told == [ONE._replace(first=n) for n in range(len(told or ()))]
    assert told


def test_the_end_of_all_who_tell_is_seen() -> None:
    """The process that listens learns that nobody is left, when the last other one has ended."""
    events = ReadEvents(quiet=0)
    gate, opener = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(opener)
        os.read(gate, 1)
        os._exit(0)
    os.close(gate)
    events.emit(ONE)
    events.listen()
    assert events.receive(60.0) == [ONE]
    assert events.receive(0.0) == []
    os.close(opener)
    assert events.receive(60.0) is None
    os.waitpid(pid, 0)


def test_the_first_few_are_kept_back() -> None:
    """A mount of which a handful of files is read starts no process for it."""
    events = ReadEvents()
    events.emit(LOOK_UP)
    assert events.receive(60.0) == []
    for n in range(QUIET + 3):
        events.emit(ONE._replace(first=n))
    assert events.receive(60.0) == [ONE._replace(first=QUIET + n) for n in range(3)]

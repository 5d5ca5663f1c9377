"""Slots of shared memory."""

from __future__ import annotations

import os

import pytest

from lodefs.chunkstore.push.workers.worker import SharedSlots


def test_slots_do_not_overlap() -> None:
    """What is written to one slot is in no other, neither data nor messages."""
    arena = SharedSlots(3, 100, 100)
    for slot in arena.slots:
        slot.data[:] = bytes([slot.number + 1]) * len(slot.data)
        slot.write_message(bytes([slot.number + 11]) * 100)
    for slot in arena.slots:
        assert set(slot.data) == {slot.number + 1}
        assert set(slot.read_message()) == {slot.number + 11}
    arena.close()


def test_messages_have_any_length() -> None:
    """A shorter message after a longer one is read as it was written."""
    arena = SharedSlots(1, 1, 50)
    for message in (b"a" * 50, b"", b"bc"):
        arena.slots[0].write_message(message)
        assert bytes(arena.slots[0].read_message()) == message
    arena.close()


def test_message_without_room_is_refused() -> None:
    """A message that does not fit is an error, not a spoiled neighbour."""
    arena = SharedSlots(1, 1, 50)
    with pytest.raises(ValueError, match="does not fit"):
        arena.slots[0].write_message(bytes(5000))
    arena.close()


def test_a_child_shares_the_memory() -> None:
    """What a forked process writes is seen here."""
    arena = SharedSlots(1, 10, 10)
    pid = os.fork()
    if pid == 0:
        arena.slots[0].data[:5] = b"child"
        os._exit(0)
    os.waitpid(pid, 0)
    assert bytes(arena.slots[0].data[:5]) == b"child"
    arena.close()


def test_close_while_looked_at() -> None:
    """Closing an arena twice, or while a view is kept, is no error."""
    arena = SharedSlots(1, 10, 10)
    kept = arena.slots[0].data
    arena.close()
    arena.close()
    assert len(kept) >= 10

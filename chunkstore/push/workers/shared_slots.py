"""Memory that a push and its worker processes share: slots that are got once and used again.

Fresh pages are what a fast push waits for most, so a slot keeps its pages from one unit of work to
the next, and chunks go from the file to the pack without ever leaving it.
"""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class Slot:
    """Room for the bytes of one unit of work (``data``) and for messages about it."""

    number: int
    data: memoryview
    _messages: memoryview

    def write_message(self, message: bytes) -> None:
        """Leaves ``message`` for the other side. Raises: ValueError if it is larger than its
        room."""
        end = _LENGTH_BYTES + len(message)
        if end > len(self._messages):
            raise ValueError(f"a message of {len(message)} bytes has no room in the slot")
        self._messages[:_LENGTH_BYTES] = len(message).to_bytes(_LENGTH_BYTES, "little")
        self._messages[_LENGTH_BYTES:end] = message

    def read_message(self) -> memoryview:
        """What the other side left; valid until the next message is written."""
        size = int.from_bytes(self._messages[:_LENGTH_BYTES], "little")
        return self._messages[_LENGTH_BYTES : _LENGTH_BYTES + size]


class SharedSlots:
    """``count`` slots in one anonymous mapping that forked processes share."""

    def __init__(self, count: int, data_bytes: int, messages_bytes: int) -> None:
        data_bytes = _whole_pages(data_bytes)
        step = data_bytes + _whole_pages(messages_bytes + _LENGTH_BYTES)
        self._map = mmap.mmap(-1, count * step)
        self._view = memoryview(self._map)
        self.slots: list[Slot] = []
        for number in range(count):
            room = self._view[number * step : (number + 1) * step]
            self.slots.append(Slot(number, room[:data_bytes], room[data_bytes:]))

    def close(self) -> None:
        """Frees the memory; if it is still referenced, when the last view goes."""
        self.slots.clear()
        self._view.release()
        with contextlib.suppress(BufferError):
            self._map.close()


def _whole_pages(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

"""A table of open files and their modes, in memory that all workers of a mount share.

One inode must never be open in cached and in passthrough mode at once, nor with two backing files
(fs/fuse/iomode.c of Linux: the application would get EIO). So every open file that may be of
either kind has a row here, from before its OPEN is answered until its RELEASE comes. Only rows say
what is open: there are no counts that a killed process could leave wrong. One store of 8 bytes, its
inode number, makes a row valid, and another removes it.

Requests may come twice if a worker was killed: a repeated OPEN finds its row, and a RELEASE without
a row was counted before.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt

ROWS_MAX = 1 << 18  # files open at once; more of them end passthrough for the mount
CACHED = 0  # instead of the id of a backing file
_SPOILT = 1 << 63  # set in the id of a file that was cut; the kernel's ids have 31 bits

_WORD_BYTES = 8
_HEAD_WORDS = 512  # one page
_TOP, _REFUSED, _GRANTED, _OVERFLOWN, _MARKED_S = range(5)  # words of the head
_SLOT_BITS = 18
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_REQUEST_MASK = (1 << (64 - _SLOT_BITS)) - 1
_PINNED = 1  # instead of a request number, which is even: no RELEASE removes the row


class Opened(NamedTuple):
    """``handle``: what RELEASE will name, 0 if it need not; ``backing``: CACHED or an id."""

    handle: int
    backing: int


class OpenFileTable:
    """The table in the memory file ``fd``, which every process inherits and maps.

    Locked by fcntl(2), whose locks end with their process. ``fd`` must stay open, and must not be
    duplicated: closing any descriptor of it releases the lock.
    """

    def __init__(self, fd: int, *, rows_max: int = ROWS_MAX) -> None:
        if not 0 < rows_max <= ROWS_MAX:
            raise ValueError(f"rows_max must be 1 to {ROWS_MAX}")
        size_bytes = _WORD_BYTES * (_HEAD_WORDS + 3 * rows_max)
        os.ftruncate(fd, size_bytes)
        self.fd = fd
        self._rows_max = rows_max
        words = memoryview(mmap.mmap(fd, size_bytes)).cast("Q")
        self._head = words[:_HEAD_WORDS]
        self._inos, self._requests, self._backings = (
            words[_HEAD_WORDS + n * rows_max : _HEAD_WORDS + (n + 1) * rows_max] for n in range(3)
        )
        self._lock = Lock()

    @classmethod
    def create(cls, *, rows_max: int = ROWS_MAX) -> OpenFileTable:
        """Returns an empty table in a new memory file."""
        return cls(os.memfd_create("lodefs-handles", os.MFD_CLOEXEC), rows_max=rows_max)

    def enter(self, ino: int, request: int, backing: int | None = None) -> Opened | None:
        """Counts an open of ``ino`` by the OPEN number ``request``.

        A file that is already open keeps its mode, whatever ``backing`` says. Another file is
        opened with ``backing``; with None it is left alone, and None is returned. A ``backing``
        that is not in the result is unused. Raises: Corrupt, if its backing file is damaged: the
        kernel accepts no other one until its last close.
        """
        with self._locked():
            top = self._head[_TOP]
            inos = self._inos[:top].tobytes()
            slot = _find(self._requests[:top].tobytes(), request)
            if slot >= 0 and self._inos[slot] == ino:
                return Opened(_handle(slot, request), self._sound(slot))
            other = _find(inos, ino)
            if other >= 0:
                backing = self._sound(other)
            elif backing is None:
                return None
            elif self._head[_OVERFLOWN]:
                backing = CACHED
            slot = _find(inos, 0)
            if slot < 0:
                slot = top
            if slot == self._rows_max:
                return self._overflow(other, backing)
            self._requests[slot] = request
            self._backings[slot] = backing
            self._head[_TOP] = max(top, slot + 1)
            self._inos[slot] = ino
            return Opened(_handle(slot, request), backing)

    def _overflow(self, other: int, backing: int) -> Opened:
        """Handles an open without a free row. Its inode keeps its mode for ever: by a row that is
        never removed or, if cached, because nothing else is passed through any more."""
        self._head[_OVERFLOWN] = 1
        if other < 0:
            return Opened(0, CACHED)
        self._requests[other] = _PINNED
        return Opened(0, backing)

    def leave(self, handle: int) -> int:
        """Counts a RELEASE. Returns the id of a backing file that is no longer needed, or
        CACHED."""
        slot, request = handle & _SLOT_MASK, handle >> _SLOT_BITS
        with self._locked():
            top = self._head[_TOP]
            if slot >= top or _short(self._requests[slot]) != request or not self._inos[slot]:
                return CACHED
            ino, backing = self._inos[slot], self._backings[slot] & ~_SPOILT
            self._inos[slot] = 0
            self._requests[slot] = 0
            while top and not self._inos[top - 1]:
                top -= 1
            self._head[_TOP] = top
            if backing == CACHED or _find(self._inos[:top].tobytes(), ino) >= 0:
                return CACHED
            return backing

    def backing(self, ino: int) -> int | None:
        """Returns the id of an open file's backing file, CACHED, or None if it is not open."""
        with self._locked():
            slot = _find(self._inos[: self._head[_TOP]].tobytes(), ino)
            return self._backings[slot] & ~_SPOILT if slot >= 0 else None

    def spoil(self, ino: int) -> None:
        """Refuses further opens of a file in passthrough mode, until its last close."""
        with self._locked():
            for slot in range(self._head[_TOP]):
                if self._inos[slot] == ino and self._backings[slot] != CACHED:
                    self._backings[slot] |= _SPOILT

    def _sound(self, slot: int) -> int:
        backing = self._backings[slot]
        if backing & _SPOILT:
            raise Corrupt(
                f"inode {self._inos[slot]} is open, and its file of the cache, which the kernel "
                "reads, was cut; close it everywhere, and it is fetched again"
            )
        return backing

    def passed_through(self) -> set[int]:
        """Returns the inodes that are open in passthrough mode."""
        with self._locked():
            top = self._head[_TOP]
            inos, backings = self._inos[:top].tolist(), self._backings[:top].tolist()
        pairs = zip(inos, backings, strict=True)
        return {ino for ino, backing in pairs if ino and backing != CACHED}

    def count(self) -> int:
        """Returns the number of open files."""
        with self._locked():
            return sum(map(bool, self._inos[: self._head[_TOP]].tolist()))

    @property
    def is_overflown(self) -> bool:
        """Whether there were ever more open files than rows."""
        return bool(self._head[_OVERFLOWN])

    @property
    def refused(self) -> int:
        """The errno with which the kernel refused passthrough permanently; 0: none."""
        return self._head[_REFUSED]

    def refuse(self, code: int) -> bool:
        """Records an errno. Returns whether it is the first."""
        with self._locked():
            is_first = not self._head[_REFUSED]
            if is_first:
                self._head[_REFUSED] = code
            return is_first

    @property
    def granted(self) -> bool:
        """Whether the kernel ever took a backing file."""
        return bool(self._head[_GRANTED])

    def grant(self) -> None:
        """Records that the kernel took a backing file."""
        self._head[_GRANTED] = 1

    def turn(self, now_s: float, period_s: float) -> bool:
        """Whether the caller should now do what one of all processes does every ``period_s``."""
        with self._locked():
            last_s = self._head[_MARKED_S]  # 0: it was never done, however short the uptime is
            is_due = not last_s or not last_s <= now_s < last_s + period_s
            if is_due:
                self._head[_MARKED_S] = int(now_s)
            return is_due

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)


def _short(request: int) -> int:
    return request & _REQUEST_MASK


def _handle(slot: int, request: int) -> int:
    return _short(request) << _SLOT_BITS | slot


def _find(column: bytes, word: int) -> int:
    """Returns the first row of a column that holds a word; -1 without one."""
    wanted = word.to_bytes(_WORD_BYTES, sys.byteorder)
    place = column.find(wanted)
    while place >= 0 and place % _WORD_BYTES:
        place = column.find(wanted, place + 1)
    return place // _WORD_BYTES

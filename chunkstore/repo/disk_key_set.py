"""A set of very many short keys in temporary files, which takes hardly any memory.

Each file is a table of slots with open addressing, four times as large as the one before. The files
are mapped, so the kernel caches as much of them as fits into memory.
"""

from __future__ import annotations

import mmap
import os
import tempfile

from lodefs.chunkstore.system.os_errors import kind_of

KEY_BYTES = 16
SLOTS_MIN = 1 << 16
GROWTH = 4
LOAD_MAX = 0.5
_EMPTY = bytes(KEY_BYTES)


class DiskKeySet:
    """Keys of KEY_BYTES random bytes, such as digests. For one thread; closed at the end of its
    block. 10 million keys take 357 MB in the directory for temporary files (TMPDIR)."""

    def __init__(self, slots_min: int = SLOTS_MIN) -> None:
        """``slots_min`` is the size of the first table, a power of two."""
        self._slots_next = slots_min
        self._tables: list[_Table] = []

    def __enter__(self) -> DiskKeySet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the files."""
        for table in self._tables:
            table.close()

    def __bool__(self) -> bool:
        return bool(self._tables)

    def __contains__(self, key: bytes) -> bool:
        return any(table.has(key) for table in self._tables)

    def add(self, key: bytes) -> bool:
        """Adds a key. Returns whether it is new. Raises: NoSpace, Denied, Unavailable."""
        tables = self._tables
        if any(table.has(key) for table in tables):
            return False
        if not tables or tables[-1].is_full:
            tables.append(_Table(self._slots_next))
            self._slots_next *= GROWTH
        tables[-1].put(key)
        return True


class _Table:
    """One file of slots."""

    def __init__(self, slots: int) -> None:
        self._mask = slots - 1
        self._room = int(slots * LOAD_MAX)
        size_bytes = slots * KEY_BYTES
        try:
            with tempfile.TemporaryFile(prefix="lodefs-") as file:
                # a write to a hole without disk space would end the process
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                self._slots = mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            raise kind_of(error)(
                f"no temporary file of {size_bytes} bytes can be made in {tempfile.gettempdir()} "
                f"({error.strerror}): set TMPDIR to a directory with more room"
            ) from error

    @property
    def is_full(self) -> bool:
        """Whether it has no room for another key."""
        return self._room <= 0

    def has(self, key: bytes) -> bool:
        """Whether the table has the key."""
        at = self._find(key)
        return self._slots[at : at + KEY_BYTES] == key

    def put(self, key: bytes) -> None:
        """Adds a key that the table does not have."""
        at = self._find(key)
        self._slots[at : at + KEY_BYTES] = key
        self._room -= 1

    def close(self) -> None:
        """Frees the file."""
        self._slots.close()

    def _find(self, key: bytes) -> int:
        """Returns the offset of the slot that has the key, or would have it."""
        slots, mask = self._slots, self._mask
        slot = int.from_bytes(key[:8], "little") & mask
        while True:
            at = slot * KEY_BYTES
            found = slots[at : at + KEY_BYTES]
            if found in (key, _EMPTY):
                return at
            slot = (slot + 1) & mask

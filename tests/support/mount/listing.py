"""readdir(3) and what moves its position, which Python does not offer: for tests of listings."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class _Entry(ctypes.Structure):
    _fields_ = (
        ("ino", ctypes.c_uint64),
        ("off", ctypes.c_int64),
        ("size", ctypes.c_ushort),
        ("kind", ctypes.c_ubyte),
        ("name", ctypes.c_char * 256),
    )


class Directory:
    """An open directory. OSError."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.opendir.restype = ctypes.c_void_p
        self._libc.readdir.restype = ctypes.POINTER(_Entry)
        self._libc.telldir.restype = ctypes.c_long
        self._at = ctypes.c_void_p(self._libc.opendir(os.fsencode(path)))
        if not self._at:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def read(self, limit: int = 1 << 30) -> list[bytes]:
        """The next names."""
        names: list[bytes] = []
        while len(names) < limit and (entry := self._libc.readdir(self._at)):
            names.append(bytes(entry.contents.name))
        return names

    def tell(self) -> int:
        """A position to ``seek`` to, good until the directory is closed."""
        return int(self._libc.telldir(self._at))

    def seek(self, position: int) -> None:
        """Goes to a position that ``tell`` gave."""
        self._libc.seekdir(self._at, ctypes.c_long(position))

    def rewind(self) -> None:
        """Goes to the beginning."""
        self._libc.rewinddir(self._at)

    def close(self) -> None:
        """Frees the descriptor."""
        self._libc.closedir(self._at)


@contextmanager
def opened(path: Path) -> Iterator[Directory]:
    """A directory, closed at the end."""
    directory = Directory(path)
    try:
        yield directory
    finally:
        directory.close()

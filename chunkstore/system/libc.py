"""Calls functions of the C library that Python's ``os`` lacks."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FUSE = 0x65735546  # linux/magic.h
_STATFS_BYTES = 256  # the struct has 120
_CACHESTAT = 451  # the number of the system call
_CACHESTAT_RANGE, _CACHESTAT_COUNTS = struct.Struct("=QQ"), struct.Struct("=5Q")


def call(function: str, *arguments: Any) -> int:
    """Returns the function's result. Raises: OSError if that is negative."""
    import ctypes  # here, since it is slow to import

    result = _function(function)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@cache  # to load the library again for each call takes longer than most calls
def _function(name: str) -> Callable[..., int]:
    import ctypes

    found: Callable[..., int] = getattr(ctypes.CDLL(None, use_errno=True), name)
    return found


def file_system_of(where: int | Path) -> int:
    """Returns ``f_type`` of statfs(2) for a descriptor or a path. Raises: OSError."""
    import ctypes

    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if isinstance(where, int):
        call("fstatfs", where, found)
    else:
        call("statfs", os.fsencode(where), found)
    (kind,) = struct.unpack_from("@l", found.raw)
    return int(kind) & 0xFFFFFFFF


def cached_pages(fd: int, offset: int, size_bytes: int) -> int:
    """Returns how many pages of a range of a file are in the page cache. Unlike a read with
    RWF_NOWAIT it starts no read-ahead. Raises: OSError before Linux 6.5, and on newer kernels for
    files of others that the process may not write."""
    import ctypes

    counts = ctypes.create_string_buffer(_CACHESTAT_COUNTS.size)
    call("syscall", _CACHESTAT, fd, _CACHESTAT_RANGE.pack(offset, size_bytes), counts, 0)
    return int(_CACHESTAT_COUNTS.unpack(counts.raw)[0])

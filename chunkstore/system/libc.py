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

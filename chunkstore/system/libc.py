"""Calls functions of the C library that Python's ``os`` lacks."""

from __future__ import annotations

import os
from typing import Any


def call(function: str, *arguments: Any) -> int:
    """What the function returns. Raises: OSError if that is less than 0."""
    import ctypes  # here: it is slow to import

    result: int = getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result

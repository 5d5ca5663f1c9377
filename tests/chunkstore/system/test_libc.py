"""What the C library says that Python does not ask it for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.safe_open import PLACE, closing

PROC = 0x9FA0  # linux/magic.h


def test_the_file_system_of_proc() -> None:
    """It has its number by a path and by a descriptor; what is missing is an error."""
    with closing(os.open("/proc", PLACE)) as fd:
        assert libc.file_system_of(Path("/proc")) == libc.file_system_of(fd) == PROC
    with pytest.raises(FileNotFoundError):
        libc.file_system_of(Path("/proc/no/such"))

"""What the kernel has in its page cache."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path


def pages_in_memory(path: Path) -> list[bool]:
    """Of each page of a file, whether it is in memory, mincore(2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        found = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        address, size = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped))
        if ctypes.CDLL(None).mincore(address, size, found) != 0:
            raise AssertionError(f"mincore fails for {path}")
        del first  # else the mapping cannot be closed
    return [bool(page & 1) for page in found]

"""How much of the machine's memory may be used for reading ahead from the cache's own files."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")  # proc(5)
NEIGHBOURS_SIZE_BYTES = 256 * 1024


def neighbours_size_bytes(snapshot_bytes: int, available_bytes: int) -> int:
    """How many bytes of a slab to bring to memory when some of them must come from the disk.

    A slab holds small files by their paths, whatever the order in which they are read. Where a
    dataset fits into the memory that is free, all of it is there after few reads of the disk.
    Where it does not, neighbours would be gone before they are wanted: 0.
    """
    return NEIGHBOURS_SIZE_BYTES if snapshot_bytes <= available_bytes // 2 else 0


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """What the kernel could give away without swapping; 0 where it does not tell."""
    try:
        text = meminfo.read_text("ascii")
    except OSError:
        return 0
    words = text.partition("MemAvailable:")[2].split(maxsplit=1)
    return int(words[0]) * 1024 if words and words[0].isdigit() else 0

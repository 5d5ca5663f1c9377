"""How much of the machine's memory a dataset may be expected to have."""

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


def fits(snapshot_bytes: int, total_bytes: int) -> bool:
    """Whether a dataset can stay in the page cache beside whatever the machine is for: twice, as
    files of the mount and as files of the cache."""
    return snapshot_bytes <= total_bytes // 4


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """What the kernel could give away without swapping; 0 where it does not tell."""
    return _figure(meminfo, "MemAvailable:")


def total_bytes(meminfo: Path = MEMINFO) -> int:
    """All memory of the machine; 0 where the kernel does not tell."""
    return _figure(meminfo, "MemTotal:")


def _figure(meminfo: Path, name: str) -> int:
    try:
        text = meminfo.read_text("ascii")
    except OSError:
        return 0
    words = text.partition(name)[2].split(maxsplit=1)
    return int(words[0]) * 1024 if words and words[0].isdigit() else 0

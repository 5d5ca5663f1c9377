"""The share of the machine's memory that a dataset may take."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")  # proc(5)
NEIGHBOURS_SIZE_BYTES = 256 * 1024


def neighbours_size_bytes(snapshot_bytes: int, available_bytes: int) -> int:
    """Returns the number of bytes of a slab to read into memory when some of them must come from
    the disk.

    A slab holds small files by their paths, whatever the order in which they are read. If a dataset
    fits into free memory, all of it is there after a few reads. If not, neighbours would be dropped
    before they are used: 0.
    """
    return NEIGHBOURS_SIZE_BYTES if snapshot_bytes <= available_bytes // 2 else 0


def fits(snapshot_bytes: int, total_bytes: int) -> bool:
    """Whether a dataset can stay in the page cache beside everything else on the machine. It counts
    twice: as files of the mount and as files of the cache."""
    return snapshot_bytes <= total_bytes // 4


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """Returns the bytes that the kernel could free without swapping; 0 if it does not say."""
    return _figure(meminfo, "MemAvailable:")


def total_bytes(meminfo: Path = MEMINFO) -> int:
    """Returns the memory of the machine in bytes; 0 if the kernel does not say."""
    return _figure(meminfo, "MemTotal:")


def _figure(meminfo: Path, name: str) -> int:
    try:
        text = meminfo.read_text("ascii")
    except OSError:
        return 0
    words = text.partition(name)[2].split(maxsplit=1)
    return int(words[0]) * 1024 if words and words[0].isdigit() else 0

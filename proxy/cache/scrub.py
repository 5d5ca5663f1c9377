"""Scrubbing: reads the cache's files again in idle time and checks them against their chunks' ids.

Files of the cache do not change, but disks lose data. A damaged file is dropped, and fetched again
on demand. The scrub bypasses the kernel's page cache if the file system supports that. It reads at
a bounded rate, and not while the disk has other work. It reads files that were used since their
last check first, and then the least recently checked ones. See
docs/decisions/0023-bits-that-flip.md.
"""

from __future__ import annotations

import heapq
import logging
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache.verify import WINDOW_SIZE_BYTES
from lodefs.proxy.cache import durability
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.config import SCRUB_BYTES_PER_S, SCRUB_DAYS
from lodefs.proxy.metrics.counters import Counter

log = logging.getLogger("lodefs.cache")

DAY_S = 86400
PIECE_SIZE_BYTES = WINDOW_SIZE_BYTES  # read at once, before others get a turn
LOOK_EVERY_S = 30.0  # for files that are due
FILES_MAX = 1024  # for one look
BUSY_LOOK_S = 0.5
BUSY_PAUSE_S_MAX = 10.0  # for one piece: a node that is always busy is checked, too, but slowly


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """``bytes_per_s_max`` 0 turns scrubbing off. Bytes that were not checked for ``days`` are
    checked before use; the scrub reads them after half of that time."""

    bytes_per_s_max: int = SCRUB_BYTES_PER_S
    days: int = SCRUB_DAYS


@dataclass(frozen=True, slots=True)
class Coverage:
    """Bytes of the cache's files by the time of their last check. ``oldest_s`` is the oldest check
    (Unix time) of files that were ever checked, or 0."""

    fresh_bytes: int = 0  # checked, or written, within the days
    old_bytes: int = 0
    never_bytes: int = 0
    oldest_s: int = 0


class Load(Protocol):
    """Tells whether the disk has other work."""

    def mark(self) -> None:
        """Starts a new period."""

    def is_busy(self) -> bool:
        """Whether there was other work since the last call of either method."""


def is_old(file: CacheFile, since_s: float, now_s: float) -> bool:
    """Whether a file's last check was before a time. A check in the future does not count, since
    clocks change."""
    return not since_s <= file.checked_s <= now_s + DAY_S


def coverage(files: Iterable[CacheFile], since_s: float, now_s: float) -> Coverage:
    """Returns how much of the files was checked since a time."""
    fresh = old = never = oldest_s = 0
    for file in files:
        if not file.checked_s:
            never += file.present_bytes
            continue
        oldest_s = min(oldest_s or file.checked_s, file.checked_s)
        if is_old(file, since_s, now_s):
            old += file.present_bytes
        else:
            fresh += file.present_bytes
    return Coverage(fresh, old, never, oldest_s)


def due(files: Iterable[CacheFile], since_s: float, now_s: float) -> list[CacheFile]:
    """Returns the first files to check, of those that were not checked since a time."""
    wanted = (file for file in files if file.present_bytes and is_old(file, since_s, now_s))
    return heapq.nsmallest(FILES_MAX, wanted, key=_turn)


def _turn(file: CacheFile) -> tuple[bool, int]:
    return (file.last_use_s <= file.checked_s, file.checked_s)


class Scrub:
    """Scrubs one cache. ``run`` blocks, in a thread of its own; other methods are for any
    thread."""

    def __init__(
        self,
        cache: Cache,
        settings: ScrubSettings,
        load: Load,
        *,
        booted_s: float | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._cache = cache
        self.settings = settings
        self._load = load
        self._booted_s = booted_s
        self._look_every_s = look_every_s
        self._stop = threading.Event()
        self._owed_bytes = 0  # read since the last pause
        self._scrubbed_bytes = 0
        self._looked_s, self._looked_bytes = time.monotonic(), 0
        self.bytes_per_s = 0.0  # between the last two looks
        self.coverage = Coverage()
        self.look()

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> dict[str, object]:
        seen, now_s = self.coverage, self._cache.now_s()
        age = {"scrub_oldest_check_age_s": int(now_s - seen.oldest_s)} if seen.oldest_s else {}
        return {
            "scrub_bytes_per_s_max": self.settings.bytes_per_s_max,
            "scrub_bytes_per_s": int(self.bytes_per_s),
            "scrub_days": self.settings.days,
            "scrub_fresh_bytes": seen.fresh_bytes,
            "scrub_old_bytes": seen.old_bytes,
            "scrub_never_bytes": seen.never_bytes,
            **age,
        }

    def look(self) -> None:
        """Marks the files that must be checked before use, and counts the others."""
        files, now_s = self._cache.all_files(), self._cache.now_s()
        period_s = self.settings.days * DAY_S
        since_s = max(now_s - period_s, self._boot_s(now_s))
        for file in files:
            file.mark_stale(is_stale=is_old(file, since_s, now_s))
        self.coverage = coverage(files, now_s - period_s, now_s)
        elapsed_s = time.monotonic() - self._looked_s
        if elapsed_s > 0:
            self.bytes_per_s = (self._scrubbed_bytes - self._looked_bytes) / elapsed_s
        self._looked_s, self._looked_bytes = time.monotonic(), self._scrubbed_bytes

    def _boot_s(self, now_s: float) -> float:
        """Returns when the machine started, by the present clock, which may have been set since."""
        if self._booted_s is not None:
            return self._booted_s
        return now_s - time.clock_gettime(time.CLOCK_BOOTTIME)

    def _due(self) -> list[CacheFile]:
        """Returns the files to check now. Recovery checks those that a power cut may have
        damaged."""
        now_s = self._cache.now_s()
        since_s = max(now_s - self.settings.days * DAY_S / 2, self._boot_s(now_s))
        files = [file for file in self._cache.all_files() if file.is_recovered(self._cache.boot)]
        return due(files, since_s, now_s)

    def run(self) -> None:
        """Scrubs until ``stop``. The rate must not be 0."""
        window = mmap.mmap(-1, WINDOW_SIZE_BYTES)
        while not self._stop.is_set():
            files = self._due()
            problem: LodefsError | None = None
            for file in files:
                try:
                    if file.is_alive:
                        durability.check(self._cache, file, pace=self._pace, window=window)
                except durability.Stopped:
                    return
                except LodefsError as error:
                    problem = error
            if problem is not None:
                log.warning("files of the cache are not scrubbed for now: %s", problem)
            if problem is not None or len(files) < FILES_MAX:
                self._stop.wait(self._look_every_s)

    def _pace(self, size_bytes: int) -> None:
        """Waits after each piece, for the rate and for others that use the disk. Raises:
        Stopped."""
        if self._stop.is_set():
            raise durability.Stopped
        self._cache.counts.add(Counter.SCRUBBED_BYTES, size_bytes)
        self._scrubbed_bytes += size_bytes
        self._owed_bytes += size_bytes
        if self._owed_bytes < PIECE_SIZE_BYTES:
            return
        pause_s = self._owed_bytes / self.settings.bytes_per_s_max
        self._owed_bytes = 0
        self._load.mark()
        waited_s = 0.0
        while waited_s < max(pause_s, BUSY_PAUSE_S_MAX):
            wait_s = BUSY_LOOK_S if waited_s else pause_s
            if self._stop.wait(wait_s):
                raise durability.Stopped
            waited_s += wait_s
            if not self._load.is_busy():
                return


BUSY_SHARE_MIN = 0.25  # share of the time
_IO_TICKS = 9  # the field: milliseconds
SYSTEM = Path("/sys/dev/block")


class DiskLoad:
    """The load of the disk under a directory since the last ``mark``, as the kernel counts it for
    all processes (Linux' Documentation/block/stat.rst). For one thread.

    ``work`` returns the node's own load: bytes that are coming from the store and will be written
    soon, and the number of reads so far. The reads count if the file system's disk is unknown
    (overlayfs, btrfs, a network file system).
    """

    def __init__(
        self,
        directory: Path,
        work: Callable[[], tuple[int, int]],
        *,
        system: Path = SYSTEM,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        device = directory.stat().st_dev
        self._stat = system / f"{os.major(device)}:{os.minor(device)}" / "stat"
        self._work = work
        self._clock_s = clock_s
        self.mark()

    def mark(self) -> None:
        """Starts a new period."""
        self._since_s, self._ticks, self._reads = self._clock_s(), self._read(), self._work()[1]

    def is_busy(self) -> bool:
        """Whether there is other work. Moves the mark to now."""
        since_s, ticks, reads = self._since_s, self._ticks, self._reads
        self.mark()
        if self._work()[0]:
            return True
        if ticks is None or self._ticks is None:
            return self._reads > reads
        return (self._ticks - ticks) / 1000 >= (self._since_s - since_s) * BUSY_SHARE_MIN > 0

    def _read(self) -> int | None:
        try:
            return int(self._stat.read_text("ascii").split()[_IO_TICKS])
        except (OSError, ValueError, IndexError):
            return None

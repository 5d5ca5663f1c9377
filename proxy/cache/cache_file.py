"""One slab or flat file of the cache: its row, its descriptor, and writing to it.

Bytes are added, never changed. The first caller that needs the descriptor opens it. Only
``close_if_idle`` closes it, and only the event loop calls that, so that an extent that was just
returned stays valid.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.system import batched_writes
from lodefs.chunkstore.system.os_errors import DAMAGED
from lodefs.chunkstore.types import Buffer


class CacheFile:
    """A slab or flat file. Fields change only under ``lock``; ``fd`` is -1 while it is closed."""

    __slots__ = (
        "_cache_dir",
        "_held",
        "_writing",
        "asked_bytes",
        "boot",
        "checked_s",
        "content",
        "fd",
        "generation",
        "holes",
        "is_stale",
        "kind",
        "last_use_s",
        "length_bytes",
        "lock",
        "number",
        "on_open",
        "owner",
        "pinned_until_s",
        "present_bytes",
        "read_bytes",
        "reserved_bytes",
        "saved_use_s",
        "size_bytes",
        "staled",
        "state",
        "users",
    )

    def __init__(
        self,
        number: int,
        row: FileRow,
        cache_dir: Path,
        held: Path,
        on_open: Callable[[CacheFile], None],
    ) -> None:
        """``held`` is CacheDir's: the same directory as ``cache_dir``, whatever lies there."""
        self.number = number
        self.on_open = on_open
        self.kind = row.kind
        self.state = row.state
        self.boot = row.boot
        self.content = row.content
        self.size_bytes = row.size_bytes
        self.present_bytes = row.present_bytes
        # Bytes that were fetched because somebody asked for them, and bytes that were read, which
        # include those. Bytes of an earlier proxy count as both, since nothing is known of them.
        self.asked_bytes = self.read_bytes = row.present_bytes
        self.last_use_s = self.saved_use_s = row.last_use_s
        self.owner = ""  # its last known writer or user
        self.pinned_until_s = 0  # Unix time
        self.checked_s = 0  # Unix time when its bytes were last known to be right; 0: unknown
        self.is_stale = False  # checked_s is too long ago: check bytes before use
        self.staled = 0  # how often it became stale, which voids older knowledge
        self._cache_dir = cache_dir
        self._held = held
        self.reserved_bytes = row.size_bytes  # of a slab: the offset of the next bytes
        # The least size in the file system, unless it was truncated
        self.length_bytes = row.size_bytes
        self.holes: list[tuple[int, int]] = []  # of a slab: offset and size of unused reservations
        self.generation = 0  # counts the writes
        self.users = 0  # calls that need the descriptor, or need the file to stay
        self.fd = -1
        self.lock = threading.Lock()
        self._writing = threading.Lock()  # only for speed: see write

    @property
    def row(self) -> FileRow:
        return FileRow(
            self.kind,
            self.state,
            self.boot,
            self.content,
            self.size_bytes,
            self.present_bytes,
            self.last_use_s,
        )

    @property
    def path(self) -> Path:
        """Its path for messages. It is computed each time, since a cache has many files and few are
        opened."""
        return layout.file_path(self._cache_dir, self.number, self.row)

    @property
    def held_path(self) -> Path:
        """Its path for calls of the file system."""
        return layout.file_path(self._held, self.number, self.row)

    @property
    def unread_bytes(self) -> int:
        """The least number of bytes that nobody has read; reading twice counts twice."""
        return max(self.present_bytes - self.read_bytes, 0)

    @property
    def is_alive(self) -> bool:
        return self.state is not FileState.EVICTED

    @property
    def is_whole(self) -> bool:
        """Whether it is a dataset file, complete."""
        return self.kind is FileKind.FLAT and self.state is FileState.COMPLETE

    def is_evictable(self, now_s: float) -> bool:
        """Whether it is neither pinned nor in use."""
        return not self.users and self.pinned_until_s <= now_s

    def is_trusted(self, boot: bytes) -> bool:
        """Whether its indexed bytes can be used without a check."""
        return self.is_recovered(boot) and not self.is_stale

    def is_recovered(self, boot: bytes) -> bool:
        """Whether its indexed bytes were written since this boot, or are on disk. If not, a power
        cut may have damaged them."""
        return self.boot in (layout.DURABLE, boot)

    def mark_checked(self, when_s: int) -> None:
        """Notes that all of its bytes were right at a Unix time."""
        self.checked_s = when_s
        self.is_stale = False

    def mark_stale(self, *, is_stale: bool) -> None:
        """Sets whether its last check is too long ago."""
        if is_stale and not self.is_stale:
            self.staled += 1
        self.is_stale = is_stale

    def create(self) -> None:
        """Makes the file, without bytes. Raises: OSError."""
        path = self.held_path
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fd = os.open(path, flags, 0o644)
        self.on_open(self)
        self.checked_s, self.length_bytes = self.last_use_s, 0

    def lengthen(self, size_bytes: int) -> None:
        """Gives a file that bytes are to be written to its final size and one byte more, which no
        write reaches: so truncation shows for ever. It skips a damaged file. Raises: OSError."""
        length_bytes = size_bytes + 1
        if length_bytes > self.length_bytes and not self.damage():
            os.ftruncate(self.open(), length_bytes)
            self.length_bytes = length_bytes

    def finish(self) -> str:
        """Takes the last byte from a flat file whose bytes are all there, and makes it read-only.
        Returns what ``damage`` returns. Raises: OSError."""
        damage = batched_writes.damage(self.fd, self.length_bytes)
        if not damage:
            self.length_bytes = self.size_bytes  # first, since others look at both
            os.ftruncate(self.fd, self.size_bytes)
            os.fchmod(self.fd, 0o444)
        return damage

    def open(self) -> int:
        """Returns the descriptor, and opens it if it was closed. Raises: OSError, also if something
        else has the file's name, such as a symlink."""
        with self.lock:
            if self.fd < 0:
                place = layout.file_path(Path(), self.number, self.row)
                writable = self.state is FileState.OPEN
                self.fd = layout.open_file(self._held, place, writable=writable)
                self.on_open(self)
            return self.fd

    def damage(self) -> str:
        """Returns how the file was damaged, as far as its size and name show, or ""."""
        length_bytes = self.length_bytes  # before fstat: other threads may enlarge both
        try:
            return batched_writes.damage(self.open(), length_bytes)
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            return f"it cannot be opened: {error.strerror}"

    def write(self, offset: int, buffers: Sequence[Buffer]) -> str:
        """Adds bytes, unless the file was damaged. Returns what ``damage`` returns. Raises:
        OSError. If the file is truncated after that look, the look before the chunks are indexed
        finds it.

        Threads write to different places, or the same bytes to one place, so that none overwrites
        another's bytes. They take turns, since the kernel lets only one thread write to a file, and
        a thread that waits for that in the kernel keeps its processor busy.
        """
        fd = self.open()
        with self._writing:
            damage = self.damage()
            if not damage:
                batched_writes.write_at(fd, offset, buffers)
            return damage

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Frees an unused reserved part of a slab. It is reserved again once all parts after it are
        free, too. The caller holds the cache's lock."""
        self.holes.append((offset, size_bytes))
        self.holes.sort()
        while self.holes and sum(self.holes[-1]) == self.reserved_bytes:
            self.reserved_bytes = self.holes.pop()[0]

    @contextmanager
    def in_use(self) -> Iterator[int]:
        """Yields the descriptor, and keeps it open and the file from eviction. Raises: OSError."""
        with self.lock:
            self.users += 1
        try:
            yield self.open()
        finally:
            with self.lock:
                self.users -= 1

    def close_if_idle(self) -> bool:
        """Closes the descriptor unless it is in use. Returns whether it is closed now."""
        with self.lock:
            if self.users:
                return False
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            return True

"""One slab or flat file of the cache: its row, its descriptor, and writing to it.

Bytes are added, never changed. The first caller that needs the descriptor opens it. Only
``close_if_idle`` closes it, and only the event loop calls that, so that an extent that was just
handed out stays good.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.types import Buffer


class CacheFile:
    """A slab or flat file. Fields change under ``lock`` only; ``fd`` is -1 while closed."""

    __slots__ = (
        "_cache_dir",
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
        self, number: int, row: FileRow, cache_dir: Path, on_open: Callable[[CacheFile], None]
    ) -> None:
        self.number = number
        self.on_open = on_open
        self.kind = row.kind
        self.state = row.state
        self.boot = row.boot
        self.content = row.content
        self.size_bytes = row.size_bytes
        self.present_bytes = row.present_bytes
        # What was fetched because somebody asked for it, and what was read, that among it: of the
        # bytes of an earlier proxy it is not known, they count as both.
        self.asked_bytes = self.read_bytes = row.present_bytes
        self.last_use_s = self.saved_use_s = row.last_use_s
        self.owner = ""  # for whom it was written or used last, as far as that is known
        self.checked_s = 0  # Unix: when its bytes were last known to be right; 0: not known
        self.is_stale = False  # that is too long ago: they are checked before they are used
        self.staled = 0  # how often it became so: what was known of its bytes before is void
        self._cache_dir = cache_dir
        self.reserved_bytes = row.size_bytes  # of a slab: where the next bytes go
        self.length_bytes = row.size_bytes  # what the file system says at least, unless it was cut
        self.holes: list[tuple[int, int]] = []  # of a slab: offset and size of unused reservations
        self.generation = 0  # counts the writes
        self.users = 0  # calls that need the descriptor, or the file to stay
        self.fd = -1
        self.lock = threading.Lock()
        self._writing = threading.Lock()  # for speed alone: see write

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
        """Its path. Computed each time: a cache has many files, and few of them are opened."""
        return layout.file_path(self._cache_dir, self.number, self.row)

    @property
    def unread_bytes(self) -> int:
        """How many of its bytes nobody has read, at least: who reads twice counts twice."""
        return max(self.present_bytes - self.read_bytes, 0)

    @property
    def is_alive(self) -> bool:
        return self.state is not FileState.EVICTED

    def is_trusted(self, boot: bytes) -> bool:
        """Whether its indexed bytes can be used unchecked."""
        return self.is_recovered(boot) and not self.is_stale

    def is_recovered(self, boot: bytes) -> bool:
        """Whether its indexed bytes were written since this boot, or are on disk. If not, a power
        cut may have damaged them."""
        return self.boot in (layout.DURABLE, boot)

    def mark_checked(self, when_s: int) -> None:
        """All of its bytes were right at a time (Unix)."""
        self.checked_s = when_s
        self.is_stale = False

    def mark_stale(self, *, is_stale: bool) -> None:
        """Whether its last check is too long ago."""
        if is_stale and not self.is_stale:
            self.staled += 1
        self.is_stale = is_stale

    def note_asked(self, size_bytes: int) -> None:
        """Bytes came for which a reader waits, who gets them from memory."""
        self.asked_bytes += size_bytes
        self.read_bytes += size_bytes

    def note_used(self, size_bytes: int) -> None:
        """A mount read about so many bytes; of a whole dataset file the kernel may read all, and
        tells nobody."""
        is_whole = self.kind is FileKind.FLAT and self.state is FileState.COMPLETE
        self.read_bytes += self.present_bytes if is_whole else size_bytes

    def create(self) -> None:
        """Makes the file; a flat one with its final size and no bytes. Raises: OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fd = os.open(self.path, flags, 0o644)
        self.on_open(self)
        self.checked_s = self.last_use_s
        if self.kind is FileKind.FLAT:
            os.ftruncate(self.fd, self.size_bytes)

    def lengthen(self, length_bytes: int) -> None:
        """Gives a slab the length that it will have in the end, before bytes are written, as flat
        files have it: so it shows if somebody cuts it. Not one that was damaged. Raises:
        OSError."""
        if length_bytes > self.length_bytes and not self.damage():
            os.ftruncate(self.open(), length_bytes)
            self.length_bytes = length_bytes

    def open(self) -> int:
        """Returns the descriptor, and opens it if it was closed. Raises: OSError."""
        with self.lock:
            if self.fd < 0:
                writable = self.state is FileState.OPEN
                flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
                self.fd = os.open(self.path, flags)
                self.on_open(self)
            return self.fd

    def damage(self) -> str:
        """How the file was damaged, as far as its size and its name show; "" if it was not.

        Bytes that are written behind the end of a truncated file leave zeros before them, which
        no reader could tell from data.
        """
        length_bytes = self.length_bytes  # before the look at the file: others may add to both
        try:
            status = os.fstat(self.open())
        except FileNotFoundError:
            return "it was removed"
        if not status.st_nlink:
            return "it was removed"
        if status.st_size < length_bytes:
            return f"it was cut to {status.st_size} bytes"
        return ""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Adds bytes. Raises: OSError.

        Threads write to different places, or the same bytes to one place, so that none overwrites
        what another wrote. They take turns here because the kernel lets only one thread write to
        a file, and a thread that waits for that in the kernel keeps its processor busy.
        """
        fd = self.open()
        with self._writing:
            write_at(fd, offset, buffers)

    def give_back(self, offset: int, size_bytes: int) -> None:
        """A part of a slab that was reserved is not used: it is reserved again when all behind it
        was given back too. Under the cache's lock."""
        self.holes.append((offset, size_bytes))
        self.holes.sort()
        while self.holes and sum(self.holes[-1]) == self.reserved_bytes:
            self.reserved_bytes = self.holes.pop()[0]

    @contextmanager
    def in_use(self) -> Iterator[int]:
        """The descriptor, which stays open meanwhile. The file is not evicted. Raises: OSError."""
        with self.lock:
            self.users += 1
        try:
            yield self.open()
        finally:
            with self.lock:
                self.users -= 1

    def close_if_idle(self) -> bool:
        """Closes the descriptor unless it is in use; whether it is closed now."""
        with self.lock:
            if self.users:
                return False
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            return True

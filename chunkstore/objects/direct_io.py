"""Writes buffers to a file past the page cache (O_DIRECT), if the file system allows it.

A pack is written once, and its writer does not read it soon. Copying it through the page cache
would cost processor time and evict other data.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence

from lodefs.chunkstore.system.batched_writes import write_at
from lodefs.chunkstore.types import Buffer

DIRECT_SIZE_BYTES_MIN = 1 << 20  # smaller objects go through the page cache
BLOCK_SIZE_BYTES = 4096  # O_DIRECT's alignment of addresses, sizes and offsets (open(2), Notes)
_WINDOW_SIZE_BYTES = 4 << 20


class DirectWriter:
    """Writes files. It keeps one aligned window of 4 MiB for each thread that uses it."""

    def __init__(self) -> None:
        self._local = threading.local()

    def write(self, fd: int, data: Sequence[Buffer]) -> None:
        """Writes the joined buffers to an empty file. Raises: OSError."""
        try:
            _set_direct(fd, on=True)
        except OSError as error:
            if error.errno != errno.EINVAL:  # tmpfs of old kernels, or some FUSE file systems
                raise
            write_at(fd, 0, data)
            return
        window = self._window()
        filled, written = 0, 0
        for buffer in data:
            view = memoryview(buffer).cast("B")
            position = 0
            while position < len(view):
                count = min(len(view) - position, len(window) - filled)
                window[filled : filled + count] = view[position : position + count]
                filled, position = filled + count, position + count
                if filled == len(window):
                    _write_at(fd, window, written)
                    filled, written = 0, written + filled
        if filled:
            blocks = -(-filled // BLOCK_SIZE_BYTES) * BLOCK_SIZE_BYTES
            _write_at(fd, window[:blocks], written)
            os.ftruncate(fd, written + filled)

    def _window(self) -> memoryview:
        window: memoryview | None = getattr(self._local, "window", None)
        if window is None:
            window = memoryview(mmap.mmap(-1, _WINDOW_SIZE_BYTES))  # page-aligned
            self._local.window = window
        return window


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    """Writes all of ``data``, through the page cache once O_DIRECT was refused or stopped short."""
    done = 0
    while done < len(data):
        try:
            done += os.pwrite(fd, data[done:], offset + done)
        except OSError as error:
            if error.errno != errno.EINVAL or not _is_direct(fd):
                raise
            _set_direct(fd, on=False)


def _is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def _set_direct(fd: int, *, on: bool) -> None:
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)

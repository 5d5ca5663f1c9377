"""The chunks of a file on this machine, read through a buffer of bounded size.

Files are not mapped into memory, since truncating one meanwhile would end the process (SIGBUS).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from lodefs.chunkstore.errors import SourceChanged
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.push.workers.source_files import FileStat, read_full, show_path, stat_of

WINDOW_SIZE_BYTES = 4 * 1024 * 1024  # read at once, at least
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO must not block


def chunks_of_file(path: bytes, params: ChunkingParams) -> Iterator[tuple[int, memoryview]]:
    """Yields offset and bytes of each chunk of a regular file, in order. The bytes are valid until
    the next chunk.

    Raises: OSError if it cannot be read, or is not a regular file; SourceChanged after the last
    chunk if the file has changed since it was opened, since its chunks may then never have been its
    content together.
    """
    fd = os.open(path, _OPEN)
    try:
        found = stat_of(fd)
        yield from _chunks(fd, found, params)
        if stat_of(fd) != found:
            raise SourceChanged(f"{show_path(path)} changed while it was read")
    finally:
        os.close(fd)


def read_chunk(path: bytes, offset: int, size_bytes: int) -> bytes:
    """Returns bytes of a regular file, fewer if it ends before. Raises: OSError."""
    fd = os.open(path, _OPEN)
    try:
        stat_of(fd)
        return os.pread(fd, size_bytes, offset)
    finally:
        os.close(fd)


def _chunks(fd: int, found: FileStat, params: ChunkingParams) -> Iterator[tuple[int, memoryview]]:
    size_bytes = max(WINDOW_SIZE_BYTES, 2 * params.size_bytes_max)
    window = memoryview(bytearray(min(size_bytes, found.size_bytes + 1)))
    kept, offset = 0, 0  # bytes of the window from the last read; the window's offset in the file
    while True:
        wanted = len(window) - kept
        filled = kept + read_full(fd, window[kept:], offset + kept, wanted)
        # reading one byte more than the file has shows its end
        is_last = filled < len(window) or offset + filled > found.size_bytes
        start = 0
        for end in cut(window[:filled], params, final=is_last):
            yield offset + start, window[start:end]
            start = end
        if is_last:
            return
        kept, offset = filled - start, offset + start
        window[:kept] = bytes(window[start:filled])

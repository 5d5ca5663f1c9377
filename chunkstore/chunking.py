"""Where a stream is cut into chunks: FastCDC with fixed parameters.

FastCDC: Xia et al., "FastCDC: a Fast and Efficient Content-Defined Chunking Approach for Data
Deduplication", USENIX ATC 2016, as the ``fastcdc`` package does it. The only importer of it. The
cuts are part of the store's format: golden vectors pin them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastcdc.fastcdc_cy import fastcdc_cy

from chunkstore.errors import InvalidInput
from chunkstore.objects import Buffer

CHUNK_SIZE_BYTES_LIMIT = 16 * 1024 * 1024  # of any store: a reader allocates no more for a chunk
CHUNK_SIZE_BYTES_LEAST = 64  # what the fastcdc package takes at least


@dataclass(frozen=True, slots=True)
class ChunkingParams:
    """Sizes of chunks. They belong to a store and never change in it. InvalidInput."""

    size_bytes_min: int = 16 * 1024
    size_bytes_average: int = 64 * 1024
    size_bytes_max: int = 256 * 1024

    def __post_init__(self) -> None:
        sizes = (self.size_bytes_min, self.size_bytes_average, self.size_bytes_max)
        ordered = CHUNK_SIZE_BYTES_LEAST <= sizes[0] <= sizes[1] <= sizes[2]
        if not ordered or sizes[1] < 256 or not 1024 <= sizes[2] <= CHUNK_SIZE_BYTES_LIMIT:
            raise InvalidInput(
                f"chunk sizes {sizes} (min, average, max) do not make sense: they must grow, "
                f"from at least {CHUNK_SIZE_BYTES_LEAST} to at most {CHUNK_SIZE_BYTES_LIMIT} bytes"
            )


def cut(data: Buffer, params: ChunkingParams, *, final: bool = True) -> list[int]:
    """End offsets of the chunks of ``data``, which starts at a chunk's start; [] for no bytes.

    With ``final`` the last one is ``len(data)``. Without, ``data`` is a window of something longer
    and only the cuts come that more bytes cannot move: give the rest again at the start of the
    next window. A window longer than ``size_bytes_max`` holds at least one cut.
    """
    chunks = fastcdc_cy(
        data,
        params.size_bytes_min,
        params.size_bytes_average,
        params.size_bytes_max,
        fat=False,  # no copies of the bytes
        hf=None,  # no hash: ids are made elsewhere
    )
    ends = [chunk.offset + chunk.length for chunk in chunks]
    if not final and ends:
        ends.pop()  # it may end only because the window does
    return ends


class StreamCutter:
    """Cuts a stream that comes in windows of any sizes, as if it were whole.

    Keeps less than one chunk of the bytes, and copies no more than two chunks for each window.
    """

    def __init__(self, params: ChunkingParams) -> None:
        self._params = params
        self._tail = b""  # bytes after the last cut
        self._start = 0  # where in the stream the tail begins

    def feed(self, data: Buffer, *, final: bool) -> list[int]:
        """The next bytes; the offsets in the stream (not in ``data``) where chunks end, as far as
        they are known now. ``final``: these were the last bytes, and the last cut is their end."""
        view = memoryview(data)
        ends: list[int] = []
        if self._tail:
            view = self._finish_tail(view, ends, final=final)
        if not self._tail:
            found = cut(view, self._params, final=final)
            ends += [self._start + end for end in found]
            used = found[-1] if found else 0
            self._tail = bytes(view[used:])
            self._start += used
        return ends

    def _finish_tail(self, view: memoryview, ends: list[int], *, final: bool) -> memoryview:
        """Looks for the end of the chunk that the tail begins; gives the bytes after it."""
        kept = len(self._tail)
        reach = self._params.size_bytes_max + 1
        joined = self._tail + view[: max(0, reach - kept)]
        whole = final and len(joined) == kept + len(view)
        found = cut(joined, self._params, final=whole)
        if not found:
            self._tail = joined  # then all of view is in it: a longer one holds a cut
            return view[len(view) :]
        self._start += found[0]
        self._tail = b""
        ends.append(self._start)
        return view[found[0] - kept :]

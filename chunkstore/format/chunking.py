"""Where a file is cut into chunks: FastCDC with fixed parameters.

FastCDC: Xia et al., "FastCDC: a Fast and Efficient Content-Defined Chunking Approach for Data
Deduplication", USENIX ATC 2016, as the ``fastcdc`` package does it. The only importer of it. The
cuts are part of the store's format: golden vectors pin them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastcdc.fastcdc_cy import fastcdc_cy

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.types import Buffer

CHUNK_SIZE_BYTES_LIMIT = 16 * 1024 * 1024  # of any store: a reader allocates no more for a chunk
CHUNK_SIZE_BYTES_LEAST = 64  # what the fastcdc package takes at least


@dataclass(frozen=True, slots=True)
class ChunkingParams:
    """Sizes of chunks. They belong to a store and never change in it. Raises: InvalidInput."""

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

"""Cuts files into chunks: FastCDC with fixed parameters.

FastCDC: Xia et al., "FastCDC: a Fast and Efficient Content-Defined Chunking Approach for Data
Deduplication", USENIX ATC 2016, as the ``fastcdc`` package implements it. The only importer of that
package. The cuts are part of the store's format: golden vectors pin them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.types import Buffer

CHUNK_SIZE_BYTES_LIMIT = 16 * 1024 * 1024  # for any store: a reader allocates no more for a chunk
CHUNK_SIZE_BYTES_LEAST = 64  # the minimum of the fastcdc package


@dataclass(frozen=True, slots=True)
class ChunkingParams:
    """Sizes of chunks. They are fixed when a store is created. Raises: InvalidInput."""

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
    """Returns the end offsets of the chunks of ``data``, which starts at a chunk's start; [] for no
    bytes.

    With ``final`` the last offset is ``len(data)``. Without it, ``data`` is a window of something
    longer, and only cuts that more bytes cannot move are returned: pass the rest again at the start
    of the next window. A window longer than ``size_bytes_max`` has at least one cut.
    """
    from fastcdc.fastcdc_cy import fastcdc_cy  # with a command line of its own: only if one pushes

    chunks = fastcdc_cy(
        data,
        params.size_bytes_min,
        params.size_bytes_average,
        params.size_bytes_max,
        fat=False,  # do not copy the bytes
        hf=None,  # no hash, since ids are computed elsewhere
    )
    ends = [chunk.offset + chunk.length for chunk in chunks]
    if not final and ends:
        ends.pop()  # it may end only because the window ends
    return ends

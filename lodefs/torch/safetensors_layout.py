"""The layout of a safetensors file: which bytes are which tensor's, and how to read them.

Source: https://huggingface.co/docs/safetensors. A file is the size of its header (u64, little
endian), the header (JSON), and the tensors' bytes, without holes. A header comes from whoever
pushed the file: everything in it is checked before memory is allocated for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json

PREFIX_BYTES = 8
HEADER_BYTES_MAX = 100_000_000  # as in the safetensors package
TENSORS_MAX = 200_000  # of one file; they take about 200 MiB of memory
PIECE_BYTES_MAX = 8 << 20  # of one read
DIMENSIONS_MAX = 64  # as in torch; the product of millions of sizes would take hours
METADATA = "__metadata__"


class Dtype(NamedTuple):
    """The size of an element, and torch's name of the type."""

    size_bytes: int
    torch_name: str


DTYPES = {
    "BOOL": Dtype(1, "bool"),
    "U8": Dtype(1, "uint8"),
    "I8": Dtype(1, "int8"),
    "F8_E4M3": Dtype(1, "float8_e4m3fn"),
    "F8_E5M2": Dtype(1, "float8_e5m2"),
    "U16": Dtype(2, "uint16"),
    "I16": Dtype(2, "int16"),
    "F16": Dtype(2, "float16"),
    "BF16": Dtype(2, "bfloat16"),
    "U32": Dtype(4, "uint32"),
    "I32": Dtype(4, "int32"),
    "F32": Dtype(4, "float32"),
    "U64": Dtype(8, "uint64"),
    "I64": Dtype(8, "int64"),
    "F64": Dtype(8, "float64"),
    "C64": Dtype(8, "complex64"),
}


class StoredTensor(NamedTuple):
    """A tensor in a file: its bytes are [first, end) of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


class TensorRange(NamedTuple):
    """The bytes [first, end) of a tensor."""

    tensor: StoredTensor
    first: int
    end: int


class Piece(NamedTuple):
    """Consecutive bytes of a file, from ``first`` on, which are those of these parts."""

    first: int
    parts: list[TensorRange]

    @property
    def size_bytes(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.end - part.first for part in self.parts)


Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Entry(msgspec.Struct, frozen=True):
    """The header's value for a tensor. Offsets begin after the header."""

    dtype: str
    shape: Annotated[tuple[Size, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
    data_offsets: tuple[Size, Size]


def header_end(prefix: bytes, file_size_bytes: int) -> int:
    """Returns where the header ends, by the first bytes of a file. Raises: InvalidInput."""
    if len(prefix) < PREFIX_BYTES:
        raise InvalidInput(f"a safetensors file has at least {PREFIX_BYTES} bytes")
    size_bytes = int.from_bytes(prefix[:PREFIX_BYTES], "little")
    if size_bytes > HEADER_BYTES_MAX:
        raise InvalidInput(
            f"its header would have {size_bytes} bytes, and {HEADER_BYTES_MAX} are allowed"
        )
    if PREFIX_BYTES + size_bytes > file_size_bytes:
        raise InvalidInput(f"its header of {size_bytes} bytes is longer than the file")
    return PREFIX_BYTES + size_bytes


def parse_header(header: bytes, file_size_bytes: int) -> list[StoredTensor]:
    """Returns the tensors of a file in the order of their bytes. ``header``: the file up to
    ``header_end``.

    Raises: InvalidInput unless the tensors' bytes are all of the rest of the file, without holes,
    and if there are more than ``TENSORS_MAX``.
    """
    if header.count(b"{") > TENSORS_MAX + 2:  # one for each, one around all, one of the metadata
        raise InvalidInput(f"its header names more than {TENSORS_MAX} tensors")
    entries = from_json(header[PREFIX_BYTES:], dict[str, msgspec.Raw])
    entries.pop(METADATA, None)
    tensors = [
        _stored(name, from_json(entry, _Entry), len(header)) for name, entry in entries.items()
    ]
    tensors.sort(key=lambda one: (one.first, one.end))
    at = len(header)
    for one in tensors:
        if one.first != at:
            what = "overlaps another one" if one.first < at else "does not follow another one"
            raise InvalidInput(f"tensor {one.name!r}, at byte {one.first}, {what}")
        at = one.end
    if at != file_size_bytes:
        raise InvalidInput(f"its tensors end at byte {at}, and the file at byte {file_size_bytes}")
    return tensors


def _stored(name: str, entry: _Entry, begin: int) -> StoredTensor:
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise InvalidInput(f"tensor {name!r} has the unknown dtype {entry.dtype!r}")
    first, end = entry.data_offsets
    size_bytes = math.prod(entry.shape) * dtype.size_bytes
    if math.prod(max(size, 1) for size in entry.shape) * dtype.size_bytes >= 1 << 63:
        raise InvalidInput(f"tensor {name!r} has a shape that no memory can have")
    if end - first != size_bytes:
        raise InvalidInput(
            f"tensor {name!r} of {size_bytes} bytes lies in bytes {first} to {end} of the data"
        )
    return StoredTensor(name, entry.dtype, entry.shape, begin + first, begin + end)


def pieces(tensors: Iterable[StoredTensor]) -> Iterator[Piece]:
    """Yields the reads for some tensors of a file, which are in the order of their bytes. Small
    neighbours are read together, and a large tensor in several pieces."""
    together: list[TensorRange] = []
    for tensor in tensors:
        for part in _parts(tensor):
            if together and not _fits(together, part):
                yield _piece(together)
                together = []
            together.append(part)
    if together:
        yield _piece(together)


def _parts(tensor: StoredTensor) -> Iterator[TensorRange]:
    size_bytes = tensor.end - tensor.first
    for first in range(0, size_bytes, PIECE_BYTES_MAX):
        yield TensorRange(tensor, first, min(first + PIECE_BYTES_MAX, size_bytes))


def _fits(together: Sequence[TensorRange], part: TensorRange) -> bool:
    begin, last = _offset(together[0]), together[-1]
    end = _offset(last) + last.end - last.first
    is_next = _offset(part) == end
    return is_next and end - begin + part.end - part.first <= PIECE_BYTES_MAX


def _piece(parts: list[TensorRange]) -> Piece:
    return Piece(_offset(parts[0]), parts)


def _offset(part: TensorRange) -> int:
    """Returns where a part begins in the file."""
    return part.tensor.first + part.first

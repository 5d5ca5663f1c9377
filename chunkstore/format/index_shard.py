"""Index shards: the chunks that one push added, by pack. docs/format.md has the table.

A shard repeats the packs' own indexes in one object for a whole push, so it can be rebuilt.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, PackId
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT, pack_id_of_columns
from lodefs.chunkstore.types import Buffer

MAGIC = b"LODESHRD"
VERSION = 1
SIZE_BYTES_MAX = 5 * 1024**3  # S3's limit for one PUT: enough for some 9 TiB of new data
HEAD = struct.Struct("<8sHHI")  # magic, version, flags, packs
_REST = re.compile(r"-g\d+\Z")
PACK_HEAD = struct.Struct("<32sI")  # pack id, chunks


def rest_name(name: str, gc_number: int) -> str:
    """Returns the name of the shard that replaces the shard ``name`` when a gc run (with that
    number in the journal) has deleted packs that it lists."""
    return f"{push_id_of(name)}-g{gc_number}"


def push_id_of(name: str) -> str:
    """Returns the id of a shard's push, even if a gc run has rewritten the shard."""
    return _REST.sub("", name)


class PackChunks(Protocol):
    """The parts of a pack that a shard keeps. A PackIndex has them."""

    @property
    def pack_id(self) -> PackId: ...

    @property
    def ids(self) -> bytes:
        """32 bytes for each chunk, in order."""

    @property
    def raw_sizes(self) -> array[int]:
        """array("I"), one for each chunk."""


def chunk_ids(pack: PackChunks) -> Iterator[ChunkId]:
    """Yields the ids of its chunks, in order."""
    ids = pack.ids
    return (ChunkId(ids[at : at + ID_BYTES]) for at in range(0, len(ids), ID_BYTES))


class ShardPack(NamedTuple):
    """PackChunks from a shard."""

    pack_id: PackId
    ids: bytes
    raw_sizes: array[int]


def encode_shard(packs: Sequence[PackChunks]) -> bytes:
    """Returns the shard of a push that wrote these packs."""
    parts = [HEAD.pack(MAGIC, VERSION, 0, len(packs))]
    for pack in packs:
        parts += (
            PACK_HEAD.pack(pack.pack_id, len(pack.raw_sizes)),
            pack.ids,
            _swapped(pack.raw_sizes).tobytes(),
        )
    body = b"".join(parts)
    return body + blake3(body).digest()


def decode_shard(data: Buffer, what: str = "index shard") -> list[ShardPack]:
    """Returns the packs of a shard, each checked against its id. Raises: Corrupt, UnknownFormat."""
    if len(data) < HEAD.size + ID_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        raise Corrupt(f"{what} is not an index shard")
    body, checksum = memoryview(data)[:-ID_BYTES], memoryview(data)[-ID_BYTES:]
    if blake3(body).digest() != checksum:
        raise Corrupt(f"{what} does not match its checksum")
    packs = decode_head(body, what)
    found: list[ShardPack] = []
    offset = HEAD.size
    for _ in range(packs):
        pack, offset = decode_pack(body, offset, what)
        found.append(pack)
    if offset != len(body):
        raise Corrupt(f"{what}: {len(body) - offset} bytes follow its last pack")
    return found


def decode_head(body: memoryview, what: str) -> int:
    """Returns the number of packs in a shard. Raises: UnknownFormat."""
    _, version, flags, packs = HEAD.unpack_from(body)
    if version != VERSION or flags:
        raise UnknownFormat(
            f"{what} is of format {version} with flags {flags:#x}, which this lodefs does not "
            "know: a newer lodefs is needed"
        )
    return int(packs)


def decode_pack(body: memoryview, offset: int, what: str) -> tuple[ShardPack, int]:
    """Returns the pack at an offset of a shard, and the offset of the next one. Raises: Corrupt."""
    ids_at = offset + PACK_HEAD.size
    if ids_at > len(body):
        raise Corrupt(f"{what} is truncated")
    pack_id, chunks = PACK_HEAD.unpack_from(body, offset)
    if chunks > PACK_CHUNKS_LIMIT:
        raise Corrupt(f"{what}: pack {pack_id.hex()} cannot have {chunks} chunks")
    sizes_at = ids_at + chunks * ID_BYTES
    end = sizes_at + chunks * 4
    if end > len(body):
        raise Corrupt(f"{what} is truncated")
    ids = bytes(body[ids_at:sizes_at])
    sizes = array("I")
    sizes.frombytes(body[sizes_at:end])
    pack = ShardPack(PackId(pack_id), ids, _swapped(sizes))
    if pack_id_of_columns(ids, pack.raw_sizes) != pack_id:
        raise Corrupt(f"{what}: the chunks of pack {pack_id.hex()} are not its own")
    return pack, end


def _swapped(numbers: array[int]) -> array[int]:
    """Converts from this machine's byte order to little-endian, or back."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers

"""Index shards: the chunks that one push added, by pack. docs/format.md has the table.

A shard repeats the packs' own indexes in one object for a whole push, so it can be rebuilt. It
begins with its hooks, a sample of the chunks: a machine that cannot know all chunks of a large
store reads only these (docs/decisions/0100).
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
VERSION = 2
_WITHOUT_HOOKS = 1  # the version before
SIZE_BYTES_MAX = 5 * 1024**3  # S3's limit for one PUT: enough for some 9 TiB of new data
HEAD = struct.Struct("<8sHHI")  # magic, version, flags, packs
_SIX_BITS = bytes(n & 63 for n in range(256))
_REST = re.compile(r"-g\d+\Z")
HOOKS_HEAD = struct.Struct("<I")  # hooks of all packs
PACK_HEAD = struct.Struct("<32sI")  # pack id, chunks
ROW_SIZE_BYTES = ID_BYTES + 4  # id of a chunk, and its raw size or number


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


class PackHooks(NamedTuple):
    """The sample of a pack's chunks that stands for it: their ids, and their numbers in the pack.
    A shard's writer claims them; only the pack's own index proves which chunks it has."""

    pack_id: PackId
    ids: bytes
    numbers: array[int]


def hooks_of(pack: PackChunks) -> PackHooks:
    """Returns a pack's hooks: its first chunk, and each whose id ends with six zero bits. So packs
    that follow each other are found one after the other, and of any 64 chunks about one finds the
    pack."""
    kept = _sampled(pack.ids, _SIX_BITS)
    return PackHooks(pack.pack_id, _joined(pack.ids, kept), array("I", kept))


def fewer_hooks(hooks: PackHooks) -> PackHooks:
    """Returns a pack's first hook, and those of the others whose ids end with a zero byte: a fourth
    of them."""
    kept = _sampled(hooks.ids, None)
    numbers = array("I", (hooks.numbers[n] for n in kept))
    return PackHooks(hooks.pack_id, _joined(hooks.ids, kept), numbers)


def _sampled(ids: bytes, table: bytes | None) -> list[int]:
    """Returns the numbers of the first id, and of those whose last byte is zero after ``table`` has
    translated it."""
    last_bytes = ids[ID_BYTES - 1 :: ID_BYTES].translate(table)
    found = [0] if ids else []
    while (n := last_bytes.find(0, found[-1] + 1 if found else 0)) >= 0:
        found.append(n)
    return found


def _joined(ids: bytes, numbers: Sequence[int]) -> bytes:
    return b"".join(ids[n * ID_BYTES : (n + 1) * ID_BYTES] for n in numbers)


def encode_shard(packs: Sequence[PackChunks]) -> bytes:
    """Returns the shard of a push that wrote these packs."""
    parts = [encode_hooks([hooks_of(pack) for pack in packs])]
    for pack in packs:
        parts += _encoded(pack.pack_id, pack.ids, pack.raw_sizes)
    body = b"".join(parts)
    return body + blake3(body).digest()


def encode_hooks(hooks: Sequence[PackHooks]) -> bytes:
    """Returns what comes before a shard's packs: the hooks of all of them."""
    parts = [HEAD.pack(MAGIC, VERSION, 0, len(hooks))]
    parts.append(HOOKS_HEAD.pack(sum(len(one.numbers) for one in hooks)))
    for one in hooks:
        parts += _encoded(*one)
    head = b"".join(parts)
    return head + blake3(head).digest()


def _encoded(pack_id: PackId, ids: bytes, column: array[int]) -> tuple[bytes, bytes, bytes]:
    return PACK_HEAD.pack(pack_id, len(column)), ids, _swapped(column).tobytes()


def hooks_size_bytes(data: Buffer) -> int | None:
    """Returns the size of what comes before a shard's packs, with its hooks, from the first bytes
    of the shard; None if it has no hooks that this lodefs knows."""
    if len(data) < HEAD.size + HOOKS_HEAD.size:
        return None
    magic, version, flags, packs = HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or flags:
        return None
    (hooks,) = HOOKS_HEAD.unpack_from(data, HEAD.size)
    listed_bytes: int = packs * PACK_HEAD.size + hooks * ROW_SIZE_BYTES
    return HEAD.size + HOOKS_HEAD.size + listed_bytes + ID_BYTES


def decode_hooks(data: Buffer, what: str = "index shard") -> list[PackHooks]:
    """Returns the hooks of a shard from its first ``hooks_size_bytes``. Raises: Corrupt."""
    if hooks_size_bytes(data) != len(data):
        raise Corrupt(f"{what} is truncated, or its head is damaged")
    body = memoryview(data)[:-ID_BYTES]
    if blake3(body).digest() != data[-ID_BYTES:]:
        raise Corrupt(f"{what}: its hooks do not match their checksum")
    packs = HEAD.unpack_from(body)[3]
    found: list[PackHooks] = []
    offset = HEAD.size + HOOKS_HEAD.size
    for _ in range(packs):
        pack_id, ids, numbers, offset = _decode_list(body, offset, what)
        found.append(PackHooks(pack_id, ids, numbers))
    if offset != len(body):
        raise Corrupt(f"{what}: {len(body) - offset} bytes follow its last hook")
    return found


def decode_shard(data: Buffer, what: str = "index shard") -> list[ShardPack]:
    """Returns the packs of a shard, each checked against its id. Raises: Corrupt, UnknownFormat."""
    if len(data) < HEAD.size + ID_BYTES or bytes(data[: len(MAGIC)]) != MAGIC:
        raise Corrupt(f"{what} is not an index shard")
    body, checksum = memoryview(data)[:-ID_BYTES], memoryview(data)[-ID_BYTES:]
    if blake3(body).digest() != checksum:
        raise Corrupt(f"{what} does not match its checksum")
    packs = decode_head(body, what)
    found: list[ShardPack] = []
    offset = hooks_size_bytes(body) or HEAD.size
    for _ in range(packs):
        pack, offset = decode_pack(body, offset, what)
        found.append(pack)
    if offset != len(body):
        raise Corrupt(f"{what}: {len(body) - offset} bytes follow its last pack")
    return found


def decode_head(body: memoryview, what: str) -> int:
    """Returns the number of packs in a shard. Raises: UnknownFormat."""
    _, version, flags, packs = HEAD.unpack_from(body)
    if version not in (_WITHOUT_HOOKS, VERSION) or flags:
        raise UnknownFormat(
            f"{what} is of format {version} with flags {flags:#x}, which this lodefs does not "
            "know: a newer lodefs is needed"
        )
    return int(packs)


def decode_pack(body: memoryview, offset: int, what: str) -> tuple[ShardPack, int]:
    """Returns the pack at an offset of a shard, and the offset of the next one. Raises: Corrupt."""
    pack_id, ids, raw_sizes, end = _decode_list(body, offset, what)
    if pack_id_of_columns(ids, raw_sizes) != pack_id:
        raise Corrupt(f"{what}: the chunks of pack {pack_id.hex()} are not its own")
    return ShardPack(pack_id, ids, raw_sizes), end


def _decode_list(body: memoryview, offset: int, what: str) -> tuple[PackId, bytes, array[int], int]:
    """Returns a pack's id, ids of chunks, a number for each, and the offset after these."""
    ids_at = offset + PACK_HEAD.size
    if ids_at > len(body):
        raise Corrupt(f"{what} is truncated")
    pack_id, chunks = PACK_HEAD.unpack_from(body, offset)
    if chunks > PACK_CHUNKS_LIMIT:
        raise Corrupt(f"{what}: pack {pack_id.hex()} cannot have {chunks} chunks")
    column_at = ids_at + chunks * ID_BYTES
    end = ids_at + chunks * ROW_SIZE_BYTES
    if end > len(body):
        raise Corrupt(f"{what} is truncated")
    column = array("I")
    column.frombytes(body[column_at:end])
    return PackId(pack_id), bytes(body[ids_at:column_at]), _swapped(column), end


def _swapped(numbers: array[int]) -> array[int]:
    """Converts from this machine's byte order to little-endian, or back."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers

"""Packs: objects that hold chunks, an index of them, and a trailer. docs/format.md has the table.

A pack's id names its list of chunks, not its bytes: the object may be rewritten under the same id,
with other codecs, or without the bytes of some chunks. A reader of ranges sends the ETag that it
saw with the index.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Container
from itertools import accumulate, pairwise
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, Purged, TooLarge, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import CHUNK_SIZE_BYTES_LIMIT
from lodefs.chunkstore.format.compression import CODECS, RAW, decompress
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, PackId
from lodefs.chunkstore.types import Buffer

PACK_CHUNKS_MAX = 16 * 1024  # limit for writers: an index below 700 KB
PACK_CHUNKS_LIMIT = 64 * 1024  # limit for readers: an index of 2.7 MB
TAIL_SIZE_BYTES = 64 * 1024  # the first read of a pack's end has this size

VERSION = 1
VERSION_GONE = 2  # of a pack without the bytes of some of its chunks
MAGIC = b"LODEPACK"
# Codecs of chunks without bytes: dropped since no ref led there, or purged by a user
DROPPED = 2
PURGED = 3
GONE = bytes((DROPPED, PURGED))
FLAG_VIRTUAL = 1  # some chunks lie in objects that lodefs did not write (virtual_pack.py)
PLACE_SIZE_BYTES_MAX = 4 * 1024 * 1024  # of the place field, which says where these lie
# magic, version, flags, chunks, index offset, index size, size of the place field
_TRAILER_HEAD = struct.Struct("<8sHHIQII")
TRAILER_SIZE_BYTES = _TRAILER_HEAD.size + ID_BYTES
ROW_SIZE_BYTES = ID_BYTES + 4 + 4 + 1
_ID_ROW_SIZE_BYTES = ID_BYTES + 4


class WrongChunk(Corrupt):
    """Chunks of a pack do not match their ids. ``number`` is the first such chunk, if known."""

    def __init__(self, message: str, number: int | None) -> None:
        super().__init__(message)
        self.number = number


class ChunkPlace(NamedTuple):
    """One chunk of a pack: where its stored bytes lie in the object, and their codec."""

    id: ChunkId
    offset: int
    stored_size_bytes: int
    raw_size_bytes: int
    codec: int


class PackIndex:
    """The contents of a pack: columns over its chunks, in order. Immutable."""

    __slots__ = (
        "_gone_bits",
        "codecs",
        "has_gone",
        "ids",
        "offsets",
        "pack_id",
        "raw_offsets",
        "raw_sizes",
        "stored_sizes",
    )

    def __init__(
        self, ids: bytes, raw_sizes: array[int], stored_sizes: array[int], codecs: bytes
    ) -> None:
        self.pack_id = pack_id_of_columns(ids, raw_sizes)
        self.ids = ids  # 32 bytes for each chunk
        self.raw_sizes = raw_sizes
        self.stored_sizes = stored_sizes
        self.codecs = codecs
        self.has_gone = bool(codecs.translate(None, CODECS))
        # by codec, the bits of the numbers of its chunks
        self._gone_bits = {codec: _bits(codecs, codec) for codec in GONE if self.has_gone}
        # one more than there are chunks: the last offset is the sum
        self.offsets = array("Q", accumulate(stored_sizes, initial=0))
        self.raw_offsets = array("Q", accumulate(raw_sizes, initial=0))

    def __len__(self) -> int:
        return len(self.raw_sizes)

    def __reduce__(self) -> tuple[object, ...]:
        return PackIndex, (self.ids, self.raw_sizes, self.stored_sizes, self.codecs)

    def chunk_id(self, n: int) -> ChunkId:
        """Returns the id of chunk ``n``, which must exist."""
        return ChunkId(self.ids[n * ID_BYTES : (n + 1) * ID_BYTES])

    def place(self, n: int) -> ChunkPlace:
        """Returns where chunk ``n`` lies. Raises: Corrupt if the pack has fewer chunks."""
        return self.places(n, 1)[0]

    def places(self, first: int, count: int) -> list[ChunkPlace]:
        """Returns where ``count`` chunks from ``first`` on lie. Raises: Corrupt if the pack has
        fewer."""
        end = self._end(first, count)
        ids = self.ids
        cuts = range(first * ID_BYTES, end * ID_BYTES, ID_BYTES)
        return list(
            map(
                ChunkPlace,
                [ChunkId(ids[cut : cut + ID_BYTES]) for cut in cuts],
                self.offsets[first:end],
                self.stored_sizes[first:end],
                self.raw_sizes[first:end],
                self.codecs[first:end],
            )
        )

    def raw_size(self, first: int, end: int) -> int:
        """Returns the number of raw bytes of chunks [first, end), which must exist."""
        return self.raw_offsets[end] - self.raw_offsets[first]

    def stored_size(self, first: int, end: int) -> int:
        """Returns the number of stored bytes of chunks [first, end), which must exist."""
        return self.offsets[end] - self.offsets[first]

    def is_gone(self, n: int) -> bool:
        """Whether the bytes of chunk ``n``, which must exist, are gone."""
        return self.codecs[n] >= DROPPED

    def held(self, ids: Container[ChunkId]) -> int:
        """Returns those of these chunks whose bytes exist: bits of their numbers."""
        numbers = (n for n in range(len(self)) if self.chunk_id(n) in ids)
        return sum(1 << n for n in numbers if not self.is_gone(n))

    def purged(self) -> list[ChunkId]:
        """Returns the chunks that the index calls purged."""
        codecs = enumerate(self.codecs if self.has_gone else b"")
        return [self.chunk_id(n) for n, codec in codecs if codec == PURGED]

    def lacks(self, named: int, gone: bytes = GONE) -> int:
        """Returns the chunks (bits of their numbers) whose bytes are missing: the pack has no such
        chunk, or one with a codec in ``gone``. Only this tells whether a commit may name chunks of
        a pack: that the pack exists does not."""
        lacking = named >> len(self) << len(self)
        for codec in gone if self.has_gone else b"":
            lacking |= named & self._gone_bits[codec]
        return lacking

    def live_runs(self, first: int, count: int) -> list[tuple[int, int]]:
        """Returns the chunks of a run whose bytes exist, as runs (first, count)."""
        if not self.has_gone:
            return [(first, count)]
        runs: list[tuple[int, int]] = []
        for n in range(first, first + count):
            if self.is_gone(n):
                continue
            if runs and sum(runs[-1]) == n:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((n, 1))
        return runs

    def check_there(self, first: int, count: int) -> None:
        """Raises: Purged, Corrupt if the bytes of one of these chunks are gone; the message says
        why."""
        if not self.has_gone:
            return
        named = (1 << self._end(first, count)) - (1 << first)
        if not (lacking := self.lacks(named)):
            return
        n = (lacking & -lacking).bit_length() - 1
        what = f"chunk {n} ({self.chunk_id(n).hex()}) of pack {self.pack_id.hex()}"
        if self.codecs[n] == PURGED:
            raise Purged(f"{what} was purged: its bytes are gone for good (lodefs purge)")
        raise Corrupt(
            f"{what} is lost: no branch or tag led to it, so `lodefs gc` has dropped its bytes"
        )

    def without(self, gone: int, codec: int) -> PackIndex:
        """Returns the index of the same pack without the bytes of the chunks in ``gone`` (bits of
        their numbers). ``codec`` is DROPPED or PURGED; chunks without bytes keep theirs."""
        stored_sizes, codecs = self.stored_sizes[:], bytearray(self.codecs)
        for n in range(len(self)):
            if gone >> n & 1 and codecs[n] < codec:
                stored_sizes[n], codecs[n] = 0, codec
        return PackIndex(self.ids, self.raw_sizes, stored_sizes, bytes(codecs))

    def cut(self, gone: int, codec: int, stored: Buffer) -> tuple[PackIndex, bytes]:
        """Returns what ``without`` returns, and the rest of the stored bytes of the chunks."""
        left, view = self.without(gone, codec), memoryview(stored)
        runs = left.live_runs(0, len(left))
        parts = [view[self.offsets[at] : self.offsets[at + count]] for at, count in runs]
        return left, b"".join(parts)

    def check_run(self, first: int, count: int, size_bytes: int) -> None:
        """Checks what a tree says about the pack. Raises: Corrupt if it does not have ``count``
        chunks from ``first`` on, or these do not have ``size_bytes`` raw bytes together."""
        found = self.raw_size(first, self._end(first, count))
        if found != size_bytes:
            raise Corrupt(
                f"pack {self.pack_id.hex()} has {found} bytes in {count} chunks from number "
                f"{first}, and should have {size_bytes}"
            )

    def _end(self, first: int, count: int) -> int:
        end = first + count
        if first < 0 or count < 0 or end > len(self):
            raise Corrupt(
                f"pack {self.pack_id.hex()} has {len(self)} chunks: "
                f"{count} from number {first} are not in it"
            )
        return end

    def encode(self) -> bytes:
        """Returns index and trailer, as at the pack's end."""
        return self.encode_with(b"", self.offsets[-1])

    def encode_with(self, place: bytes, payload_size_bytes: int) -> bytes:
        """Returns index, place field and trailer of a pack whose object has only some of its bytes;
        with an empty field those of an ordinary pack."""
        body = b"".join(
            (self.ids, _bytes_of(self.raw_sizes), _bytes_of(self.stored_sizes), self.codecs)
        )
        version = VERSION_GONE if self.has_gone else VERSION
        flags = FLAG_VIRTUAL if place else 0
        sizes = (len(self), payload_size_bytes, len(body), len(place))
        head = _TRAILER_HEAD.pack(MAGIC, version, flags, *sizes)
        body += place
        return b"".join((body, head, blake3(body).update(head).digest()))

    @classmethod
    def decode(cls, pack_id: PackId, data: Buffer) -> PackIndex:
        """Returns the index from the end of a pack (or from encode). Raises: Corrupt,
        UnknownFormat."""
        trailer = Trailer.decode(pack_id, data)
        index = cls.of_columns(pack_id, trailer, checked_tail(pack_id, trailer, data))
        if index.offsets[-1] != trailer.index_offset:
            what = f"pack {pack_id.hex()}"
            raise Corrupt(f"{what}: its chunks do not fill the object up to the index")
        return index

    @classmethod
    def of_columns(cls, pack_id: PackId, trailer: Trailer, tail: memoryview) -> PackIndex:
        """Returns the index at the beginning of what checked_tail has returned. Raises: Corrupt."""
        n = trailer.chunks
        cuts = list(accumulate((0, ID_BYTES * n, 4 * n, 4 * n, n)))
        ids, raw, stored, codecs = (tail[a:b] for a, b in pairwise(cuts))
        index = cls(bytes(ids), _u32s(raw), _u32s(stored), bytes(codecs))
        index._check(trailer.version)
        if index.pack_id != pack_id:
            what = f"pack {pack_id.hex()}"
            raise Corrupt(f"{what}: its index lists the chunks of pack {index.pack_id.hex()}")
        return index

    def _check(self, version: int) -> None:
        """Checks for impossible sizes and codecs. Raises: Corrupt."""
        what = f"pack {self.pack_id.hex()}"
        if self.codecs.translate(None, CODECS + (GONE if version == VERSION_GONE else b"")):
            raise Corrupt(f"{what}: its index names an unknown codec")
        if not 0 < min(self.raw_sizes) <= max(self.raw_sizes) <= CHUNK_SIZE_BYTES_LIMIT:
            raise Corrupt(f"{what}: a chunk's size is 0 or over {CHUNK_SIZE_BYTES_LIMIT} bytes")
        for raw, stored, codec in zip(self.raw_sizes, self.stored_sizes, self.codecs, strict=True):
            if (stored != raw and (codec == RAW or stored > raw)) or (stored and codec in GONE):
                raise Corrupt(f"{what}: {stored} bytes cannot contain a chunk of {raw} bytes")


def _bits(codecs: bytes, codec: int) -> int:
    """Returns the chunks with one codec, as bits of their numbers."""
    digits = bytearray(b"0" * 256)
    digits[codec] = ord("1")
    return int(codecs.translate(digits)[::-1], 2)


def columns_of(pack_id: PackId, data: Buffer) -> tuple[memoryview, array[int]]:
    """Returns the joined chunk ids and the raw sizes of an encoded index that was checked before.
    Raises: Corrupt, UnknownFormat."""
    chunks = Trailer.decode(pack_id, data).chunks
    begin = len(data) - TRAILER_SIZE_BYTES - chunks * ROW_SIZE_BYTES
    if begin < 0:
        raise Corrupt(f"pack {pack_id.hex()}: the index is truncated")
    end = begin + chunks * ID_BYTES
    view = memoryview(data)
    return view[begin:end], _u32s(view[end : end + 4 * chunks])


class Trailer(NamedTuple):
    """The last 64 bytes of a pack without the checksum."""

    chunks: int
    index_offset: int
    index_size_bytes: int
    version: int
    place_size_bytes: int

    @property
    def tail_size_bytes(self) -> int:
        """The size of index, place field and trailer together."""
        return self.index_size_bytes + self.place_size_bytes + TRAILER_SIZE_BYTES

    @classmethod
    def decode(cls, pack_id: PackId, data: Buffer, *, virtual: bool = False) -> Trailer:
        """Returns the trailer at the end of ``data``, with ``virtual`` also that of a virtual pack.
        Raises: Corrupt, UnknownFormat.

        Its checksum also covers the index, so checked_tail checks it.
        """
        what = f"pack {pack_id.hex()}"
        if len(data) < TRAILER_SIZE_BYTES:
            raise Corrupt(f"{what} is too short to be a pack: {len(data)} bytes")
        magic, version, flags, chunks, offset, size, place_size = _TRAILER_HEAD.unpack_from(
            data, len(data) - TRAILER_SIZE_BYTES
        )
        if magic != MAGIC:
            raise Corrupt(f"{what} does not end like a pack: it is truncated, or not a pack")
        is_known = flags == (FLAG_VIRTUAL if virtual and place_size else 0)
        if version not in (VERSION, VERSION_GONE) or not is_known or (place_size and not flags):
            if _matches_known_version(data, size):
                raise Corrupt(f"{what}: its version does not match its checksum")
            raise UnknownFormat(
                f"{what} is of format {version} with flags {flags:#x}; this lodefs knows formats "
                f"{VERSION} and {VERSION_GONE} without flags: a newer lodefs is needed"
            )
        if not 0 < chunks <= PACK_CHUNKS_LIMIT or size != chunks * ROW_SIZE_BYTES:
            raise Corrupt(f"{what}: {chunks} chunks and an index of {size} bytes do not fit")
        if place_size > PLACE_SIZE_BYTES_MAX:
            raise TooLarge(f"{what}: a place field has at most {PLACE_SIZE_BYTES_MAX} bytes")
        return cls(chunks, offset, size, version, place_size)


def is_virtual(end: Buffer) -> bool:
    """Whether the last bytes of an object are the trailer of a virtual pack."""
    if len(end) < TRAILER_SIZE_BYTES:
        return False
    magic, _, flags, *_ = _TRAILER_HEAD.unpack_from(end, len(end) - TRAILER_SIZE_BYTES)
    return bool(magic == MAGIC and flags & FLAG_VIRTUAL)


def checked_tail(pack_id: PackId, trailer: Trailer, data: Buffer) -> memoryview:
    """Returns index and place field from the end of a pack. Raises: Corrupt if they do not match
    their checksum."""
    begin = len(data) - trailer.tail_size_bytes
    if begin < 0:
        raise Corrupt(f"pack {pack_id.hex()}: the index is truncated")
    tail = memoryview(data)[begin:]
    if blake3(tail[:-ID_BYTES]).digest() != tail[-ID_BYTES:]:
        raise Corrupt(f"pack {pack_id.hex()}: the index does not match its checksum")
    return tail[:-TRAILER_SIZE_BYTES]


def _matches_known_version(data: Buffer, index_size_bytes: int) -> bool:
    """Whether the checksum at the end of a pack matches an index and a trailer of a known version:
    then no newer lodefs has written it. Returns False, too, if ``data`` lacks the index."""
    begin = len(data) - TRAILER_SIZE_BYTES - index_size_bytes
    if begin < 0:
        return False
    view = memoryview(data)[begin:]
    body, checksum = view[:index_size_bytes], view[-ID_BYTES:]
    head = list(_TRAILER_HEAD.unpack_from(view, index_size_bytes))
    heads = ([*head[:1], known, 0, *head[3:6], 0] for known in (VERSION, VERSION_GONE))
    packed = (_TRAILER_HEAD.pack(*one) for one in heads)
    return any(blake3(body).update(one).digest() == checksum for one in packed)


def pack_id_of_columns(ids: bytes, raw_sizes: array[int]) -> PackId:
    """Returns BLAKE3 over id and raw size (u32, little-endian) of each chunk in order."""
    rows = bytearray(len(raw_sizes) * _ID_ROW_SIZE_BYTES)
    sizes = _bytes_of(raw_sizes)
    for n in range(ID_BYTES):
        rows[n::_ID_ROW_SIZE_BYTES] = ids[n::ID_BYTES]
    for n in range(4):
        rows[ID_BYTES + n :: _ID_ROW_SIZE_BYTES] = sizes[n::4]
    return PackId(blake3(rows).digest())


def unpack(place: ChunkPlace, stored: Buffer) -> Buffer:
    """Returns a chunk's raw bytes, checked against its id. Raises: Corrupt, also if they are
    gone."""
    raw = decompress(place.codec, stored, place.raw_size_bytes)
    if blake3(raw).digest() != place.id:
        raise Corrupt(f"bytes do not match chunk {place.id.hex()}")
    return raw


def unpack_chunks(
    index: PackIndex, first: int, count: int, data: Buffer, data_offset: int | None = None
) -> list[Buffer]:
    """Returns the verified raw bytes of consecutive chunks; b"" for one that is gone. ``data`` are
    the pack's bytes from ``data_offset`` on, or from the first of these chunks on. Raises:
    WrongChunk."""
    start = index.offsets[first] if data_offset is None else data_offset
    view = memoryview(data)
    chunks: list[Buffer] = []
    for n, place in enumerate(index.places(first, count), first):
        at = place.offset - start
        if place.codec in GONE:
            chunks.append(b"")
            continue
        try:
            chunks.append(unpack(place, view[at : at + place.stored_size_bytes]))
        except Corrupt as error:
            raise WrongChunk(f"chunk {n} of {keys.pack(index.pack_id)}: {error}", n) from error
    return chunks


def _u32s(data: Buffer) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    return _little_endian(numbers)


def _bytes_of(numbers: array[int]) -> bytes:
    return _little_endian(numbers).tobytes()


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers

"""A node's cache directory: its files, and the keys and values of its index.

    VERSION             "lodefs-cache 2\\n"
    lock                held (flock) by the proxy; its process id
    writers             held (flock) by the proxy and its data processes
    index/              RocksDB, the rows below
    slabs/ab/N          raw chunks of small files, one after the other; N: the file's number, hex
    flat/ab/CONTENT-N   one file of a dataset, of 1 MiB or more, each chunk at its own offset;
                        CONTENT: its content id (name_rows.content_id), hex
    suspects/N          empty: this file was found damaged, and the proxy must check it

Rows. Numbers in keys are big-endian, so that rows sort by them; in values little-endian.

    c chunk id                        -> where its bytes lie                    ChunkRow
    f number u32                      -> a slab or flat file                    FileRow
    r number u32, offset u64          -> the chunks written there at once       RunRow
    v number u32                      -> when its bytes were last checked, Unix seconds, u64
    d content id                      -> number of its flat file, u32
    p pack id                         -> ETag and index of the pack             PackRow
    s commit id, repository           -> wire.Snapshot, MessagePack
    i snapshot key, inode u64         -> an entry                    name_rows.EntryRow
    k snapshot key, inode u64, name   -> children up to ``name``: [wire.Node], MessagePack
    l snapshot key, inode u64         -> "" once all children of a directory have rows
    m name                            -> a counter of the writer's own, u64
    n pin id                          -> a pin: what must not be evicted        PinRow
    o pin id, number u32              -> "": the pin holds this file
    q store's URL, NUL                -> its store.json, as it was last read
    q store's URL, NUL, REPO@REV      -> where a branch or tag was last seen    SeenRow

A file's number is never used again, and a file's bytes never change: what a reader finds through an
old view of the index is right, or the file is gone. If a file's row does not say that it is trusted
(``is_trusted``), its bytes may have been written before a power cut, and must be checked against
the chunk's id or asked from the proxy. The rows of names (s, i, k, l) belong to name_rows.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, PackId
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_regular
from lodefs.chunkstore.types import Buffer

VERSION = 2  # version 1 found flat files by the digests that commits claim
VERSION_TEXT = f"lodefs-cache {VERSION}\n"
VERSION_BYTES_MAX = 64
VERSION_FILE, LOCK_FILE, INDEX_DIR = "VERSION", "lock", "index"
WRITERS_FILE = "writers"
SLABS_DIR, FLAT_DIR, SUSPECTS_DIR = "slabs", "flat", "suspects"

FLAT_SIZE_BYTES_MIN = 1024 * 1024  # larger dataset files, and those of this size, have a flat file

CHUNKS, FILES, RUNS, FLATS = b"c", b"f", b"r", b"d"
CHECKED = b"v"
PACKS, SNAPSHOTS, ENTRIES, CHILDREN, LOADED, FIGURES = b"p", b"s", b"i", b"k", b"l", b"m"
PINS, HELD, SEEN = b"n", b"o", b"q"
PIN_ID_BYTES = 8

DURABLE = bytes(16)  # in place of a boot id: all indexed bytes of the file are on disk
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")  # random(4): new with each boot

_CHUNK_ROW = struct.Struct("<IQI")
_CHECKED_ROW = struct.Struct("<Q")
_FILE_ROW = struct.Struct("<BB16s32sQQI")
_RUN_KEY = struct.Struct(">cIQ")
_RUN_HEAD = struct.Struct("<Q")
_RUN_CHUNK = struct.Struct("<32sI")


class FileKind(IntEnum):
    """The two kinds of file in a cache."""

    SLAB = 1
    FLAT = 2


class FileState(IntEnum):
    """The states of a file of the cache."""

    OPEN = 1  # may still grow
    COMPLETE = 2  # a full slab; a flat file that is the dataset file
    EVICTED = 3  # its rows are deleted, then the file; nothing reads it any more


class ChunkRow(NamedTuple):
    """The place of a chunk's raw bytes: the file's number, and offset and size in it."""

    number: int
    offset: int
    size_bytes: int


class FileRow(NamedTuple):
    """A slab or flat file.

    ``boot`` is the boot id at the last write of bytes that may not be on disk; DURABLE if all are.
    ``content`` is the dataset file's content id, zeros for a slab. ``size_bytes`` is that of the
    dataset file, or the end of a slab's last indexed chunk.
    """

    kind: FileKind
    state: FileState
    boot: bytes
    content: bytes
    size_bytes: int
    present_bytes: int
    last_use_s: int  # Unix time


class RunRow(NamedTuple):
    """Chunks that were written together, one after the other, from an offset of a file on."""

    size_bytes: int
    chunks: list[tuple[ChunkId, int]]  # id, size in bytes


class SeenRow(msgspec.Struct, array_like=True, frozen=True):
    """The commit of a branch or tag when the store was last asked."""

    commit: str  # 64 hex characters
    time_s: int  # of the commit, Unix time


class PinRow(msgspec.Struct, array_like=True, frozen=True):
    """A pin of a part of a snapshot, until a given time."""

    repo: str
    commit: str  # 64 hex characters
    path: bytes  # all pinned files lie at or below it
    what: bytes  # the request, shortened for display
    until_s: int  # Unix time; the latest of all owners
    size_bytes: int  # of the pinned files; 0 until they are known
    is_complete: bool
    owners: dict[str, int] = {}  # until when each owner pins it; not stored if the only one is ""


def check_version(where: Path, text: str) -> None:
    """Checks ``text``, the content of the VERSION file. Raises: UnknownFormat for another
    layout."""
    if text != VERSION_TEXT:
        raise UnknownFormat(
            f"{where} says {text.strip()!r}; this lodefs knows {VERSION_TEXT.strip()!r}: "
            "use a lodefs of that version, or remove the cache directory"
        )


def version_in(cache_dir: Path) -> str:
    """Returns the content of a cache's VERSION file. Raises: OSError."""
    with closing(open_file(cache_dir, Path(VERSION_FILE))) as fd:
        return os.pread(fd, VERSION_BYTES_MAX, 0).decode("ascii", "replace")


def open_file(cache_dir: Path, path: Path, *, writable: bool = False) -> int:
    """Opens a file of a cache. It is safe even if the owner puts symlinks or FIFOs into the cache.
    Returns a descriptor. Raises: OSError."""
    with closing(os.open(cache_dir, PLACE | os.O_CLOEXEC)) as place:
        return open_regular(place, str(path), writable=writable)


def slab_path(cache_dir: Path, number: int) -> Path:
    """Returns ``slabs/ab/N``."""
    return cache_dir / SLABS_DIR / f"{number & 0xFF:02x}" / f"{number:08x}"


def flat_path(cache_dir: Path, content: bytes, number: int) -> Path:
    """Returns ``flat/ab/CONTENT-N``."""
    name = content.hex()
    return cache_dir / FLAT_DIR / name[:2] / f"{name}-{number:08x}"


def file_path(cache_dir: Path, number: int, row: FileRow) -> Path:
    """Returns the path of the file with that row."""
    if row.kind is FileKind.FLAT:
        return flat_path(cache_dir, row.content, number)
    return slab_path(cache_dir, number)


def number_of(path: Path) -> int | None:
    """Returns the number of a slab or flat file; None for any other name."""
    text = path.name.rpartition("-")[2]
    try:
        return int(text, 16) if len(text) == 8 else None
    except ValueError:
        return None


def boot_id() -> bytes:
    """Returns 16 bytes that differ after each boot of this machine."""
    return bytes.fromhex(BOOT_ID_FILE.read_text().strip().replace("-", ""))


def is_trusted(row: FileRow, boot: bytes) -> bool:
    """Whether the file's indexed bytes can be used without a check: they are on disk, or were
    written since this boot, so that the kernel has them."""
    return row.boot in (DURABLE, boot)


def chunk_key(chunk_id: bytes) -> bytes:
    """Returns the key of a ChunkRow."""
    return CHUNKS + chunk_id


def chunk_keys(joined_ids: bytes, first: int, count: int) -> list[bytes]:
    """Returns the keys of ``count`` ChunkRows, from the joined ids of a pack."""
    cuts = range(first * ID_BYTES, (first + count) * ID_BYTES, ID_BYTES)
    return [CHUNKS + joined_ids[cut : cut + ID_BYTES] for cut in cuts]


def encode_chunk_row(number: int, offset: int, size_bytes: int) -> bytes:
    """Returns 16 bytes."""
    return _CHUNK_ROW.pack(number, offset, size_bytes)


def decode_chunk_row(value: bytes) -> ChunkRow:
    """Raises: Corrupt."""
    try:
        return ChunkRow._make(_CHUNK_ROW.unpack(value))
    except struct.error as error:
        raise Corrupt(f"a chunk's row in the cache index is damaged: {error}") from error


def file_key(number: int) -> bytes:
    """Returns the key of a FileRow."""
    return FILES + number.to_bytes(4, "big")


def number_of_key(key: bytes) -> int:
    """Returns the number in the key of a FileRow, a RunRow, or of a file's check."""
    return int.from_bytes(key[1:5], "big")


def encode_file_row(row: FileRow) -> bytes:
    """Returns 70 bytes."""
    return _FILE_ROW.pack(*row)


def decode_file_row(value: bytes) -> FileRow:
    """Raises: Corrupt."""
    try:
        kind, state, *rest = _FILE_ROW.unpack(value)
        return FileRow(FileKind(kind), FileState(state), *rest)
    except (struct.error, ValueError) as error:
        raise Corrupt(f"a file's row in the cache index is damaged: {error}") from error


def run_prefix(number: int) -> bytes:
    """Returns the prefix of the keys of a file's RunRows."""
    return RUNS + number.to_bytes(4, "big")


def run_key(number: int, offset: int) -> bytes:
    """Returns the key of a RunRow."""
    return _RUN_KEY.pack(RUNS, number, offset)


def run_offset(key: bytes) -> int:
    """Returns the offset in a RunRow's key."""
    return int.from_bytes(key[5:13], "big")


def encode_run_row(chunks: Sequence[tuple[bytes, int]]) -> bytes:
    """Returns ids and sizes of consecutive chunks, after the sum of the sizes."""
    total = sum(size for _, size in chunks)
    return _RUN_HEAD.pack(total) + b"".join(_RUN_CHUNK.pack(*chunk) for chunk in chunks)


def decode_run_row(value: bytes) -> RunRow:
    """Raises: Corrupt."""
    try:
        (total,) = _RUN_HEAD.unpack_from(value)
        chunks = list(_RUN_CHUNK.iter_unpack(memoryview(value)[_RUN_HEAD.size :]))
    except struct.error as error:
        raise Corrupt(f"a run's row in the cache index is damaged: {error}") from error
    return RunRow(total, [(ChunkId(chunk_id), size) for chunk_id, size in chunks])


def run_size(value: bytes) -> int:
    """Returns the size in bytes of a RunRow's run without decoding its chunks."""
    (total,) = _RUN_HEAD.unpack_from(value)
    return int(total)


def checked_key(number: int) -> bytes:
    """Returns the key of the time when all bytes of a cache file were last known to be right, by a
    complete check (proxy/cache/scrub.py) or by its creation. A file without that row was never
    checked."""
    return CHECKED + number.to_bytes(4, "big")


def encode_checked(checked_s: int) -> bytes:
    """Returns 8 bytes."""
    return _CHECKED_ROW.pack(checked_s)


def decode_checked(value: bytes) -> int:
    """Returns Unix seconds. Raises: Corrupt."""
    try:
        (checked_s,) = _CHECKED_ROW.unpack(value)
    except struct.error as error:
        raise Corrupt(f"a file's check in the cache index is damaged: {error}") from error
    return int(checked_s)


def flat_key(content: bytes) -> bytes:
    """Returns the key of the number of a dataset file's flat file."""
    return FLATS + content


def pack_key(pack_id: PackId) -> bytes:
    """Returns the key of a pack's row."""
    return PACKS + pack_id


def encode_pack_row(etag: str, index: Buffer) -> bytes:
    """Returns the length of the ETag (u16), the ETag, and the index as at the pack's end."""
    tag = etag.encode()
    return b"".join((len(tag).to_bytes(2, "little"), tag, index))


def decode_pack_row(value: bytes) -> tuple[str, memoryview]:
    """Returns the ETag and the encoded index."""
    end = 2 + int.from_bytes(value[:2], "little")
    return value[2:end].decode("utf-8", "replace"), memoryview(value)[end:]


def figure_key(name: str) -> bytes:
    """Returns the key of a counter of the writer's own."""
    return FIGURES + name.encode()


def pin_key(pin_id: bytes) -> bytes:
    """Returns the key of a PinRow."""
    return PINS + pin_id


def held_prefix(pin_id: bytes) -> bytes:
    """Returns the prefix of the keys of the files that a pin holds."""
    return HELD + pin_id


def held_key(pin_id: bytes, number: int) -> bytes:
    """Returns the key of the mark that a pin holds a file."""
    return HELD + pin_id + number.to_bytes(4, "big")


def held_of_key(key: bytes) -> tuple[bytes, int]:
    """Returns the pin id and the number in such a key."""
    return key[1:-4], int.from_bytes(key[-4:], "big")


def seen_key(url: str, repo: str = "", rev: str = "") -> bytes:
    """Returns the key of a SeenRow; without a repository, that of a store's settings."""
    return SEEN + url.encode() + b"\0" + (f"{repo}@{rev}".encode() if repo else b"")


_encoder = msgspec.msgpack.Encoder()
_pin_decoder = msgpack_decoder(PinRow)
_seen_decoder = msgpack_decoder(SeenRow)


def encode_seen_row(row: SeenRow) -> bytes:
    """Returns the value of a SeenRow."""
    return _encoder.encode(row)


def decode_seen_row(value: bytes) -> SeenRow:
    """Returns a SeenRow. Raises: Corrupt."""
    try:
        return _seen_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a row of the cache's index is damaged: {error}") from error


def encode_pin_row(row: PinRow) -> bytes:
    """Returns the value of a PinRow."""
    fields = msgspec.structs.astuple(row)
    return _encoder.encode(fields if row.owners else fields[:-1])


def decode_pin_row(value: bytes) -> PinRow:
    """Raises: Corrupt."""
    try:
        return _pin_decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"a pin's row in the cache index is damaged: {error}") from error

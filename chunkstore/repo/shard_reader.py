"""Reading a stored index shard: as a whole, or a large one a window at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, InvalidInput, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import (
    HEAD,
    MAGIC,
    PACK_HEAD,
    SIZE_BYTES_MAX,
    ShardPack,
    decode_head,
    decode_pack,
    decode_shard,
)
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.chunkstore.objects.interface import ObjectStore, Part, check_size
from lodefs.chunkstore.system.os_errors import kind_of

WINDOW_SIZE_BYTES = 2 * 1024 * 1024  # what is read at once: the whole, of up to 3.5 GB added


def has_shard(objects: ObjectStore, push_id: str) -> bool:
    """Whether there is a shard of a push, as it was put or as a gc run wrote it again."""
    try:
        return next(iter(objects.list(keys.shard(push_id), limit=1)), None) is not None
    except InvalidInput:  # a push index may hold a damaged name
        return False


def read_shard(
    objects: ObjectStore, key: str, window_size_bytes: int = WINDOW_SIZE_BYTES
) -> Iterator[ShardPack]:
    """The packs of a stored shard. One that is larger than a window is copied to a temporary file,
    a window at a time, and decoded from there: iterating it waits for no store. Errors of
    decoding come on the way: its packs count when all have come.

    Raises: Corrupt, TooLarge, UnknownFormat, NotFound; Changed if it was written again meanwhile;
    NoSpace, Unavailable if there can be no temporary file.
    """
    part = objects.get(key, size=window_size_bytes)
    check_size(key, part.object_size_bytes, SIZE_BYTES_MAX)
    if part.object_size_bytes == len(part.data):
        return iter(decode_shard(part.data, key))
    if bytes(part.data[: len(MAGIC)]) != MAGIC:
        raise Corrupt(f"{key} is not an index shard")
    try:
        return _packs(_copied(objects, key, part, window_size_bytes), key)
    except OSError as error:
        what = f"no copy of {key} can be made in {gettempdir()}: {error.strerror}"
        raise kind_of(error)(what) from error


def _copied(objects: ObjectStore, key: str, first: Part, window_size_bytes: int) -> BinaryIO:
    """A temporary file with the whole object. Raises: OSError, and errors of reading it."""
    copy = TemporaryFile()  # noqa: SIM115 - its reader closes it
    try:
        copy.write(first.data)
        while left_bytes := first.object_size_bytes - copy.tell():
            wanted = min(window_size_bytes, left_bytes)
            part = objects.get(key, offset=copy.tell(), size=wanted, if_match=first.etag)
            if len(part.data) != wanted:
                raise Corrupt(f"{key} is cut off")
            copy.write(part.data)
        copy.seek(0)
    except BaseException:
        copy.close()
        raise
    return copy


def _packs(shard: BinaryIO, key: str) -> Iterator[ShardPack]:
    hasher = blake3()

    def take(size_bytes: int) -> bytes:
        taken = shard.read(size_bytes)
        if len(taken) != size_bytes:
            raise Corrupt(f"{key} is cut off")
        hasher.update(taken)
        return taken

    def check() -> None:
        checksum = hasher.digest()
        if take(ID_BYTES) != checksum or shard.read(1):
            raise Corrupt(f"{key} does not match its checksum")

    with shard:
        try:
            packs = decode_head(memoryview(take(HEAD.size)), key)
        except UnknownFormat:  # of a newer lodefs, or of a bit that is wrong
            left_bytes = os.fstat(shard.fileno()).st_size - HEAD.size - ID_BYTES
            for at in range(0, left_bytes, WINDOW_SIZE_BYTES):
                take(min(WINDOW_SIZE_BYTES, left_bytes - at))
            check()
            raise
        for _ in range(packs):
            head = take(PACK_HEAD.size)
            chunks = min(PACK_HEAD.unpack(head)[1], PACK_CHUNKS_LIMIT)  # else it is refused below
            columns = take(chunks * (ID_BYTES + 4))
            yield decode_pack(memoryview(head + columns), 0, key)[0]
        check()

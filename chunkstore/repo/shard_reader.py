"""Reads a stored index shard: at once, or a large one window by window."""

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

WINDOW_SIZE_BYTES = 2 * 1024 * 1024  # read at once: the whole shard for up to 3.5 GB of new data


def has_shard(objects: ObjectStore, push_id: str) -> bool:
    """Whether there is a shard of a push, as the push put it or as a gc run rewrote it."""
    try:
        return next(iter(objects.list(keys.shard(push_id), limit=1)), None) is not None
    except InvalidInput:  # a push index may hold a damaged name
        return False


def read_shard(
    objects: ObjectStore, key: str, window_size_bytes: int = WINDOW_SIZE_BYTES
) -> Iterator[ShardPack]:
    """Yields the packs of a stored shard. A shard larger than a window is copied to a temporary
    file, window by window, and decoded from there, so that iterating does not wait for the store.
    Errors of decoding may come late: the packs count only when all have come.

    Raises: Corrupt, TooLarge, UnknownFormat, NotFound; Changed if it was rewritten meanwhile;
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
    """Returns a temporary file with the whole object. Raises: OSError; errors of reading it."""
    copy = TemporaryFile()  # noqa: SIM115 - its reader closes it
    try:
        copy.write(first.data)
        while left_bytes := first.object_size_bytes - copy.tell():
            wanted = min(window_size_bytes, left_bytes)
            part = objects.get(key, offset=copy.tell(), size=wanted, if_match=first.etag)
            if len(part.data) != wanted:
                raise Corrupt(f"{key} is truncated")
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
            raise Corrupt(f"{key} is truncated")
        hasher.update(taken)
        return taken

    def check() -> None:
        checksum = hasher.digest()
        if take(ID_BYTES) != checksum or shard.read(1):
            raise Corrupt(f"{key} does not match its checksum")

    with shard:
        try:
            packs = decode_head(memoryview(take(HEAD.size)), key)
        except UnknownFormat:  # from a newer lodefs, or a flipped bit
            left_bytes = os.fstat(shard.fileno()).st_size - HEAD.size - ID_BYTES
            for at in range(0, left_bytes, WINDOW_SIZE_BYTES):
                take(min(WINDOW_SIZE_BYTES, left_bytes - at))
            check()
            raise
        for _ in range(packs):
            head = take(PACK_HEAD.size)
            # A larger number is refused below
            chunks = min(PACK_HEAD.unpack(head)[1], PACK_CHUNKS_LIMIT)
            columns = take(chunks * (ID_BYTES + 4))
            yield decode_pack(memoryview(head + columns), 0, key)[0]
        check()

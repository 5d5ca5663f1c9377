"""Reads a stored index shard: at once, or a large one window by window; or only its hooks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from tempfile import TemporaryFile, gettempdir
from typing import BinaryIO, TypeVar

from blake3 import blake3

from lodefs.chunkstore.errors import (
    Changed,
    Corrupt,
    InvalidInput,
    LodefsError,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import (
    HEAD,
    HOOKS_HEAD,
    MAGIC,
    PACK_HEAD,
    ROW_SIZE_BYTES,
    SIZE_BYTES_MAX,
    PackHooks,
    ShardPack,
    decode_head,
    decode_hooks,
    decode_pack,
    decode_shard,
    hooks_of,
    hooks_size_bytes,
)
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.chunkstore.objects.interface import ObjectStore, Part, check_size
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.parallel_map import map_ahead

WINDOW_SIZE_BYTES = 2 * 1024 * 1024  # read at once: the whole shard for up to 3.5 GB of new data
HOOKS_WINDOW_SIZE_BYTES = 128 * 1024  # the hooks of a push of some 10 GB
HOOKS_SIZE_BYTES_MAX = 256 << 20  # the hooks of any push of packs with more than a few chunks
SHARDS_AHEAD = 32  # in memory; large ones in part
SPOILED = (Changed, Corrupt, NotFound, UnknownFormat)  # such a shard costs only space

Shard = TypeVar("Shard")
_log = logging.getLogger(__name__)


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


def read_hooks(objects: ObjectStore, key: str) -> list[PackHooks]:
    """Returns the hooks of all packs of a stored shard. It reads no more than these, by one GET or
    two; a shard of version 1 has none, so all of it is read. Raises what ``read_shard`` does."""
    part = objects.get(key, size=HOOKS_WINDOW_SIZE_BYTES)
    check_size(key, part.object_size_bytes, SIZE_BYTES_MAX)
    data = bytes(part.data)
    size_bytes = hooks_size_bytes(data)
    if size_bytes is None:
        return [hooks_of(pack) for pack in read_shard(objects, key)]
    check_size(f"the list of hooks in {key}", size_bytes, HOOKS_SIZE_BYTES_MAX)
    if size_bytes > part.object_size_bytes:
        raise Corrupt(f"{key} is truncated, or its head is damaged")
    if size_bytes > len(data):
        rest = size_bytes - len(data)
        data += objects.get(key, offset=len(data), size=rest, if_match=part.etag).data
    return decode_hooks(data[:size_bytes], key)


def read_shards(
    objects: ObjectStore,
    names: Sequence[str],
    read: Callable[[ObjectStore, str], Shard],
    threads: int,
) -> Iterator[tuple[str, Shard]]:
    """Yields shards with their names, and reads some ahead. It leaves out damaged ones."""
    if not names:
        return
    from concurrent.futures import ThreadPoolExecutor

    def read_one(name: str) -> Shard | None:
        try:
            return read(objects, keys.shard(name))
        except SPOILED as error:
            log_left_out(error)
            return None

    with ThreadPoolExecutor(threads) as executor:
        found = map_ahead(executor, read_one, names, SHARDS_AHEAD)
        for name, shard in zip(names, found, strict=True):
            if shard is not None:
                yield name, shard


def log_left_out(error: LodefsError) -> None:
    """Logs that a damaged shard is not used."""
    _log.warning("skipped a damaged index shard: %s", error)


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

    def skip(size_bytes: int) -> None:
        for at in range(0, size_bytes, WINDOW_SIZE_BYTES):
            take(min(WINDOW_SIZE_BYTES, size_bytes - at))

    def check() -> None:
        checksum = hasher.digest()
        if take(ID_BYTES) != checksum or shard.read(1):
            raise Corrupt(f"{key} does not match its checksum")

    with shard:
        head = take(HEAD.size)
        try:
            packs = decode_head(memoryview(head), key)
        except UnknownFormat:  # from a newer lodefs, or a flipped bit
            skip(os.fstat(shard.fileno()).st_size - HEAD.size - ID_BYTES)
            check()
            raise
        hooks_head = shard.read(HOOKS_HEAD.size)
        shard.seek(HEAD.size)
        if (begin := hooks_size_bytes(head + hooks_head)) is not None:
            skip(begin - HEAD.size)
        for _ in range(packs):
            head = take(PACK_HEAD.size)
            # A larger number is refused below
            chunks = min(PACK_HEAD.unpack(head)[1], PACK_CHUNKS_LIMIT)
            columns = take(chunks * ROW_SIZE_BYTES)
            yield decode_pack(memoryview(head + columns), 0, key)[0]
        check()

"""Index shards that were deleted because all that they listed is gone: one small document.

If a store lacks a shard that a pushing machine knows, the machine takes the store for an older copy
of itself, and drops its index. This document tells it that the shard was deleted on purpose. So it
saves work and decides nothing: it may be lost or incomplete.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from lodefs.chunkstore.errors import UNREADABLE, Corrupt, LodefsError, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.index_shard import push_id_of
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.types import Buffer

VERSION = 1
IDS_MAX = 16_384  # the newest ones; machines that know an older one read all shards anew
SIZE_BYTES_MAX = 1024 * 1024
_ID = re.compile(r"[0-9A-Za-z-]{1,48}\Z")


class _RemovedDocument(msgspec.Struct, forbid_unknown_fields=True):
    push_ids: list[str]


def encode_removed_shards(push_ids: Collection[str]) -> bytes:
    """Returns the document. Ids begin with the time of the push."""
    return seal("removed-shards", VERSION, _RemovedDocument(sorted(push_ids)[-IDS_MAX:]))


def decode_removed_shards(data: Buffer, what: str) -> set[str]:
    """Returns the ids of the pushes. Raises: Corrupt, UnknownFormat."""
    ids = unseal("removed-shards", {VERSION: _RemovedDocument}, data, what).push_ids
    if not all(map(_ID.match, ids)):
        raise Corrupt(f"{what} has an invalid push id")
    return set(ids)


def removed_shards(objects: ObjectStore) -> set[str]:
    """Returns the ids of pushes whose shards were deleted, as far as the store can tell."""
    found = _read(objects)
    return set() if isinstance(found, LodefsError) else found


def is_damaged(objects: ObjectStore) -> bool:
    """Whether the document exists and cannot be read. One of a newer lodefs counts as missing."""
    return isinstance(_read(objects), Corrupt)


def _read(objects: ObjectStore) -> set[str] | LodefsError:
    try:
        data = read_whole(objects, keys.REMOVED_SHARDS, SIZE_BYTES_MAX).data
        return decode_removed_shards(data, keys.REMOVED_SHARDS)
    except UNREADABLE as error:
        return error


def remove_shards(objects: ObjectStore, names: Collection[str]) -> None:
    """Deletes shards that list nothing, or only packs that are about to be deleted for good. The
    document is updated first, since a machine that misses a shard looks there. If two processes do
    this at once, one may remove what the other has added. A newer lodefs's document stays
    unchanged."""
    ids = {push_id_of(name) for name in names if _ID.match(push_id_of(name))}
    if ids and not isinstance(known := _read(objects), UnknownFormat):
        known = set() if isinstance(known, LodefsError) else known
        objects.put(keys.REMOVED_SHARDS, [encode_removed_shards(ids | known)])
    for name in names:
        objects.delete(keys.shard(name))


def forget_removed(objects: ObjectStore, name: str) -> None:
    """Removes a shard from the document. The shard was deleted so that machines that know it read
    all shards anew. This also completes an interrupted ``remove_shards``."""
    known = removed_shards(objects)
    if push_id_of(name) in known:
        left = encode_removed_shards(known - {push_id_of(name)})
        objects.put(keys.REMOVED_SHARDS, [left])

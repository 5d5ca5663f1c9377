"""Compaction: rewrites packs with many unused chunks under their ids, without the bytes of the
chunks that no ref leads to (docs/decisions/0040).

The journal decides which chunks may go. This module finds them and leaves them out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.errors import UNREADABLE, Changed
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import DROPPED, PackIndex, unpack_chunks
from lodefs.chunkstore.format.virtual_pack import VirtualPack
from lodefs.chunkstore.maintenance.mark import Marked
from lodefs.chunkstore.objects.in_place.virtual_packs import stored_etag, virtual_pack_of
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import PackBatch, locations_of, place_of
from lodefs.chunkstore.repo.pack_reader import (
    PackIndexVersion,
    check_bound,
    index_or_none,
    ordinary_index_or_none,
    read_index,
    read_stored,
)
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.types import Buffer

PACKS_AT_ONCE = 4  # rewritten at once; each takes up to 64 MiB of memory
READ_SIZE_BYTES = 8 << 20
TRIES = 4  # for a pack that others rewrite at the same time

_log = logging.getLogger(__name__)


class Sparse(NamedTuple):
    """A pack with many unused chunks, which take ``dead_bytes``."""

    dead: DeadChunks
    dead_bytes: int


def sparse_packs(
    objects: ObjectStore,
    packs: Iterable[tuple[PackId, int]],
    marked: Marked,
    min_used: float,
    executor: Executor,
    dropped: Mapping[PackId, int],
) -> Iterator[Sparse]:
    """Returns those of the packs in use that use less than ``min_used`` (0 to 1) of their bytes. It
    skips virtual packs, and a pack whose index cannot be read. ``dropped`` are chunks that count as
    dropped."""
    used = (pack for pack, _ in packs if pack in marked)
    for index in map_ahead(executor, partial(ordinary_index_or_none, objects), used):
        if index is None:
            continue
        if gone := dropped.get(index.pack_id):
            index = index.without(gone, DROPPED)
        sparse = sparse_of(index, marked.chunks.get(index.pack_id, 0))
        size_bytes = index.offsets[-1]
        if sparse.dead_bytes and size_bytes - sparse.dead_bytes < min_used * size_bytes:
            yield sparse


def sparse_of(index: PackIndex, used: int) -> Sparse:
    """Returns the chunks of a pack that have bytes and are not in use, and their bytes. ``used``
    are bits of the chunks' numbers."""
    dead = dead_bytes = 0
    for n, size_bytes in enumerate(index.stored_sizes):
        if size_bytes and not used >> n & 1:
            dead |= 1 << n
            dead_bytes += size_bytes
    return Sparse(DeadChunks(index.pack_id, dead), dead_bytes)


def union_of(dead: Iterable[DeadChunks]) -> dict[PackId, int]:
    """Joins the chunks by their packs. If a pack were written twice at once, one write would bring
    back what the other has dropped."""
    found: dict[PackId, int] = {}
    for pack, chunks in dead:
        found[pack] = found.get(pack, 0) | chunks
    return found


def drop_all(
    objects: ObjectStore, dead: Iterable[DeadChunks], codec: int, executor: Executor, rate: Rate
) -> Iterator[int]:
    """Rewrites packs without the bytes of some chunks, a few at once, and packs that were merged
    before together. Yields by how many bytes each is smaller: 0 if that was done before, or if the
    pack is missing or damaged. Such a pack stays as it is, for `lodefs repair`. ``codec`` is
    DROPPED or PURGED.

    Nobody may name these chunks there, now or later, so that a late write takes nothing else away.
    Raises: what the store raises.
    """
    left = {one.pack: one for one in dead}
    for _ in range(TRIES):
        batch = PackBatch(locations_of(objects))
        inside: dict[PackId, int] = {}
        drop = partial(_drop_chunks, objects, codec, rate)
        for done in map_ahead(executor, drop, left.values(), PACKS_AT_ONCE):
            if isinstance(done, int):
                yield done
            else:
                batch.add(done.pack, done.data, done.etag)
                inside[done.pack] = done.smaller_bytes
        batch.flush()
        yield from (size_bytes for pack, size_bytes in inside.items() if pack not in batch.stayed)
        left = {pack: left[pack] for pack in sorted(batch.stayed)}
    for pack in left:
        _log.warning("pack %s is not compacted: others keep rewriting it", pack.hex())
        yield 0


def smaller_by(
    objects: ObjectStore, dead: Sequence[DeadChunks], executor: Executor
) -> Iterator[int]:
    """Yields what ``drop_all`` would yield if no pack is damaged. Writes nothing."""

    def difference(one: DeadChunks) -> int:
        index = index_or_none(objects, one.pack)
        if index is None:
            return 0
        return index.offsets[-1] - index.without(one.chunks, DROPPED).offsets[-1]

    return map_ahead(executor, difference, dead)


class _Rewritten(NamedTuple):
    """The new object of a pack that lies in a composite."""

    pack: PackId
    data: bytes
    etag: str  # of the old object
    smaller_bytes: int


def _drop_chunks(
    objects: ObjectStore, codec: int, rate: Rate, dead: DeadChunks
) -> int | _Rewritten:
    """Does what drop_all does for one pack. Returns the new object of a pack in a composite, which
    the caller must put."""
    for _ in range(TRIES):
        try:
            version = read_index(objects, dead.pack)
            wanted = version.index.without(dead.chunks, codec)
            if wanted.codecs == version.index.codecs:
                return 0
            virtual = virtual_pack_of(objects, dead.pack, version.etag)
            if virtual is not None:
                data, smaller_bytes = _cut_virtual(objects, version, virtual, wanted, rate)
            else:
                runs = wanted.live_runs(0, len(wanted))
                data = [*_live_bytes(objects, version, runs, rate), wanted.encode()]
                smaller_bytes = version.index.offsets[-1] - wanted.offsets[-1]
            rate.take(sum(map(len, data)))
            if place_of(version.etag) is not None:
                return _Rewritten(dead.pack, b"".join(data), version.etag, smaller_bytes)
            if objects.head(keys.pack(dead.pack)).etag != stored_etag(version.etag):
                continue  # somebody else wrote it meanwhile, perhaps without other chunks
            objects.put(keys.pack(dead.pack), data)
        except Changed:
            continue
        except UNREADABLE as error:
            _log.warning("pack %s is not compacted: %s", dead.pack.hex(), error)
            return 0
        return smaller_bytes
    _log.warning("pack %s is not compacted: others keep rewriting it", dead.pack.hex())
    return 0


def _cut_virtual(
    objects: ObjectStore,
    version: PackIndexVersion,
    virtual: VirtualPack,
    wanted: PackIndex,
    rate: Rate,
) -> tuple[list[Buffer], int]:
    """Returns the object of a virtual pack that has only the chunks of ``wanted``, and by how many
    bytes it is smaller. Nothing is read from a source, whose objects stay as they are. Raises: what
    _live_bytes raises."""
    left = replace(virtual, index=wanted)
    placed = virtual.placed()
    own = (
        (n, 1)
        for first, count in wanted.live_runs(0, len(wanted))
        for n in range(first, first + count)
        if not placed >> n & 1
    )
    data = [*_live_bytes(objects, version, own, rate), left.encode_tail()]
    return data, virtual.own_size_bytes - left.own_size_bytes


def _live_bytes(
    objects: ObjectStore,
    version: PackIndexVersion,
    runs: Iterable[tuple[int, int]],
    rate: Rate,
) -> list[Buffer]:
    """Returns the verified stored bytes of runs of chunks. Raises: Corrupt, Changed, NotFound;
    TooLarge if the pack does not fit into memory."""
    index = version.index
    check_bound(index)
    found: list[Buffer] = []
    for begin, count in runs:
        first, end = begin, begin + count
        while first < end:
            last = first + 1
            limit = index.offsets[first] + READ_SIZE_BYTES
            while last < end and index.offsets[last + 1] <= limit:
                last += 1
            stored = read_stored(objects, version, first, last - first)
            rate.take(len(stored))
            unpack_chunks(index, first, last - first, stored)
            found.append(stored)
            first = last
    return found

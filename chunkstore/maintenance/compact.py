"""Compaction: packs of which little is in use are written again under their ids, without the bytes
of the chunks that nothing leads to (docs/decisions/0040).

Which chunks may go, the journal decides. Here they are found, and left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.errors import UNREADABLE, Changed
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import DeadChunks
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import DROPPED, PackIndex
from lodefs.chunkstore.maintenance.mark import Marked
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import PackBatch, locations_of, place_of
from lodefs.chunkstore.repo.pack_reader import (
    PackIndexVersion,
    check_bound,
    index_or_none,
    read_index,
    read_stored,
    unpack_chunks,
)
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.types import Buffer

PACKS_AT_ONCE = 4  # written again; each is in memory meanwhile, up to 64 MiB
READ_SIZE_BYTES = 8 << 20
TRIES = 4  # of a pack that others write again at the same time

_log = logging.getLogger(__name__)


class Rate:
    """Lets ``bytes_per_s`` through, of many threads together; all, if that is None."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0  # when what was taken so far has passed, by the monotonic clock

    def take(self, size_bytes: int) -> None:
        """Waits until so many bytes may be moved."""
        if not self._bytes_per_s:
            return
        with self._lock:
            begin_s = max(self._free_s, time.monotonic())
            self._free_s = begin_s + size_bytes / self._bytes_per_s
        time.sleep(max(0.0, begin_s - time.monotonic()))


class Sparse(NamedTuple):
    """A pack of which too little is in use; ``dead_bytes``: what its unused chunks take."""

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
    """Those of the packs in use of which less than ``min_used`` (0 to 1) of the bytes is in use. A
    pack whose index cannot be read is left alone. ``dropped``: chunks that count as dropped."""
    used = (pack for pack, _ in packs if pack in marked)
    for index in map_ahead(executor, partial(index_or_none, objects), used):
        if index is None:
            continue
        if gone := dropped.get(index.pack_id):
            index = index.without(gone, DROPPED)
        sparse = sparse_of(index, marked.chunks.get(index.pack_id, 0))
        size_bytes = index.offsets[-1]
        if sparse.dead_bytes and size_bytes - sparse.dead_bytes < min_used * size_bytes:
            yield sparse


def sparse_of(index: PackIndex, used: int) -> Sparse:
    """The chunks of a pack that have bytes and are not in use, and these bytes. ``used``: bits of
    the chunks' numbers."""
    dead = dead_bytes = 0
    for n, size_bytes in enumerate(index.stored_sizes):
        if size_bytes and not used >> n & 1:
            dead |= 1 << n
            dead_bytes += size_bytes
    return Sparse(DeadChunks(index.pack_id, dead), dead_bytes)


def union_of(dead: Iterable[DeadChunks]) -> dict[PackId, int]:
    """All those chunks by their packs: of a pack that is written twice at once, one write would
    bring back what the other has dropped."""
    found: dict[PackId, int] = {}
    for pack, chunks in dead:
        found[pack] = found.get(pack, 0) | chunks
    return found


def drop_all(
    objects: ObjectStore, dead: Iterable[DeadChunks], codec: int, executor: Executor, rate: Rate
) -> Iterator[int]:
    """Writes packs again without the bytes of some chunks, a few at once, and those that were
    merged before together; how many bytes each is smaller. 0 if it was done before, or a pack is
    missing or damaged: then it is left as it is, for who repairs it. ``codec``: DROPPED or PURGED.

    Nobody may name these chunks there, now or later: a write that comes late takes nothing else
    away. Raises: what the store does.
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
        _log.warning("pack %s is not compacted: others write it again and again", pack.hex())
        yield 0


def smaller_by(
    objects: ObjectStore, dead: Sequence[DeadChunks], executor: Executor
) -> Iterator[int]:
    """What ``drop_all`` would give, if no pack's chunks are damaged. Writes nothing."""

    def difference(one: DeadChunks) -> int:
        index = index_or_none(objects, one.pack)
        if index is None:
            return 0
        return index.offsets[-1] - index.without(one.chunks, DROPPED).offsets[-1]

    return map_ahead(executor, difference, dead)


class _Rewritten(NamedTuple):
    """The new object of a pack that lies with others in one."""

    pack: PackId
    data: bytes
    etag: str  # of the old one
    smaller_bytes: int


def _drop_chunks(
    objects: ObjectStore, codec: int, rate: Rate, dead: DeadChunks
) -> int | _Rewritten:
    """As of drop_all, of one pack; but what lies with others in one object is yet to be put."""
    for _ in range(TRIES):
        try:
            version = read_index(objects, dead.pack)
            wanted = version.index.without(dead.chunks, codec)
            if wanted.codecs == version.index.codecs:
                return 0
            data = [*_live_bytes(objects, version, wanted, rate), wanted.encode()]
            smaller_bytes = version.index.offsets[-1] - wanted.offsets[-1]
            rate.take(sum(map(len, data)))
            if place_of(version.etag) is not None:
                return _Rewritten(dead.pack, b"".join(data), version.etag, smaller_bytes)
            if objects.head(keys.pack(dead.pack)).etag != version.etag:
                continue  # somebody else wrote it meanwhile, and dropped other chunks, maybe
            objects.put(keys.pack(dead.pack), data)
        except Changed:
            continue
        except UNREADABLE as error:
            _log.warning("pack %s is not compacted: %s", dead.pack.hex(), error)
            return 0
        return smaller_bytes
    _log.warning("pack %s is not compacted: others write it again and again", dead.pack.hex())
    return 0


def _live_bytes(
    objects: ObjectStore, version: PackIndexVersion, wanted: PackIndex, rate: Rate
) -> list[Buffer]:
    """The stored bytes of the chunks that ``wanted`` keeps, verified. Raises: Corrupt, Changed,
    NotFound; TooLarge for more than fits into memory."""
    index = version.index
    check_bound(wanted)
    found: list[Buffer] = []
    for begin, count in wanted.live_runs(0, len(wanted)):
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

"""Packs that are lost or spoilt are written again under their ids, from whatever has their bytes.

Of all packs that are healed at once, no more is held than where the chunks of some lie, the bytes
of one, and of those that lie in composites a composite's.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.index_shard import PackChunks
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.objects.composites.composite_batch import CompositeBatch
from lodefs.chunkstore.objects.composites.composite_objects import through_composites
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repair.packs import PackDamage, good_pieces
from lodefs.chunkstore.repair.purge_repair import known_purged
from lodefs.chunkstore.repair.sources.source import ABSENT, RepairSource, Root, Search, listed_packs
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.transfer.pack_copy import put_pack, without_purged
from lodefs.chunkstore.types import Buffer

CHUNKS_MAX = 500_000  # that are looked for at once, and those of one pack; some 30 GiB of data

Roots = Callable[[], Iterable[Root]]


def heal(
    objects: ObjectStore,
    damages: Sequence[PackDamage],
    sources: Sequence[RepairSource],
    executor: Executor,
    *,
    dry_run: bool,
    roots: Roots = tuple,
    chunks_max: int = CHUNKS_MAX,
) -> None:
    """Writes packs again, as a whole where a source has them so, else chunk by chunk, for
    ``chunks_max`` chunks at a time. What is purged meanwhile does not come back, after an error
    neither. ``roots``: the commits that are known by now."""
    purged = known_purged(objects)
    inside = None if dry_run else CompositeBatch(through_composites(objects))
    put = partial(_put, objects, inside)
    try:
        _heal_whole(put, damages, sources, purged)
        left = [damage for damage in damages if damage.healed_from is None]
        if left and sources:
            for batch in _batches(_with_columns(objects, left, sources), chunks_max):
                hunt = _Hunt(batch, sources, roots)
                for damage, columns in batch:
                    _write_again(objects, put, damage, columns, hunt, purged)
        if inside is not None:
            inside.flush()
    finally:
        if damages and not dry_run:  # of all: a put that got no answer may have come through
            packs = [damage.pack_id for damage in damages]
            drop_purged(objects, packs, executor, Rate(None))


def _put(
    objects: ObjectStore, inside: CompositeBatch | None, index: PackIndex, payload: Buffer
) -> None:
    """Writes a pack again; one that lies in a composite goes into a new one, with others. Without
    such a batch nothing."""
    if inside is not None and not inside.take(index.pack_id, [payload, index.encode()]):
        put_pack(objects, index, payload, overwrite=True)


def _heal_whole(
    put: Callable[[PackIndex, Buffer], None],
    damages: Iterable[PackDamage],
    sources: Sequence[RepairSource],
    purged: Collection[ChunkId],
) -> None:
    for damage in damages:
        for source in () if damage.has_gone else sources:
            if (found := source.pack(damage.pack_id)) is not None:
                put(*without_purged(*found, purged))
                damage.healed_from = source.url
                break


_Known = tuple[PackDamage, PackChunks]


def _with_columns(
    objects: ObjectStore, damages: Iterable[PackDamage], sources: Sequence[RepairSource]
) -> Iterator[_Known]:
    """Damages with the chunks that the packs had: their own index, index shards and nodes know."""
    unknown: dict[PackId, PackDamage] = {}
    for damage in damages:
        if damage.chunks is None:
            unknown[damage.pack_id] = damage
        else:
            with contextlib.suppress(*ABSENT):  # it was lost meanwhile: another repair finds that
                yield damage, read_index(objects, damage.pack_id).index
    for pack in listed_packs(objects) if unknown else ():
        if pack.pack_id in unknown:
            yield unknown.pop(pack.pack_id), pack
    for pack_id, damage in unknown.items():
        found = (source.columns(pack_id) for source in sources)
        columns = next((columns for columns in found if columns is not None), None)
        if columns is not None:
            yield damage, columns


def _batches(known: Iterable[_Known], chunks_max: int) -> Iterator[list[_Known]]:
    """All of them, in lists whose packs have so many chunks, and those of one pack more."""
    batch: list[_Known] = []
    chunks = 0
    for damage, columns in known:
        batch.append((damage, columns))
        chunks += len(columns.raw_sizes)
        if chunks >= chunks_max:
            yield batch
            batch, chunks = [], 0
    if batch:
        yield batch


class _Hunt:
    """The search for the chunks of a batch of packs. A source looks for all of them at once, when
    those before it lack any."""

    def __init__(
        self, batch: Sequence[_Known], sources: Sequence[RepairSource], roots: Roots
    ) -> None:
        wanted: dict[ChunkId, int] = {}
        for damage, columns in batch:
            for number, chunk_id in enumerate(_chunk_ids(columns)):
                if damage.lacks(number, 1):
                    wanted[chunk_id] = columns.raw_sizes[number]
        packs = {columns.pack_id: columns for _, columns in batch}
        self._search = Search(wanted, packs, roots)
        self._sources = sources
        self._looked = 0  # so many of the sources have looked

    def find(self, wanted: dict[ChunkId, int]) -> _Found:
        """The chunks of one pack, as far as any source has them."""
        found, missing = _Found(), dict(wanted)
        for number, source in enumerate(self._sources):
            if not missing:
                break
            if number >= self._looked:
                self._looked += 1
                source.look(self._search)
            for chunk_id, raw in source.chunks(missing.copy()):
                found.raws[chunk_id] = raw
                found.places.add(source.url)
                missing.pop(chunk_id, None)
        return found


@dataclass(slots=True)
class _Found:
    raws: dict[ChunkId, Buffer] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)


def _write_again(
    objects: ObjectStore,
    put: Callable[[PackIndex, Buffer], None],
    damage: PackDamage,
    columns: PackChunks,
    hunt: _Hunt,
    purged: Collection[ChunkId],
) -> None:
    own, pieces = (None, {}) if damage.chunks is None else good_pieces(objects, damage.pack_id)
    if (own is None) != (damage.chunks is None):  # as above
        return
    ids = list(_chunk_ids(columns))
    for number, chunk_id in enumerate(ids):
        if chunk_id in purged:
            pieces[number] = PURGED, b""
    rows = zip(ids, columns.raw_sizes, strict=True)
    found = hunt.find({one: size for n, (one, size) in enumerate(rows) if n not in pieces})
    absent = [n for n, one in enumerate(ids) if n not in pieces and one not in found.raws]
    damage.absent, damage.absent_of = sum(1 << number for number in absent), len(ids)
    if absent:
        return
    for number, chunk_id in enumerate(ids):
        if number not in pieces:
            pieces[number] = compress(found.raws[chunk_id])
    ordered = [pieces[number] for number in range(len(ids))]
    codecs = bytes(codec for codec, _ in ordered)
    sizes = array("I", (len(piece) for _, piece in ordered))
    index = PackIndex(columns.ids, columns.raw_sizes, sizes, codecs)
    if index.pack_id != damage.pack_id:
        return
    put(index, b"".join(piece for _, piece in ordered))
    damage.healed_from = ", ".join(sorted(found.places)) or "its own bytes"


def _chunk_ids(columns: PackChunks) -> Iterator[ChunkId]:
    ids = columns.ids
    return (ChunkId(ids[at : at + ID_BYTES]) for at in range(0, len(ids), ID_BYTES))

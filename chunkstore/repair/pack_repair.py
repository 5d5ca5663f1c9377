"""Rewrites lost or damaged packs under their ids, from whatever has their bytes.

However many packs it repairs at once, it holds only where the chunks of some lie, the bytes of one,
and those of the packs for one composite.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from lodefs.chunkstore.errors import UNREADABLE
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.index_shard import PackChunks, chunk_ids
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import DROPPED, PURGED, PackIndex
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import PackBatch, locations_of
from lodefs.chunkstore.repair.packs import FoundPieces, PackDamage, Pieces, dropped_of, find_pieces
from lodefs.chunkstore.repair.purge_repair import known_purged
from lodefs.chunkstore.repair.sources.source import (
    RepairSource,
    Root,
    Search,
    StoreSource,
    listed_packs,
)
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.transfer.pack_copy import put_pack
from lodefs.chunkstore.types import Buffer

CHUNKS_MAX = 500_000  # searched for at once, with those of one pack; some 30 GiB of data

Roots = Callable[[], Iterable[Root]]


def repair_packs(
    objects: ObjectStore,
    damages: Sequence[PackDamage],
    sources: Sequence[RepairSource],
    executor: Executor,
    *,
    dry_run: bool,
    named: Mapping[PackId, int] | None = None,
    roots: Roots = tuple,
    chunks_max: int = CHUNKS_MAX,
) -> None:
    """Rewrites packs from their good chunks and from the sources: first from the packs of these,
    then chunk by chunk, for ``chunks_max`` chunks at a time. No good chunk is lost, and no chunk of
    a source counts as dropped or purged here. Chunks that are purged meanwhile do not come back,
    even after an error. ``named`` are the chunks that versions name (bits of their numbers),
    without which no pack is repaired; None: all. ``roots`` are the commits known so far."""
    purged = known_purged(objects)
    inside = None if dry_run else PackBatch(locations_of(objects))
    damages = [damage for damage in damages if not damage.is_newer]
    sources = [*sources, StoreSource(objects)]  # another pack may have the same chunks
    mending = _Mending(objects, partial(_put, objects, inside), sources, named, purged)
    try:
        left = [damage for damage in damages if not mending.by_packs(damage)]
        for batch in _batches(_with_columns(objects, left, sources), chunks_max):
            hunt = _Hunt(batch, sources, roots)
            for damage, columns in batch:
                mending.by_chunks(damage, columns, hunt)
        if inside is not None:
            inside.flush()
    finally:
        if damages and not dry_run:  # for all: a put without an answer may have succeeded
            packs = [damage.pack_id for damage in damages]
            drop_purged(objects, packs, executor, Rate(None))


def _put(objects: ObjectStore, inside: PackBatch | None, index: PackIndex, payload: Buffer) -> None:
    """Writes a pack again. A pack that was merged goes into a new composite with others; without
    such a batch, nothing is written."""
    if inside is not None and not inside.take(index.pack_id, [payload, index.encode()]):
        put_pack(objects, index, payload, overwrite=True)


_Known = tuple[PackDamage, PackChunks]


def _with_columns(
    objects: ObjectStore, damages: Iterable[PackDamage], sources: Sequence[RepairSource]
) -> Iterator[_Known]:
    """Yields damages with the chunks of the packs, from their own index, index shards or nodes."""
    unknown: dict[PackId, PackDamage] = {}
    for damage in damages:
        if damage.chunks is None:
            unknown[damage.pack_id] = damage
        else:
            with contextlib.suppress(
                *UNREADABLE
            ):  # the pack was lost meanwhile: another repair finds that
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
    """Splits the damages into lists whose packs have at most ``chunks_max`` chunks, without those
    of the last pack."""
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
    """The search for the chunks of a batch of packs. A source searches for all of them at once when
    the sources before it lack any."""

    def __init__(
        self, batch: Sequence[_Known], sources: Sequence[RepairSource], roots: Roots
    ) -> None:
        wanted: dict[ChunkId, int] = {}
        for damage, columns in batch:
            for number, chunk_id in enumerate(chunk_ids(columns)):
                if damage.lacks(number, 1):
                    wanted[chunk_id] = columns.raw_sizes[number]
        packs = {columns.pack_id: columns for _, columns in batch}
        self._search = Search(wanted, packs, roots)
        self._sources = sources
        self._looked = 0  # how many of the sources have searched

    def find(self, wanted: dict[ChunkId, int]) -> _Found:
        """Finds the chunks of one pack, as far as any source has them."""
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


class _Mending:
    """Rewrites packs."""

    def __init__(
        self,
        objects: ObjectStore,
        put: Callable[[PackIndex, Buffer], None],
        sources: Sequence[RepairSource],
        named: Mapping[PackId, int] | None,
        purged: Collection[ChunkId],
    ) -> None:
        self._objects = objects
        self._put = put
        self._sources = sources
        self._named = named
        self._purged = purged

    def by_packs(self, damage: PackDamage) -> bool:
        """Repairs a pack if it and the packs of the sources have all of its chunks together."""
        joined = self._joined(damage, None)
        if joined.columns is None or joined.missing():
            return False
        self._write(damage, joined.columns, joined)
        damage.repaired_from = ", ".join(sorted(joined.places)) or "its own bytes"
        return True

    def by_chunks(self, damage: PackDamage, columns: PackChunks, hunt: _Hunt) -> None:
        """Searches for the other chunks in every place. If the pack exists, chunks that nobody has
        stay as they are, so a pack with some in lost objects stays; if it is lost, they count as
        dropped."""
        joined = self._joined(damage, columns)
        ids = list(chunk_ids(columns))
        found = hunt.find({ids[n]: columns.raw_sizes[n] for n in joined.missing()})
        for number in joined.missing():
            if ids[number] in found.raws:
                joined.pieces[number] = compress(found.raws[ids[number]])
        joined.places |= found.places
        absent = joined.missing()
        stored: Pieces = {} if joined.own is None else joined.own.stored
        needed = [n for n in absent if joined.own is not None or self._is_named(damage, n)]
        damage.absent, damage.absent_of = sum(1 << number for number in needed), len(ids)
        # Chunks in an object that is lost are not given up, since it may come back as it was
        is_in_place = joined.own is not None and any(n not in stored for n in needed)
        if needed and (is_in_place or not joined.places):
            return
        for number in absent:
            joined.pieces[number] = stored.get(number, (DROPPED, b""))
        self._write(damage, columns, joined)
        if not needed:
            damage.repaired_from = ", ".join(sorted(joined.places)) or "its own bytes"

    def _joined(self, damage: PackDamage, columns: PackChunks | None) -> _JoinedPieces:
        own = find_pieces(self._objects, damage.pack_id)
        joined = _JoinedPieces(own, columns)
        if own is not None:
            joined.columns = own.index
            dropped = dropped_of(own.index, self._bits(damage))
            joined.pieces |= {n: piece for n, piece in own.good.items() if not dropped >> n & 1}
        self._leave_out_purged(joined)
        for source in self._sources:
            if joined.columns is not None and not joined.missing():
                break
            if (found := source.pack(damage.pack_id)) is None:
                continue
            if joined.columns is None:
                joined.columns = found[0]
                self._leave_out_purged(joined)
            joined.add(*found, source.url)
        return joined

    def _leave_out_purged(self, joined: _JoinedPieces) -> None:
        for number, chunk_id in enumerate(chunk_ids(joined.columns) if joined.columns else ()):
            if chunk_id in self._purged:
                joined.pieces[number] = PURGED, b""

    def _bits(self, damage: PackDamage) -> int:
        return 0 if self._named is None else self._named.get(damage.pack_id, 0)

    def _is_named(self, damage: PackDamage, number: int) -> bool:
        return self._named is None or bool(self._bits(damage) >> number & 1)

    def _write(self, damage: PackDamage, columns: PackChunks, joined: _JoinedPieces) -> None:
        self._keep_new(damage, joined)
        ordered = [joined.pieces[number] for number in range(len(columns.raw_sizes))]
        codecs = bytes(codec for codec, _ in ordered)
        sizes = array("I", (len(piece) for _, piece in ordered))
        index = PackIndex(columns.ids, columns.raw_sizes, sizes, codecs)
        assert index.pack_id == damage.pack_id, "columns of another pack"
        damage.is_partial = joined.own is None and index.has_gone
        self._put(index, b"".join(piece for _, piece in ordered))

    def _keep_new(self, damage: PackDamage, joined: _JoinedPieces) -> None:
        """Adds what a push or copy has put since the pack was examined, since the search may be
        long."""
        now = find_pieces(self._objects, damage.pack_id)
        for number, piece in ({} if now is None else now.good).items():
            if piece[0] not in (DROPPED, PURGED) and joined.pieces[number][0] != PURGED:
                joined.pieces[number] = piece


@dataclass(slots=True)
class _JoinedPieces:
    """The good chunks of one pack from all places, and the names of these places except the pack
    itself. ``own`` is the existing pack. ``columns`` is None until its list of chunks is known."""

    own: FoundPieces | None
    columns: PackChunks | None
    pieces: Pieces = field(default_factory=dict)
    places: set[str] = field(default_factory=set)

    def missing(self) -> list[int]:
        """Returns the numbers of the missing chunks."""
        chunks = 0 if self.columns is None else len(self.columns.raw_sizes)
        return [number for number in range(chunks) if number not in self.pieces]

    def add(self, index: PackIndex, payload: Buffer, url: str) -> None:
        """Adds missing chunks from a source's pack."""
        view = memoryview(payload)
        for number in self.missing():
            if not index.is_gone(number):
                piece = view[index.offsets[number] : index.offsets[number + 1]]
                self.pieces[number] = index.codecs[number], piece
                self.places.add(url)

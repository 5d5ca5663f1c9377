"""Packs that are lost or spoilt: found, and written again under their ids."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.index_shard import PackChunks
from lodefs.chunkstore.format.names import ID_BYTES, ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex, unpack
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.compact import Rate
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.objects.composites.composite_batch import CompositeBatch
from lodefs.chunkstore.objects.composites.composite_objects import through_composites
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repair.sources import RepairSource, listed_packs
from lodefs.chunkstore.repo.pack_reader import check_bound, read_index, read_stored
from lodefs.chunkstore.transfer.pack_copy import put_pack, without_purged
from lodefs.chunkstore.types import Buffer


@dataclass(slots=True)
class PackDamage:
    """A pack that is not whole. ``good``: what of it is: by chunk number codec and stored bytes;
    ``columns``: its chunks, if they are known."""

    pack_id: PackId
    is_lost: bool
    what: str
    columns: PackChunks | None = None
    good: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    healed_from: str | None = None

    @property
    def bad(self) -> Collection[int] | None:
        """Numbers of the chunks that are not there; None: not known which it has."""
        if self.columns is None:
            return None
        return set(range(len(self.columns.raw_sizes))) - self.good.keys()


def examine(objects: ObjectStore, pack_id: PackId, *, data: bool) -> PackDamage | None:
    """What is wrong with a pack: of its index, with ``data`` of every byte. None: nothing."""
    try:
        version = read_index(objects, pack_id)
    except NotFound:
        return PackDamage(pack_id, is_lost=True, what="lost")
    except (Corrupt, Changed) as error:
        return PackDamage(pack_id, is_lost=False, what=str(error))
    if not data:
        return None
    index = version.index
    check_bound(index)
    try:
        stored = memoryview(read_stored(objects, version, 0, len(index)))
    except (Changed, NotFound):  # written again, or collected, at this moment
        return None
    damage = PackDamage(pack_id, is_lost=False, what="", columns=index)
    for number, place in enumerate(index.places(0, len(index))):
        if index.is_gone(number):  # dropped or purged: it is not to come back
            damage.good[number] = place.codec, b""
            continue
        piece = stored[place.offset : place.offset + place.stored_size_bytes]
        if index.is_gone(number):
            damage.good[number] = place.codec, b""
            continue
        try:
            unpack(place, piece)
        except Corrupt as error:
            damage.what = damage.what or f"chunk {number}: {error}"
        else:
            damage.good[number] = place.codec, bytes(piece)
    return damage if damage.what else None


def heal(
    objects: ObjectStore,
    damages: Sequence[PackDamage],
    sources: Sequence[RepairSource],
    executor: Executor,
    *,
    dry_run: bool,
) -> None:
    """Writes packs again, as a whole where a source has them so, else chunk by chunk. What is
    purged meanwhile does not come back, after an error neither."""
    purged = {chunk for purge in Purges(objects).after(-1) for chunk in purge.chunks}
    batch = None if dry_run else CompositeBatch(through_composites(objects))
    put = partial(_put, objects, batch)
    try:
        _heal_whole(put, damages, sources, purged)
        left = [damage for damage in damages if damage.healed_from is None]
        if left and sources:
            _find_columns(objects, left, sources)
            _heal_by_chunks(put, left, sources, purged)
        if batch is not None:
            batch.flush()
    finally:
        if damages and not dry_run:  # of all: a put that got no answer may have come through
            packs = [damage.pack_id for damage in damages]
            drop_purged(objects, packs, executor, Rate(None))


def _put(
    objects: ObjectStore, batch: CompositeBatch | None, index: PackIndex, payload: Buffer
) -> None:
    """Writes a pack again; one that lies in a composite goes into a new one, with others. Without a
    ``batch`` nothing."""
    if batch is not None and not batch.take(index.pack_id, [payload, index.encode()]):
        put_pack(objects, index, payload, overwrite=True)


def _heal_whole(
    put: Callable[[PackIndex, Buffer], None],
    damages: Iterable[PackDamage],
    sources: Sequence[RepairSource],
    purged: Collection[ChunkId],
) -> None:
    for damage in damages:
        own = damage.columns
        for source in () if isinstance(own, PackIndex) and own.has_gone else sources:
            if (found := source.pack(damage.pack_id)) is not None:
                put(*without_purged(*found, purged))
                damage.healed_from = source.url
                break


def _find_columns(
    objects: ObjectStore, damages: Iterable[PackDamage], sources: Sequence[RepairSource]
) -> None:
    """Which chunks the packs had: index shards and nodes know."""
    unknown = {damage.pack_id: damage for damage in damages if damage.columns is None}
    for pack in listed_packs(objects) if unknown else ():
        if pack.pack_id in unknown:
            unknown.pop(pack.pack_id).columns = pack
    for pack_id, damage in unknown.items():
        found = (source.columns(pack_id) for source in sources)
        damage.columns = next((columns for columns in found if columns is not None), None)


def _heal_by_chunks(
    put: Callable[[PackIndex, Buffer], None],
    damages: Sequence[PackDamage],
    sources: Sequence[RepairSource],
    purged: Collection[ChunkId],
) -> None:
    wanted: dict[ChunkId, int] = {}
    for damage in damages:
        if damage.columns is not None:
            for number in damage.bad or ():
                chunk_id = _chunk_id(damage.columns, number)
                wanted[chunk_id] = damage.columns.raw_sizes[number]
    raws: dict[ChunkId, tuple[Buffer, str]] = {}
    for source in sources:
        missing = {one: size for one, size in wanted.items() if one not in raws}
        for chunk_id, raw in source.chunks(missing) if missing else ():
            raws[chunk_id] = raw, source.url
    for damage in damages:
        if damage.columns is not None:
            _write_again(put, damage, damage.columns, raws, purged)


def _write_again(
    put: Callable[[PackIndex, Buffer], None],
    damage: PackDamage,
    columns: PackChunks,
    raws: Mapping[ChunkId, tuple[Buffer, str]],
    purged: Collection[ChunkId],
) -> None:
    stored, codecs, places = [], bytearray(), set()
    for number in range(len(columns.raw_sizes)):
        if _chunk_id(columns, number) in purged:
            codec, piece = PURGED, b""
        elif number in damage.good:
            codec, piece = damage.good[number]
        elif (found := raws.get(_chunk_id(columns, number))) is not None:
            places.add(found[1])
            codec, compressed = compress(found[0])
            piece = bytes(compressed)
        else:
            return
        codecs.append(codec)
        stored.append(piece)
    index = PackIndex(columns.ids, columns.raw_sizes, array("I", map(len, stored)), bytes(codecs))
    if index.pack_id != damage.pack_id:
        return
    put(index, b"".join(stored))
    damage.healed_from = ", ".join(sorted(places)) or "its own bytes"


def _chunk_id(columns: PackChunks, number: int) -> ChunkId:
    return ChunkId(columns.ids[number * ID_BYTES : (number + 1) * ID_BYTES])


def key_of(damage: PackDamage) -> str:
    """The key of the object."""
    return keys.pack(damage.pack_id)

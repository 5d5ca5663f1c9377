"""Adopting: virtual packs of a version are written again under their ids with the bytes that lay in
objects of a source. No tree and no commit changes, and a repetition goes on with what is left."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.errors import UNREADABLE, Changed, Corrupt, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.compression import RawStreak
from lodefs.chunkstore.format.names import PackId, Spec
from lodefs.chunkstore.format.pack import PackIndex, unpack_chunks
from lodefs.chunkstore.format.virtual_pack import PlacedRun, VirtualPack
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.maintenance.inventory import PackList
from lodefs.chunkstore.maintenance.late_writes import drop_purged
from lodefs.chunkstore.objects.in_place.virtual_packs import stored_etag, virtual_pack_of
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, read_index, read_stored
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.rate import Rate
from lodefs.chunkstore.types import Buffer

PACKS_AT_ONCE = 4  # each takes up to 64 MiB of memory, twice
TRIES = 4  # for a pack that others rewrite at the same time


@dataclass(slots=True)
class AdoptResult:
    """``packs`` had ``size_bytes`` in objects of sources, which are in the store now, in
    ``stored_bytes``. ``lost`` says which objects could not be read any more."""

    packs: int = 0
    size_bytes: int = 0
    stored_bytes: int = 0
    lost: list[str] = field(default_factory=list)


class Written(dict[PackId, str]):
    """The packs that were put, with their ETags; "" while the answer to the put is not known."""


def adopt(
    store: Store, spec: Spec | None, progress: Progress | None = None, *, dry_run: bool = False
) -> AdoptResult:
    """Brings the bytes that a version has in place into the store; without ``spec`` those of all
    packs. With ``dry_run`` it only counts them. Lost or damaged data stays as it is, and does not
    stop the adoption of the rest.

    Raises: NotFound; SourceUnknown, Denied for a source that this machine cannot read; Unavailable;
    what the store raises.
    """
    progress = progress or Progress()
    progress.phase = "looking for packs in place"
    packs = _listed(store) if spec is None else _named(store, spec)
    result, written = AdoptResult(), Written()
    if not dry_run:
        store.ensure_writable()
    progress.phase, progress.files_total = "adopting packs", len(packs)
    adopt_one = partial(adopt_pack, store.objects, written, dry_run=dry_run, may_go=spec is None)
    try:
        with ThreadPoolExecutor(PACKS_AT_ONCE, "lodefs-adopt") as executor:
            for one in map_ahead(executor, adopt_one, packs, PACKS_AT_ONCE):
                progress.files_done += 1
                progress.bytes_done += one.size_bytes
                progress.bytes_sent += one.stored_bytes
                result.packs += one.size_bytes > 0
                result.size_bytes += one.size_bytes
                result.stored_bytes += one.stored_bytes
                result.lost += one.lost
    finally:
        lost = _after_others(store.objects, written)
    result.lost += lost
    return result


def _after_others(objects: ObjectStore, written: Written) -> list[str]:
    """Joins what was written with what others wrote at the same time, also after an error: a purge
    may have put a pack that it had read while that was virtual, and an adopted pack may have bytes
    that were purged meanwhile. Returns what is lost. Raises: what adopt_pack and drop_purged
    raise."""

    def again(one: tuple[PackId, str]) -> list[str]:
        pack_id, etag = one
        try:
            if not etag or objects.head(keys.pack(pack_id)).etag == etag:
                return []
        except NotFound:  # a gc run has deleted it
            return []
        return adopt_pack(objects, Written(), pack_id, dry_run=False, may_go=True).lost

    with ThreadPoolExecutor(PACKS_AT_ONCE, "lodefs-adopt") as executor:
        found = map_ahead(executor, again, written.items(), PACKS_AT_ONCE)
        lost = [line for lines in found for line in lines]
        drop_purged(objects, written, executor, Rate(None))
    return lost


def _named(store: Store, spec: Spec) -> list[PackId]:
    """Returns the packs of a version. Raises: NotFound; what the store raises."""
    spec, commit_id = store.locate(spec)
    return [*named_packs(store.packs, store.commit(spec.repo, commit_id).root, None).found]


def _listed(store: Store) -> list[PackId]:
    """Returns all packs of the store."""
    with PackList() as packs:
        packs.fill(store.objects)
        return [pack_id for pack_id, _ in packs]


def adopt_pack(
    objects: ObjectStore, written: Written, pack_id: PackId, *, dry_run: bool, may_go: bool
) -> AdoptResult:
    """Adopts one pack, and adds it to ``written``. An ordinary one stays as it is, and so does one
    that is gone, if it ``may_go``: a gc run has deleted it. Raises: Changed if others keep
    rewriting it; what the store and the sources raise."""
    key = keys.pack(pack_id)
    for _ in range(TRIES):
        try:
            version = read_index(objects, pack_id)
            virtual = virtual_pack_of(objects, pack_id, version.etag)
        except Changed:
            continue
        except UNREADABLE as error:
            is_gone = may_go and isinstance(error, NotFound)
            return AdoptResult(lost=[] if is_gone else [str(error)])
        if virtual is None:
            return AdoptResult()
        if dry_run:
            return AdoptResult(1, virtual.index.offsets[-1] - virtual.own_size_bytes)
        try:
            made = _with_bytes(objects, version, virtual)
            is_same = objects.head(key).etag == stored_etag(version.etag)
        except (Changed, NotFound):  # rewritten, or deleted by a gc run: the next look tells
            continue
        if not made.size_bytes:
            return AdoptResult(lost=made.lost)
        # The put has no condition: another writer of this pack has the same chunks
        if is_same:
            written[pack_id] = ""
            written[pack_id] = objects.put(key, made.data)
            stored_bytes = sum(len(one) for one in made.data)
            return AdoptResult(1, made.size_bytes, stored_bytes, made.lost)
    raise Changed(f"{key} is not adopted: others keep rewriting it; repeat the command")


class _Made(NamedTuple):
    """The new object of a pack, and how many bytes of it came from sources."""

    data: list[Buffer]
    size_bytes: int
    lost: list[str]


def _with_bytes(objects: ObjectStore, version: PackIndexVersion, virtual: VirtualPack) -> _Made:
    """Returns the pack with the bytes of all unchanged runs. Raises: what reading raises."""
    index, lost, left = version.index, [], []
    data: list[Buffer] = []
    codecs, sizes, size_bytes = bytearray(index.codecs), array("I", index.stored_sizes), 0
    for run in virtual.all_runs():
        if isinstance(run, PlacedRun):
            try:
                chunks = dict(_compressed(objects, version, run))
            except Corrupt as error:  # for example SourceLost
                lost.append(str(error))
                left.append(run)
                continue
            for n, (codec, stored) in chunks.items():
                codecs[n], sizes[n] = codec, len(stored)
                size_bytes += index.raw_sizes[n]
                data.append(stored)
        else:
            for first, count in index.live_runs(*run):
                data.append(read_stored(objects, version, first, count))
    made = PackIndex(index.ids, index.raw_sizes, sizes, bytes(codecs))
    if left:
        return _Made([*data, _reduced(virtual, made, left).encode_tail()], size_bytes, lost)
    return _Made([*data, made.encode()], size_bytes, lost)


def _compressed(
    objects: ObjectStore, version: PackIndexVersion, run: PlacedRun
) -> Iterator[tuple[int, tuple[int, Buffer]]]:
    """Yields the chunks of a run that are not gone, by number: codec and bytes. Raises: Corrupt,
    SourceLost, Changed."""
    compress = RawStreak().compress
    for first, count in version.index.live_runs(run.first, run.chunks):
        stored = read_stored(objects, version, first, count)
        for n, raw in enumerate(unpack_chunks(version.index, first, count, stored), first):
            yield n, compress(raw)


def _reduced(virtual: VirtualPack, index: PackIndex, runs: list[PlacedRun]) -> VirtualPack:
    """Returns the virtual pack with fewer runs, and only their objects."""
    numbers: Mapping[int, int] = {
        number: n for n, number in enumerate(sorted({run.object for run in runs}))
    }
    objects = [virtual.objects[number] for number in numbers]
    return VirtualPack(index, objects, [run._replace(object=numbers[run.object]) for run in runs])

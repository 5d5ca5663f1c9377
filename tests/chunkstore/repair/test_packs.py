"""Packs that lack some of their chunks on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

import pytest

from lodefs.chunkstore.errors import Purged, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, PackId
from lodefs.chunkstore.format.pack import PURGED, PackIndex
from lodefs.chunkstore.maintenance.purge import PurgeResult, plan_path, purge
from lodefs.chunkstore.repair.pack_repair import repair_packs
from lodefs.chunkstore.repair.packs import examine
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.sources.source import Search, StoreSource
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.pack_reader import PackReader, read_index
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.transfer.pack_copy import fetch_pack
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.baton import InlineExecutor


def test_purged_chunks_stay_gone() -> None:
    """A purged chunk is no damage; where another chunk of its pack is damaged, that one alone comes
    back, although the source has both."""
    store = memory_store()
    assert isinstance(store.objects, MemoryObjects)
    Handmade(store).commit("r", {b"a": Random(1).randbytes(4096), b"b": b"b" * 2500})
    whole = MemoryObjects("memory:whole")
    whole.objects = dict(store.objects.objects)
    packs = [key for key in whole.objects if key.startswith(keys.PACKS)]
    key = max(packs, key=lambda key: len(whole.objects[key]))
    pack_id = PackId(bytes.fromhex(key.rpartition("/")[2]))
    index, payload = fetch_pack(whole, pack_id)
    rest = bytes(memoryview(payload)[index.offsets[1] :])
    purged = index.without(1, PURGED)
    store.objects.objects[key] = rest + purged.encode()
    assert examine(store.objects, pack_id, data=True) is None
    store.objects.objects[key] = b"\xff" + rest[1:] + purged.encode()
    damage = examine(store.objects, pack_id, data=True)
    assert damage is not None
    assert damage.bad == {1}
    repair_packs(store.objects, [damage], [StoreSource(whole)], InlineExecutor(), dry_run=False)
    assert damage.repaired_from == whole.url
    repaired = read_index(store.objects, pack_id).index
    assert (repaired.is_gone(0), repaired.is_gone(1)) == (True, False)
    assert examine(store.objects, pack_id, data=True) is None


class _Overtaken(StoreSource):
    """A copy of a store that is from before: while it is read, a file is purged from the store."""

    def __init__(self, store: Store, *, by_chunks: bool, fails: bool) -> None:
        copy = MemoryObjects("memory:copy")
        assert isinstance(store.objects, MemoryObjects)
        copy.objects = dict(store.objects.objects)
        super().__init__(copy)
        self._store = store
        self._by_chunks = by_chunks
        self._fails = fails
        self.purged: list[PurgeResult] = []

    def pack(self, pack_id: PackId) -> tuple[PackIndex, Buffer] | None:
        if self._by_chunks:
            return None
        found = super().pack(pack_id)
        if self.purged and self._fails:
            raise Unavailable("the copy is gone")
        self._purge()
        return found

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        found = list(super().chunks(wanted))
        self._purge()
        yield from found

    def _purge(self) -> None:
        if not self.purged:
            plan = plan_path(self._store, "r", b"a")
            self.purged.append(purge(self._store, plan, lambda: 1.0))


@pytest.mark.parametrize("way", ["packs", "chunks", "error"])
def test_a_repair_that_a_purge_overtakes(way: str) -> None:
    """What a purge removes after a repair has begun, and before it writes the pack, is not there in
    the end, also if the repair fails then; all else is."""
    store = memory_store()
    objects = store.objects
    assert isinstance(objects, MemoryObjects)
    made = Handmade(store, chunk_size_bytes=4096, pack_chunks=2)
    files = {name: Random(name).randbytes(4096) for name in (b"a", b"b", b"c")}
    root = store.commit("r", made.commit("r", files)).root
    source = _Overtaken(store, by_chunks=way == "chunks", fails=way == "error")
    entries = {entry.name: entry for _, entry in store.packs.walk(root)}
    for name in (b"a", b"c"):
        key = keys.pack(entries[name].segments[0].pack)
        objects.objects[key] = bytes([objects.objects[key][0] ^ 1]) + objects.objects[key][1:]
    options = RepairOptions(data=True, workers=1)
    if way == "error":
        with pytest.raises(Unavailable, match="the copy is gone"):
            repair(objects, [source], options)
    else:
        assert not repair(objects, [source], options).left
    (purged,) = source.purged
    assert (purged.left, purged.writers) == ([], 0)
    packs = PackReader(objects)
    with pytest.raises(Purged):
        list(packs.read_file(entries[b"a"]))
    assert b"".join(packs.read_file(entries[b"b"])) == files[b"b"]
    if way != "error":
        assert b"".join(packs.read_file(entries[b"c"])) == files[b"c"]


class _Asked(StoreSource):
    """Has no whole packs, and counts for how many chunks it is asked at once."""

    def __init__(self, objects: MemoryObjects) -> None:
        super().__init__(objects)
        self.searches: list[int] = []
        self.asked: list[int] = []

    def pack(self, pack_id: PackId) -> None:
        return None

    def look(self, search: Search) -> None:
        self.searches.append(len(search.wanted))
        super().look(search)

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        self.asked.append(len(wanted))
        return super().chunks(wanted)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "spoilt"])
def test_many_packs_in_batches(lost: bool) -> None:
    """Of packs that are repaired at once, a few are looked for at a time, and the chunks of one are
    read; what of them is good is not asked for. A second source looks only for what is missing."""
    store = memory_store()
    objects = store.objects
    assert isinstance(objects, MemoryObjects)
    made = Handmade(store, chunk_size_bytes=1024, pack_chunks=4)
    made.commit("r", {b"a": Random(1).randbytes(40 * 1024)})
    whole = MemoryObjects("memory:whole")
    whole.objects = dict(objects.objects)
    damages = []
    for key in [key for key in objects.objects if key.startswith(keys.PACKS)]:
        data = objects.objects.pop(key)
        if not lost:
            objects.objects[key] = bytes([data[0] ^ 1]) + data[1:]
        damage = examine(objects, PackId(bytes.fromhex(key.rpartition("/")[2])), data=True)
        assert damage is not None
        damages.append(damage)
    assert len(damages) > 10
    source, second = _Asked(whole), _Asked(whole)
    executor = InlineExecutor()
    repair_packs(objects, damages, [source, second], executor, dry_run=False, chunks_max=9)
    assert all(damage.repaired_from == whole.url for damage in damages)
    assert (second.searches, second.asked) == ([], [])
    assert len(source.searches) > 3
    assert max(source.searches) <= 12
    assert set(source.asked) <= ({4, 1} if lost else {1})
    assert verify(store, data=True).problems == []

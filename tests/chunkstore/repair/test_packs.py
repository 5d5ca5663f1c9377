"""Packs that lack some of their chunks on purpose."""

from __future__ import annotations

from random import Random

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import PURGED
from lodefs.chunkstore.repair.packs import examine, heal
from lodefs.chunkstore.repair.sources import StoreSource
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.transfer.pack_copy import fetch_pack
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects


def test_purged_chunks_stay_gone() -> None:
    """A purged chunk is no damage; where another chunk of its pack is spoilt, that one alone comes
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
    heal(store.objects, [damage], [StoreSource(whole)], dry_run=False)
    assert damage.healed_from == whole.url
    healed = read_index(store.objects, pack_id).index
    assert (healed.is_gone(0), healed.is_gone(1)) == (True, False)
    assert examine(store.objects, pack_id, data=True) is None

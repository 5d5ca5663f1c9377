"""Chunks of a store that is too large for a machine to know them all."""

from __future__ import annotations

import sqlite3
from array import array
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from blake3 import blake3

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import (
    ShardPack,
    encode_shard,
    hooks_of,
    hooks_size_bytes,
)
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.push.index import push_index
from lodefs.chunkstore.push.index.push_index import PushIndex, split
from lodefs.chunkstore.push.index.stat_cache import forget_chunks
from lodefs.chunkstore.repo.checks.verify import verify
from tests.support.chunkstore.directories import in_commit, in_directory, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.strategies import pack_of
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

STORE = "0" * 32
NAMES = [b"%d" % n for n in range(20)]
IDS = [blake3(name).digest() for name in NAMES]


@pytest.fixture(autouse=True)
def _every_store_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_index, "CHUNKS_MAX", 0)


@pytest.fixture
def objects() -> FaultyObjects:
    """A store with two packs of ten chunks each, and their shard."""
    objects = FaultyObjects(MemoryObjects())
    packs = [pack_of(NAMES[:10]), pack_of(NAMES[10:])]
    for pack in packs:
        objects.put(keys.pack(pack.index.pack_id), pack.buffers)
    objects.put(keys.shard("1"), [encode_shard([pack.index for pack in packs])])
    objects.forget()
    return objects


def index_of(directory: Path, objects: FaultyObjects) -> closing[PushIndex]:
    index = PushIndex(directory, STORE)
    index.load_shards(objects)
    return closing(index)


def test_a_hook_leads_to_all_chunks_of_its_pack(tmp_path: Path, objects: FaultyObjects) -> None:
    """Chunks are unknown until a hook of their pack is asked for; then they stay known, and no pack
    is read twice."""
    with index_of(tmp_path, objects) as index:
        assert index.find(IDS[1:10]) == index.find_all(IDS[11:]) == {}
        found = index.find(IDS[:10])
        assert [split(found[one])[1] for one in IDS[:10]] == list(range(10))
        assert index.find_all(IDS[9:11]).keys() == {*IDS[9:11]}
        assert objects.count("get", "packs/") == 2
    with index_of(tmp_path, objects) as index:
        assert index.find(IDS).keys() == {*IDS}
        assert objects.count("get", "packs/") == 2
        assert objects.count("get", keys.INDEX) == 1


def test_hooks_of_other_packs_are_not_followed(tmp_path: Path, objects: FaultyObjects) -> None:
    """A search in some packs reads no others: the time of its answer tells nothing of them."""
    own = pack_of(NAMES[:10]).index.pack_id
    with index_of(tmp_path, objects) as index:
        assert index.find_all(IDS, {own}).keys() == {*IDS[:10]}
        assert objects.count("get", "packs/") == 1
        assert index.find_all(IDS).keys() == {*IDS}


def test_packs_that_are_gone_cost_one_request(tmp_path: Path, objects: FaultyObjects) -> None:
    """A hook of a lost pack finds nothing, and is not followed again."""
    for info in list(objects.list("packs/")):
        objects.delete(info.key)
    with index_of(tmp_path, objects) as index:
        assert index.find(IDS) == {}
        asked = objects.count("get", "packs/")
        assert index.find(IDS) == {}
        assert objects.count("get", "packs/") == asked


def test_a_store_that_does_not_answer(tmp_path: Path, objects: FaultyObjects) -> None:
    """Its error is raised, and hooks are followed when it answers again."""
    rule = objects.add(fail(Unavailable("no answer")), "get", "packs/")
    with index_of(tmp_path, objects) as index:
        with pytest.raises(Unavailable):
            index.find(IDS)
        objects.rules.remove(rule)
        assert index.find(IDS).keys() == {*IDS}


def test_hooks_that_lie_find_nothing(tmp_path: Path, objects: FaultyObjects) -> None:
    """Whoever writes a shard can claim hooks of packs that do not have them."""
    own, other = (pack_of(names).index for names in (NAMES[:10], [b"x"]))
    lie = bytearray(encode_shard([own]))
    size_bytes = hooks_size_bytes(lie)
    assert size_bytes is not None
    at = lie.index(other_id := IDS[0])
    lie[at : at + ID_BYTES] = other.ids
    lie[size_bytes - 32 : size_bytes] = blake3(lie[: size_bytes - 32]).digest()
    objects.put(keys.shard("2"), [lie])
    with index_of(tmp_path, objects) as index:
        assert index.find([other.ids]) == {}
        assert index.find([other_id]).keys() == {other_id}


def test_what_the_store_lost_is_not_found_again(tmp_path: Path, objects: FaultyObjects) -> None:
    """Neither packs that a push forgot, nor other chunks of packs of which it forgot some."""
    one, two = (pack_of(names).index for names in (NAMES[:10], NAMES[10:]))
    with index_of(tmp_path, objects) as index:
        index.forget_packs([one.pack_id])
        forget_chunks(index, {two.pack_id: 1 << 3})
        assert index.find(IDS) == {}


def test_known_places_stay_the_newest(tmp_path: Path, objects: FaultyObjects) -> None:
    """A pack that is read now may be older than one that this machine has put."""
    own = pack_of([NAMES[3], b"own"]).index
    with index_of(tmp_path, objects) as index:
        index.add_packs([ShardPack(own.pack_id, own.ids, own.raw_sizes)])
        places = index.find([IDS[3]])
        assert index.find(IDS[:4]) == {**index.find(IDS[:3]), **places}
        assert len(index.find_all([IDS[3]])[IDS[3]]) == 2


def test_damaged_hooks_are_skipped(tmp_path: Path, objects: FaultyObjects) -> None:
    """A row that is no pack's id is none."""
    with index_of(tmp_path, objects) as index:
        with closing(sqlite3.connect(index.path)) as db, db:
            db.execute("UPDATE hooks SET pack = 'x'")
        assert index.find(IDS) == {}


def test_all_hooks_of_a_store_without_them(tmp_path: Path) -> None:
    """A large pack of an old shard is found by any of its hooks, also in the middle."""
    random = Random(5)
    ids = b"".join(random.randbytes(32) for _ in range(2000))
    hooks = hooks_of(ShardPack(pack_of([b"x"]).index.pack_id, ids, array("I", [1] * 2000)))
    assert 20 < len(hooks.numbers) < 50
    with closing(PushIndex(tmp_path, STORE)) as index:
        index._hooks.add([hooks])
        for n in hooks.numbers:
            found = index._hooks.packs_of([ids[n * 32 : (n + 1) * 32], b"y" * 32])
            assert list(found) == [hooks.pack_id]


def _push(world: World, source: Path, machine: str) -> int:
    result = world.push(source, machine, machine=machine)
    assert in_commit(world.store, REPO, result.commit) == in_directory(source)
    return result.new_bytes


def test_another_machine_pushes_what_has_changed(tmp_path: Path) -> None:
    """A machine that knows only hooks stores little more than one that knows all, and its commit
    has every byte."""
    random = Random(2)
    with one_at_a_time():
        world = World(tmp_path)
        source = world.source("source")
        write_files(source, {f"{n:03}": random.randbytes(900) for n in range(300)})
        write_files(source, {"large": random.randbytes(3_000_000)})
        assert _push(world, source, "first") == 3_000_000 + 300 * 900
        write_files(source, {"000": b"changed", "170": b"changed", "z": random.randbytes(70_000)})
        assert _push(world, source, "second") < 200_000
        assert _push(world, source, "third") == 0
        assert verify(world.store, None, data=True).problems == []

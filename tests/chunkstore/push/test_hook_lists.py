"""Lists of the hooks of many shards: a new machine reads few objects; nothing relies on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, Unavailable, UnknownFormat
from lodefs.chunkstore.format import hook_list, keys
from lodefs.chunkstore.format.index_shard import encode_hooks, encode_shard, hooks_of, rest_name
from lodefs.chunkstore.push import committer
from lodefs.chunkstore.push.index import push_index
from lodefs.chunkstore.push.index.push_index import PushIndex
from lodefs.chunkstore.repo import hook_lists
from lodefs.chunkstore.repo.hook_lists import (
    put_hook_lists,
    read_hook_lists,
    remove_hook_lists,
)
from lodefs.chunkstore.repo.shard_reader import read_hooks
from tests.support.chunkstore.directories import in_commit, in_directory, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects, fail
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.strategies import pack_of
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

SHARDS = [f"{n:016x}-00000000" for n in range(40)]


@pytest.fixture
def objects() -> FaultyObjects:
    """A store with a shard for each push."""
    objects = FaultyObjects(MemoryObjects())
    for name in SHARDS:
        _put_shard(objects, name)
    objects.forget()
    return objects


def _put_shard(objects: FaultyObjects, name: str) -> None:
    pack = pack_of([name.encode()]).index
    objects.put(keys.shard(name), [encode_shard([pack])])


def _lists(objects: FaultyObjects) -> list[str]:
    return [info.key.removeprefix(keys.HOOKS) for info in objects.list(keys.HOOKS)]


def _read(objects: FaultyObjects, names: list[str] = SHARDS) -> dict[str, Any]:
    """What a machine reads that does not know these shards."""
    objects.forget()
    return dict(read_hook_lists(objects, names, 1))


def _assert_right(objects: FaultyObjects, names: list[str] = SHARDS) -> None:
    plain = {name: read_hooks(objects, keys.shard(name)) for name in names}
    assert _read(objects, names) == plain


def test_a_list_has_the_shards_since_the_one_before(objects: FaultyObjects) -> None:
    """And only those up to its own; what is in no list is read shard by shard."""
    for closing_one in (9, 29):
        put_hook_lists(objects, SHARDS[closing_one])
    assert _lists(objects) == [SHARDS[9], SHARDS[29]]
    _assert_right(objects)
    objects.forget()
    _read(objects)
    assert objects.count("get", keys.HOOKS) == 2
    assert objects.count("get", keys.INDEX) == 10
    _assert_right(objects, SHARDS[5:])
    _read(objects, SHARDS[-3:])
    assert objects.count("list", keys.HOOKS) == 0  # so few are not worth it


def test_a_list_that_a_killed_push_has_not_put_is_in_the_next_one(objects: FaultyObjects) -> None:
    """However often it is put: another machine may do so at the same time."""
    objects.add(fail(Unavailable("killed")), "put", keys.HOOKS, times=1)
    with pytest.raises(Unavailable):
        put_hook_lists(objects, SHARDS[9])
    put_hook_lists(objects, SHARDS[29])
    put_hook_lists(objects, SHARDS[29])
    put_hook_lists(objects, SHARDS[9])  # it was only slow
    _assert_right(objects)


def test_many_shards_without_a_list_are_in_several(
    objects: FaultyObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a store becomes large, or after many pushes that were killed. The next push that
    closes a list goes on with them."""
    monkeypatch.setattr(hook_lists, "SHARDS_MAX", 10)
    monkeypatch.setattr(hook_lists, "LISTS_MAX", 2)
    put_hook_lists(objects, SHARDS[34])
    assert _lists(objects) == [SHARDS[9], SHARDS[19]]
    _assert_right(objects)
    put_hook_lists(objects, SHARDS[36])
    assert _lists(objects) == [SHARDS[n] for n in (9, 19, 29, 36)]
    _assert_right(objects)


def test_damage_and_shards_that_changed_cost_only_reads(objects: FaultyObjects) -> None:
    """A damaged list is left out, a shard that is gone is not shown, and one that a gc run has
    rewritten is found by the id of its push."""
    put_hook_lists(objects, SHARDS[9])
    put_hook_lists(objects, SHARDS[19])
    data = objects.get(keys.hook_list(SHARDS[9]), size=1 << 20).data
    objects.put(keys.hook_list(SHARDS[9]), [bytes(data[:-1]) + b"?"])
    objects.delete(keys.shard(SHARDS[12]))
    rest = rest_name(SHARDS[15], 7)
    objects.put(keys.shard(rest), [objects.get(keys.shard(SHARDS[15]), size=1 << 20).data])
    objects.delete(keys.shard(SHARDS[15]))
    names = [info.key.removeprefix(keys.INDEX) for info in objects.list(keys.INDEX)]
    _assert_right(objects, names)
    _read(objects, names)
    assert objects.count("get", keys.INDEX) == 30


def test_a_damaged_shard_does_not_spoil_a_list(objects: FaultyObjects) -> None:
    """It is left out, as is one with a name that no push gives. The others are read from the
    list."""
    key = keys.shard(SHARDS[12])
    shard = bytes(objects.get(key, size=1 << 20).data)
    objects.put(key, [shard[:30] + bytes((shard[30] ^ 255,)) + shard[31:]])
    objects.put(keys.shard(SHARDS[13] + 300 * "x"), [shard])
    put_hook_lists(objects, SHARDS[29])
    others = [name for name in SHARDS[:30] if name != SHARDS[12]]
    assert [*_read(objects, others)] == others
    assert objects.count("get", keys.INDEX) == 0


def test_a_list_goes_with_its_last_shard(objects: FaultyObjects) -> None:
    """The other one stays."""
    put_hook_lists(objects, SHARDS[9])
    put_hook_lists(objects, SHARDS[19])
    objects.delete(keys.shard(SHARDS[9]))
    remove_hook_lists(objects)
    assert _lists(objects) == [SHARDS[19]]


def test_an_index_learns_the_same_hooks(
    tmp_path: Path, objects: FaultyObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lists and without them."""
    monkeypatch.setattr(push_index, "CHUNKS_MAX", 0)

    def rows(machine: str) -> list[Any]:
        with closing(PushIndex(tmp_path / machine, "0" * 32)) as index:
            index.load_shards(objects)
            tables = ("hooks ORDER BY id", "shards ORDER BY id")
            return [index.select(f"SELECT * FROM {table}") for table in tables]

    plain = rows("one")
    put_hook_lists(objects, SHARDS[29])
    assert rows("two") == plain
    assert len(plain[1]) == len(SHARDS)


def test_pushes_put_lists_and_gc_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose shards close one do; one that cannot put it has pushed all the same."""
    monkeypatch.setattr(push_index, "CHUNKS_MAX", 0)
    monkeypatch.setattr(hook_lists, "UNSEEN_MIN", 1)
    monkeypatch.setattr(committer, "closes_list", lambda _id: True)
    with one_at_a_time():
        world = World(tmp_path)
        source = world.source("s")
        for n in range(3):
            write_files(source, {f"{n}": bytes([n]) * 999})
            if n == 1:
                world.objects.add(fail(Unavailable("no answer")), "put", keys.HOOKS, times=1)
            commit = world.push(source, machine=f"{n}").commit
        assert len(_lists(world.objects)) == 1  # the first push saw an empty store
        assert in_commit(world.store, REPO, commit) == in_directory(source)
        assert world.push(source, "other", machine="new").new_bytes == 0
        for branch in ("main", "other"):
            world.delete(branch)
        world.collect_all()
        assert _lists(world.objects) == []


def test_of_64_pushes_about_one_closes_a_list() -> None:
    """By their ids alone."""
    assert 40 < sum(map(hook_list.closes_list, (f"{n:016x}" for n in range(4096)))) < 90


def _cut(data: bytes) -> bytes:
    return data[:-1]


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (_cut, Corrupt),
        (lambda data: b"LODESHRD" + data[8:], Corrupt),
        (lambda data: data[:20] + b"?" + data[21:], Corrupt),
    ],
)
def test_damaged_lists_are_refused(
    damage: Callable[[bytes], bytes], error: type[Exception]
) -> None:
    """Whatever is damaged."""
    data = hook_list.encode_hook_list([("a", encode_hooks([hooks_of(pack_of([b"x"]).index)]))])
    assert [name for name, _ in hook_list.decode_hook_list(data, "x")] == ["a"]
    with pytest.raises(error):
        hook_list.decode_hook_list(damage(data), "x")
    head = hook_list.HEAD.pack(hook_list.MAGIC, 2, 0, 0)
    with pytest.raises(UnknownFormat, match="newer lodefs"):
        hook_list.decode_hook_list(head + blake3(head).digest(), "x")

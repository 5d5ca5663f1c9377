"""Several stores as one: who is asked for what, when one is dead, lacks something, or lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from lodefs.chunkstore.errors import (
    Changed,
    Corrupt,
    DeadlineExceeded,
    Denied,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore
from lodefs.chunkstore.objects.mirrored import (
    Mirrored,
    is_content,
    join_etag,
)
from lodefs.chunkstore.objects.ranges.order import RangeOrder
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.faulty_store import FaultyObjects, fail, flip_byte
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.object_store_suite import ObjectStoreSuite

FILES = {b"a": b"a" * 3000, b"b": bytes(range(256)) * 30}
DEAD = Unavailable("nobody answers")


class Created(MemoryObjects):
    """A store that has settings, which no list shows."""

    def head(self, key: str) -> ObjectInfo:
        return ObjectInfo(key, 1, '"1"') if key == keys.STORE else super().head(key)


class Ranged(FaultyObjects):
    """A store of which ranges can be ordered."""

    @contextmanager
    def range_order(self, *_: object) -> Iterator[RangeOrder | None]:
        yield RangeOrder(None)


class TestSuite(ObjectStoreSuite):
    """Two stores, of which the second is empty."""

    @pytest.fixture
    def objects(self) -> ObjectStore:
        return Mirrored([Created(), Created("memory:mirror")])


def test_no_store_at_all() -> None:
    """Where neither is a store, both are empty, and nobody waits for them."""
    objects = Mirrored([MemoryObjects(), MemoryObjects("memory:mirror")], start=lambda _: None)
    for _ in range(2):
        assert list(objects.list("")) == []
        with pytest.raises(NotFound):
            objects.get("x", size=1)
        with pytest.raises(NotFound, match="is not a lodefs store"):
            open_store(objects)


@dataclass
class Pair:
    """A store with one commit and its copy, and what was to be started in threads."""

    first: FaultyObjects
    second: FaultyObjects
    waiting: list[Callable[[], None]] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        stores = [self.first, self.second]
        self.objects = Mirrored(stores, clock=lambda: self.now_s, start=self.waiting.append)

    def read(self) -> dict[bytes, bytes]:
        """All files of the branch main, by a reader that knows nothing yet."""
        store = open_store(self.objects)
        commit_id = store.resolve("r", "main")
        root = store.commit("r", commit_id).root
        return {
            entry.name: b"".join(store.packs.read_file(entry))
            for entry in store.packs.read_tree(root)
        }

    def packs(self) -> list[str]:
        """Their keys."""
        return [info.key for info in self.second.inner.list(keys.PACKS)]


@pytest.fixture
def pair() -> Pair:
    made = Handmade(memory_store())
    made.commit("r", FILES)
    source = made.store.objects
    assert isinstance(source, MemoryObjects)
    mirror = MemoryObjects("memory:mirror")
    mirror.objects = dict(source.objects)
    return Pair(FaultyObjects(source), FaultyObjects(mirror))


def test_only_the_first_is_asked_while_all_is_well(pair: Pair) -> None:
    """A mirror costs nothing while the store answers."""
    assert pair.read() == FILES
    assert pair.second.calls == []
    assert [count for _, _, count in pair.objects.stores][1] == 0


def test_a_dead_store_costs_one_call(pair: Pair) -> None:
    """After one call that was not answered all goes to the mirror, refs too; the store is then
    tried by a thread of its own, after longer and longer pauses, and used again when it answers."""
    pair.first.add(fail(DEAD))
    for _ in range(3):
        assert pair.read() == FILES
    assert len(pair.first.calls) == 1
    tried_at = []
    for second in range(200):
        pair.now_s = second
        pair.read()
        if pair.waiting:
            tried_at.append(second)
            pair.waiting.pop()()
    assert tried_at == [5, 15, 35, 75, 135, 195]
    assert len(pair.first.calls) == 1 + len(tried_at)
    assert [is_up for _, is_up, _ in pair.objects.stores] == [False, True]
    pair.first.forget()
    pair.now_s = 260
    pair.read()
    pair.waiting.pop()()
    pair.second.forget()
    assert pair.read() == FILES
    assert pair.second.calls == []


def test_a_store_that_nobody_asked_for_long(pair: Pair) -> None:
    """Is tried before a branch comes from a mirror, which may be behind: it may have been back for
    hours. While it is away that costs one call a minute and more."""
    pair.first.add(fail(DEAD))
    assert pair.read() == FILES
    pair.first.forget()
    newer = Handmade(open_store(pair.first.inner)).commit("r", {b"new": b"1"})
    pair.now_s = 3600
    assert open_store(pair.objects).resolve("r", "main") == newer
    pair.first.add(fail(DEAD))
    for now_s in (7200, 7200, 7201, 7201 + 120):
        pair.now_s = now_s
        assert open_store(pair.objects).resolve("r", "main") != newer
    assert pair.waiting == []
    assert [is_up for _, is_up, _ in pair.objects.stores] == [False, True]


def test_a_reader_in_between(pair: Pair) -> None:
    """A store that dies while a pack of it is known: its ranges are Changed, so that the index is
    read again, from the mirror."""
    key = pair.packs()[0]
    etag = pair.objects.get(key, size=10).etag
    pair.first.add(fail(DEAD))
    with pytest.raises(Changed):
        pair.objects.get(key, size=10, if_match=etag)
    other = pair.objects.get(key, size=10)
    assert other.etag != etag
    assert pair.objects.get(key, size=10, if_match=other.etag) == other
    pair.first.forget()
    store = open_store(pair.objects)
    entries = store.packs.read_tree(store.commit("r", store.resolve("r", "main")).root)
    pair.first.add(fail(DEAD))
    assert b"".join(store.packs.read_file(entries[1])) == FILES[b"b"]


def test_what_the_first_lacks(pair: Pair) -> None:
    """A lost pack or commit comes from the mirror; a ref that the store does not have is not
    looked for there."""
    first = pair.first.inner
    assert isinstance(first, MemoryObjects)
    for key in [key for key in first.objects if is_content(key)]:
        del first.objects[key]
    assert pair.read() == FILES
    for key in [key for key in first.objects if "/refs/" in key]:
        del first.objects[key]
    with pytest.raises(NotFound):
        pair.read()


def test_what_a_mirror_lacks_while_the_store_is_away(pair: Pair) -> None:
    """Is not known to be missing: a branch, a repository, a commit or a pack that was pushed since
    the last copy. It is there when the store is back."""
    second = pair.second.inner
    assert isinstance(second, MemoryObjects)
    before = dict(second.objects)
    made = Handmade(open_store(pair.first.inner))
    commit = made.commit("r", {b"new": b"n" * 3000}, branch="new")
    made.commit("other", {b"a": b"1"})
    store = open_store(pair.objects)
    entry = store.packs.read_tree(store.commit("r", commit).root)[0]
    pair.first.add(fail(DEAD))
    for _ in range(2):
        for repo, rev in (("r", "new"), ("other", "main"), ("r", commit.hex())):
            with pytest.raises(Unavailable, match=r"does not answer"):
                open_store(pair.objects).resolve(repo, rev)
        with pytest.raises(Unavailable):
            open_store(pair.objects).commit("r", commit)
        with pytest.raises(Unavailable):
            b"".join(open_store(pair.objects).packs.read_file(entry))
    assert pair.read() == FILES
    assert second.objects == before
    pair.first.forget()
    pair.now_s = 10
    pair.read()
    pair.waiting.pop()()
    assert pair.objects.get(keys.commit("r", commit), size=1)
    with pytest.raises(NotFound, match="no branch, tag or commit nothing"):
        open_store(pair.objects).resolve("r", "nothing")


def test_a_pack_that_a_store_without_its_file_system_lacks(pair: Pair) -> None:
    """And its mirror too, is not missing."""
    first, second = pair.first.inner, pair.second.inner
    assert isinstance(first, MemoryObjects)
    assert isinstance(second, MemoryObjects)
    key = pair.packs()[0]
    assert pair.read() == FILES
    del second.objects[key]
    there, first.objects = first.objects, {}
    for _ in range(2):
        with pytest.raises(Unavailable):
            pair.objects.get(key, size=1)
    first.objects = there
    pair.now_s = 10
    assert list(pair.objects.list(keys.REPOS))
    pair.waiting.pop()()
    del first.objects[key]
    with pytest.raises(NotFound):
        pair.objects.get(key, size=1)


@pytest.mark.parametrize("place", [0, 40, -10])
def test_wrong_bytes(pair: Pair, place: int) -> None:
    """Objects that are damaged in the store are read from the mirror, all of them, and the store is
    asked last for them from then on."""
    first = pair.first.inner
    assert isinstance(first, MemoryObjects)
    for key in [key for key in first.objects if is_content(key)]:
        damaged = bytearray(first.objects[key])
        damaged[place] ^= 0xFF
        first.objects[key] = bytes(damaged)
    assert pair.read() == FILES
    pair.first.forget()
    assert pair.read() == FILES
    assert pair.first.count("get", keys.PACKS) == 0


def test_damaged_on_the_way(pair: Pair) -> None:
    """One that sends every byte wrong, at both stores, is told as damage, and soon."""
    for objects in (pair.first, pair.second):
        objects.add(flip_byte(0), "get", keys.PACKS)
    with pytest.raises(Corrupt):
        pair.read()
    assert pair.first.count() + pair.second.count() < 20


def test_none_answers(pair: Pair) -> None:
    """With all of them dead, each is asked, and the error is that nobody answers; credentials that
    all refuse are told as such."""
    pair.first.add(fail(DEAD))
    pair.second.add(fail(DEAD))
    with pytest.raises(Unavailable):
        pair.read()
    with pytest.raises(Unavailable):
        pair.objects.get(pair.packs()[0], size=1)
    pair.first.forget()
    pair.second.forget()
    pair.first.add(fail(Denied("no")))
    pair.second.add(fail(Denied("no")))
    with pytest.raises(Denied, match="refuses this node"):
        pair.read()


def test_a_store_that_refuses_this_node(pair: Pair) -> None:
    """One that answers 403 to everything is away, also at the start, and used again when it lets
    this node in; one that refuses single objects is not."""
    pair.first.add(fail(Denied("403")))
    assert pair.read() == FILES
    assert not pair.objects.is_up(0)
    for now_s, is_back in ((10, False), (40, True)):
        if is_back:
            pair.first.forget()
        pair.now_s = now_s
        pair.read()
        pair.waiting.pop()()
        assert pair.objects.is_up(0) == is_back
    for prefix in (keys.PACKS, keys.REPOS):
        pair.first.add(fail(Denied("403")), "get", prefix)
    assert pair.objects.get(pair.packs()[0], size=1)
    with pytest.raises(Denied):
        pair.read()
    assert pair.objects.is_up(0)


def test_a_store_that_fails_again_after_each_look(pair: Pair) -> None:
    """One that answers looks and no reads, as a slow one may, is left alone for longer and longer;
    after a good minute it is as new."""
    left_alone_s = []
    for _ in range(6):
        pair.first.add(fail(DEAD), "get", keys.PACKS)
        assert pair.objects.get(pair.packs()[0], size=1)
        pair.first.forget()
        failed_s = pair.now_s
        while not pair.objects.is_up(0):
            pair.now_s += 1
            assert pair.objects.get(pair.packs()[0], size=1)
            while pair.waiting:
                pair.waiting.pop()()
        left_alone_s.append(pair.now_s - failed_s)
        pair.now_s += 70 if len(left_alone_s) == 5 else 1
    assert left_alone_s == [5, 20, 60, 60, 60, 5]


def test_a_store_that_drips_does_not_answer_a_look(pair: Pair) -> None:
    """A look reads bytes: a store that is quick to say what it has, and brings nothing, stays
    away."""
    pair.first.add(fail(DeadlineExceeded("it drips")), "get")
    assert pair.read() == FILES
    pair.now_s = 10
    pair.read()
    pair.waiting.pop()()
    assert pair.first.count("head") > 0
    assert not pair.objects.is_up(0)


def test_an_order_that_fails_ends_a_stores_turn(pair: Pair) -> None:
    """Reads by other processes that fail count as calls: the next one is of the mirror, and does
    not wait for the same store again."""
    mirror = Ranged(MemoryObjects())
    objects = Mirrored([pair.first, mirror], start=lambda _: None)
    with objects.range_order("x", 0, 0, join_etag(1, "e")) as order:
        assert order is not None
        order.done(0, 1.0, Unavailable)
    assert [objects.is_up(n) for n in (0, 1)] == [True, False]
    with objects.range_order("x", 0, 0, join_etag(1, "e")) as order:
        assert order is None


def test_a_store_that_puts_off_a_call(pair: Pair) -> None:
    """Refs do not come from a mirror, which may be behind, because of a call that was put off; they
    do once nothing else was answered for half a minute."""
    busy = Unavailable("503 SlowDown")
    busy.is_throttled = True
    pair.first.add(fail(busy))
    for now_s in (0, 29):
        pair.now_s = now_s
        with pytest.raises(Unavailable, match="SlowDown"):
            list(pair.objects.list(keys.REPOS))
        assert open_store(pair.objects)  # so that a node starts
        assert pair.objects.get(pair.packs()[0], size=1)
    pair.now_s = 30
    assert pair.read() == FILES


def test_a_store_that_is_not_mounted(pair: Pair) -> None:
    """A store whose directory is empty, as without its file system, is away, also at the start; it
    is used again when it is back."""
    first = pair.first.inner
    assert isinstance(first, MemoryObjects)
    there, first.objects = first.objects, {}
    assert pair.read() == FILES
    assert [is_up for _, is_up, _ in pair.objects.stores] == [False, True]
    for now_s, is_back in ((10, False), (40, True)):
        first.objects = there if is_back else {}
        pair.now_s = now_s
        pair.read()
        pair.waiting.pop()()
        assert pair.objects.is_up(0) == is_back


def test_an_empty_list_of_a_store_that_is_not_mounted(pair: Pair) -> None:
    """What an empty directory does not list is not missing."""
    first = pair.first.inner
    assert isinstance(first, MemoryObjects)
    first.objects = {}
    assert list(pair.objects.list(keys.REPOS))


def test_writes_go_to_the_first(pair: Pair) -> None:
    """Nothing is ever written to a mirror."""
    pair.objects.put("x", [b"1"])
    pair.objects.delete("x")
    pair.first.add(fail(DEAD))
    with pytest.raises(Unavailable):
        pair.objects.put("x", [b"1"])
    assert pair.second.count("put") + pair.second.count("delete") == 0


def test_a_list_is_of_one_store(pair: Pair) -> None:
    """A dead store's lists come from the mirror, with its ETags."""
    expected = [info.key for info in pair.objects.list(keys.REPOS)]
    pair.first.add(fail(DEAD), "list")
    found = list(pair.objects.list(keys.REPOS))
    assert [info.key for info in found] == expected
    commit = next(info for info in found if is_content(info.key))
    assert pair.objects.get(commit.key, size=1, if_match=commit.etag)

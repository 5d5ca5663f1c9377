"""What a machine remembers of a store between pushes."""

from __future__ import annotations

import logging
import os
import sqlite3
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InUse
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.index_shard import ShardPack, encode_shard
from lodefs.chunkstore.format.names import Digest, PackId, digest_of
from lodefs.chunkstore.format.pack import pack_id_of_columns
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry, encode_tree
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.push.fragmentation import Run
from lodefs.chunkstore.push.index import push_index, stat_cache
from lodefs.chunkstore.push.index.push_index import IndexBroken, PushIndex, TreePlace
from lodefs.chunkstore.push.index.stat_cache import (
    DirectoryDetails,
    DirectoryRow,
    DirectoryState,
    StatCache,
    forget_files_in,
)
from lodefs.chunkstore.repo import shard_reader
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.strategies import segments

STORE = "0" * 32


def pack_of(*names: str) -> ShardPack:
    """A pack whose chunks have ids made of names."""
    ids, sizes = b"".join(chunk(name) for name in names), array("I", [7] * len(names))
    return ShardPack(pack_id_of_columns(ids, sizes), ids, sizes)


def chunk(name: str) -> bytes:
    return digest_of(name.encode())


def index_in(directory: Path) -> closing[PushIndex]:
    return closing(PushIndex(directory, STORE))


class TwiceBusy(sqlite3.Connection):
    """A connection that SQLite refuses its write-ahead log at once, twice."""

    refusals = 2

    def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
        if "journal_mode" in sql and self.refusals:
            self.refusals -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorname = "SQLITE_BUSY"
            raise error
        return super().execute(sql, *parameters)  # type: ignore[arg-type]


def test_two_processes_may_make_an_index_at_once(tmp_path: Path) -> None:
    """SQLite refuses one of two that turn the write-ahead log on, without waiting: it is asked
    again. Other errors are raised."""
    with closing(sqlite3.connect(tmp_path / "new", factory=TwiceBusy)) as db:
        push_index.use_wal(db)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    (tmp_path / "text").write_bytes(b"this is no database" * 100)
    with closing(sqlite3.connect(tmp_path / "text")) as db, pytest.raises(sqlite3.DatabaseError):
        push_index.use_wal(db)


def segment_of(index: PushIndex, name: str) -> Segment:
    return index.segment(Run(index.find([chunk(name)])[chunk(name)], 1, 7))


def remembered(
    key: bytes, *, signature: bytes = b"s" * 16, files: bytes = b"files"
) -> DirectoryRow:
    state = DirectoryState(signature, Digest(digest_of(key)), b"c" * 64)
    return DirectoryRow(key, state, DirectoryDetails(b"stats", files, b"a\0b"))


def test_chunks_are_found_where_their_pack_has_them(tmp_path: Path) -> None:
    """A chunk of an added pack is found, also in a later process; an unknown one is not."""
    one, two = pack_of("a", "b", "c"), pack_of("d")
    with index_in(tmp_path) as index:
        assert index.find([chunk("a")]) == {}
        index.add_packs([one, two])
    with index_in(tmp_path) as index:
        places = index.find([chunk(name) for name in "abcx"])
        assert set(places) == {chunk("a"), chunk("b"), chunk("c")}
        assert places[chunk("c")] == places[chunk("a")] + 2
        assert index.segment(Run(places[chunk("b")], 2, 14)) == Segment(one.pack_id, 1, 2, 14)
        assert segment_of(index, "d") == Segment(two.pack_id, 0, 1, 7)


@pytest.mark.parametrize("count", [1, 2, 3, 255, 256, 257, 1000])
def test_many_chunks_at_once(tmp_path: Path, count: int) -> None:
    """Any number of ids may be asked at once, some of them twice."""
    names = [str(n) for n in range(count)]
    with index_in(tmp_path) as index:
        index.add_packs([pack_of(*names)])
        ids = [chunk(name) for name in names]
        found = index.find([*ids, ids[0], chunk("unknown")])
        assert [index.segment(Run(found[i], 1, 7)).first for i in ids] == list(range(count))
        assert len(found) == count


def test_all_places_of_a_chunk_are_known(tmp_path: Path) -> None:
    """A chunk that is in several packs, and several times in one, is found at each place."""
    packs = [pack_of("a", "x"), pack_of("a", "y", "a", "z", "a"), pack_of("a")]
    with index_in(tmp_path) as index:
        for pack in packs:
            index.add_packs([pack])
        index.add_packs(packs, shard_id="the shard of all")
        found = index.find_all([chunk("a"), chunk("y"), chunk("none")])
        lies = {index.segment(Run(place, 1, 7))[:2] for place in found[chunk("a")]}
        assert len(found[chunk("a")]) == len(lies)
        assert lies == {
            (packs[0].pack_id, 0),
            *((packs[1].pack_id, n) for n in (0, 2, 4)),
            (packs[2].pack_id, 0),
        }
        assert found[chunk("y")] == {index.find([chunk("y")])[chunk("y")]}
        assert chunk("none") not in found


def test_a_chunk_that_is_stored_again_is_found_in_the_newer_pack(tmp_path: Path) -> None:
    """The newer copy lies in the longer run, so it is the one to reuse."""
    old, new = pack_of("a", "x"), pack_of("y", "a")
    with index_in(tmp_path) as index:
        index.add_packs([old])
        index.add_packs([new])
        assert segment_of(index, "a") == Segment(new.pack_id, 1, 1, 7)


def test_packs_of_one_number_are_not_mixed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two packs whose ids give one number, the chunks of the second stay unknown."""
    monkeypatch.setattr(push_index, "pack_number", lambda _: 5)
    with index_in(tmp_path) as index:
        index.add_packs([pack_of("a"), pack_of("b")])
        assert set(index.find([chunk("a"), chunk("b")])) == {chunk("a")}


def test_packs_are_unpublished_until_a_shard_lists_them(tmp_path: Path) -> None:
    """Own packs are listed with their chunks until a shard has them; those from shards never."""
    own, other = pack_of("a", "b"), pack_of("c")
    with index_in(tmp_path) as index:
        index.add_packs([own])
        index.add_packs([other], shard_id="theirs")
        assert index.unpublished() == [own]
        index.published("ours", [own])
        assert index.unpublished() == []


def test_shards_are_learned_once(tmp_path: Path) -> None:
    """Shards of other machines are read once each; a spoiled one is left out and logged."""
    objects = MemoryObjects()
    first, second = pack_of("a"), pack_of("b")
    objects.put(keys.shard("1"), [encode_shard([first])])
    objects.put(keys.shard("2"), [encode_shard([pack_of("x")])[:-1]])
    with index_in(tmp_path) as index:
        index.load_shards(objects)
        assert segment_of(index, "a").pack == first.pack_id
        assert index.find([chunk("x")]) == {}
        objects.put(keys.shard("3"), [encode_shard([second])])
        del objects.objects[keys.shard("1")]
        objects.put(keys.shard("1"), [b"never read again"])
        index.load_shards(objects)
        assert segment_of(index, "b").pack == second.pack_id
        assert index.unpublished() == []


@given(size_bytes=st.integers(0, 2**62), places=st.lists(segments, max_size=3))
def test_tree_places_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    size_bytes: int,
    places: list[tuple[Segment, ...]],
) -> None:
    """Size and segments of a tree come back as they were."""
    rows = [(digest_of(bytes([n])), TreePlace(size_bytes, p)) for n, p in enumerate(places)]
    with index_in(tmp_path_factory.mktemp("index")) as index:
        index.add_trees(rows)
        assert index.find_trees([*(row[0] for row in rows), b"x" * 32]) == dict(rows)


def test_directories_are_asked_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States come by ascending keys, unknown keys have none, and what was passed over is gone."""
    monkeypatch.setattr(stat_cache, "ROWS_AHEAD", 3)
    rows = [remembered(b"%02d" % n) for n in range(20)]
    with index_in(tmp_path) as index:
        StatCache.of(index, b"/one").remember(rows)
        StatCache.of(index, b"/other").remember([remembered(b"04x")])
        memory = StatCache.of(index, b"/one")
        asked = [b"00", b"01", b"03", b"03x", b"10", b"12", b"15"]
        states = [memory.state(key) for key in asked]
        assert [state is not None for state in states] == [key != b"03x" for key in asked]
        assert states[4] == rows[10].state
        assert memory.details(b"10") == rows[10].details
        memory.forget_gone()
        left = [row.key for row in rows if StatCache.of(index, b"/one").lookup(row.key) is not None]
        assert left == [key for key in asked if key != b"03x"]
        assert StatCache.of(index, b"/one").details(b"02") is None
        assert StatCache.of(index, b"/other").lookup(b"04x") is not None


def test_a_key_of_a_wrong_type_is_a_broken_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit in SQLite's own headers can make NULL of a key: that is reported as damage."""
    with index_in(tmp_path) as index:
        monkeypatch.setattr(index, "select", lambda *_: [(None, b"state")])
        memory = StatCache(index, 1)
        with pytest.raises(IndexBroken, match="key is damaged"):
            memory.state(b"key")


def test_an_untrusted_signature_equals_none(tmp_path: Path) -> None:
    """A directory remembered without a signature looks changed next time."""
    with index_in(tmp_path) as index:
        StatCache.of(index, b"/").remember([remembered(b"", signature=b"")])
        state = StatCache.of(index, b"/").state(b"")
        assert state is not None
        assert state.signature == bytes(16)


def test_two_processes_use_one_index(tmp_path: Path) -> None:
    """What one connection wrote the other sees, and both may write in turn."""
    with index_in(tmp_path) as one, index_in(tmp_path) as other:
        one.add_packs([pack_of("a")])
        other.add_packs([pack_of("b")])
        StatCache.of(one, b"/x").remember([remembered(b"")])
        assert segment_of(one, "b") and segment_of(other, "b")
        assert StatCache.of(other, b"/x").state(b"") is not None


def test_a_lock_that_is_held_for_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that finds the file locked gives up after a bounded time and says why."""
    monkeypatch.setattr(push_index, "LOCK_TIMEOUT_S", 0.0)
    with index_in(tmp_path) as index, closing(sqlite3.connect(index.path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InUse, match="locked by another push"):
            index.add_packs([pack_of("a")])
        other.execute("ROLLBACK")
        index.add_packs([pack_of("a")])


@pytest.mark.parametrize("content", [b"not a database" * 1000, b"SQLite format 3\0" + bytes(5000)])
def test_a_broken_file_is_put_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is no index is told as such, kept under another name, and a new one works."""
    (tmp_path / f"{STORE}.sqlite").write_bytes(content)
    with pytest.raises(IndexBroken) as broken:
        PushIndex(tmp_path, STORE)
    with caplog.at_level(logging.WARNING):
        PushIndex.set_aside(tmp_path, STORE, broken.value)
    assert f"{broken.value}. It was moved to {tmp_path / STORE}.broken" in caplog.text
    assert (tmp_path / f"{STORE}.broken").read_bytes() == content
    with index_in(tmp_path) as index:
        index.add_packs([pack_of("a")])


@pytest.mark.parametrize("version", [2, 99])
def test_an_index_of_another_format_is_not_used(tmp_path: Path, version: int) -> None:
    """An index of a format that this version does not know counts as broken."""
    with index_in(tmp_path) as index, closing(sqlite3.connect(index.path)) as other:
        other.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(IndexBroken, match=f"format {version}"):
        PushIndex(tmp_path, STORE)


def test_lost_packs_are_forgotten_with_all_that_names_them(tmp_path: Path) -> None:
    """Their chunks go, directories whose files lie in them, of all sources, and all trees; chunks
    and directories of other packs stay."""
    lost, kept = pack_of("a", "b"), pack_of("c")

    def in_pack(key: bytes, pack: PackId) -> DirectoryRow:
        segment = Segment(pack, 0, 1, 1)
        entry = TreeEntry(b"f", Kind.FILE, False, 1, digest_of(b"f"), (segment,))
        return remembered(key, files=encode_tree([entry]))

    with index_in(tmp_path) as index:
        index.add_packs([lost, kept])
        index.add_trees([(b"d" * 32, TreePlace(7, (Segment(kept.pack_id, 0, 1, 7),)))])
        for source in (b"/x", b"/y"):
            rows = [in_pack(b"lost", lost.pack_id), in_pack(b"kept", kept.pack_id)]
            StatCache.of(index, source).remember(rows)
        index.forget_packs({lost.pack_id})
        forget_files_in(index, {lost.pack_id})
    with index_in(tmp_path) as index:
        assert set(index.find([chunk("a"), chunk("b"), chunk("c")])) == {chunk("c")}
        assert [pack.pack_id for pack in index.unpublished()] == [kept.pack_id]
        assert index.find_trees([b"d" * 32]) == {}
        for source in (b"/x", b"/y"):
            assert StatCache.of(index, source).lookup(b"lost") is None
            assert StatCache.of(index, source).lookup(b"kept") is not None


def test_stores_do_not_share_an_index(tmp_path: Path) -> None:
    """The index of one store says nothing about another one in the same directory."""
    with index_in(tmp_path) as index:
        index.add_packs([pack_of("a")])
    with closing(PushIndex(tmp_path, "1" * 32)) as other:
        assert other.find([chunk("a")]) == {}


@pytest.mark.slow
def test_flipped_bits_are_noticed(tmp_path: Path) -> None:
    """Whatever byte of the file is wrong: answers are right, missing, or IndexBroken."""
    names = [str(n) for n in range(60)]
    packs = [pack_of(*names[n : n + 20]) for n in (0, 20, 40)]
    tree = (digest_of(b"tree"), TreePlace(9, (Segment(PackId(b"p" * 32), 1, 2, 9),)))
    row = remembered(b"key", files=b"f" * 300)
    with index_in(tmp_path) as index:
        index.add_packs(packs)
        index.add_trees([tree])
        StatCache.of(index, b"/x").remember([row])
        right = {name: segment_of(index, name) for name in names}
    path = tmp_path / f"{STORE}.sqlite"
    good = path.read_bytes()
    assert len(good) > 10_000
    noticed = 0
    for position in Random(3).sample(range(len(good)), 300):
        for stale in tmp_path.iterdir():
            stale.unlink()
        spoiled = bytearray(good)
        spoiled[position] ^= 1 << position % 8
        path.write_bytes(spoiled)
        try:
            with index_in(tmp_path) as index:
                check(index, right, tree, row)
        except IndexBroken:
            noticed += 1
    assert noticed > 10


def check(
    index: PushIndex,
    right: dict[str, Segment],
    tree: tuple[bytes, TreePlace],
    row: DirectoryRow,
) -> None:
    """Every answer is the right one or none."""
    found = index.find([chunk(name) for name in right])
    for name, segment in right.items():
        if chunk(name) in found:
            assert index.segment(Run(found[chunk(name)], 1, 7)) == segment
    assert index.find_trees([tree[0]]).get(tree[0], tree[1]) == tree[1]
    memory: StatCache = StatCache.of(index, b"/x")
    assert memory.state(row.key) in (None, row.state)
    assert memory.details(row.key) in (None, row.details)
    for pack in index.unpublished():
        assert pack_id_of_columns(pack.ids, pack.raw_sizes) == pack.pack_id


def test_the_index_is_private(tmp_path: Path) -> None:
    """The directory is made when it is missing, for its user only: names are in there."""
    with index_in(tmp_path / "a" / "b"):
        assert os.stat(tmp_path / "a" / "b").st_mode & 0o777 == 0o700


@pytest.mark.parametrize("keys", [[b"b", b"a"], [b"a", b"a"], [b"a", "b"]])
def test_rows_out_of_order_end_a_scan(keys: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged table may give the same rows for ever: that is a broken index, and no endless
    push."""
    index = PushIndex.__new__(PushIndex)
    index.path = Path("index.sqlite")
    monkeypatch.setattr(index, "select", lambda *_: [(key, b"") for key in keys])
    with pytest.raises(IndexBroken):
        StatCache(index, 1).state(b"z")
    with pytest.raises(IndexBroken):
        StatCache(index, 1).forget_gone()


class Slow(MemoryObjects):
    """A store of whose every read another push makes use."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.meanwhile()
        return super().get(key, offset=offset, size=size, if_match=if_match)


def test_a_large_shard_is_read_before_the_index_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a shard comes from a slow store, in many reads, another push may write."""
    monkeypatch.setattr(push_index, "LOCK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(shard_reader.read_shard, "__defaults__", (1000,))
    packs = [pack_of(*(f"{pack} {n}" for n in range(50))) for pack in range(50)]

    def write() -> None:
        with index_in(tmp_path) as other:
            other.add_packs([])  # InUse if the lock is held

    with index_in(tmp_path) as index:
        store = Slow(write)
        store.put("index/large", [encode_shard(packs)])
        index.load_shards(store, threads=1)
        assert index.find([packs[0].ids[:32]])

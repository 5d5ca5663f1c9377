"""Bundles: what goes in comes out, and what is damaged, cut off or does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import (
    Conflict,
    Corrupt,
    Diverged,
    InvalidInput,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.bundle import COMMIT, PACK, BundleHead
from lodefs.chunkstore.format.commit import encode_commit
from lodefs.chunkstore.format.journal import DeletionOutcome, RefName
from lodefs.chunkstore.format.names import ID_BYTES, CommitId, PackId
from lodefs.chunkstore.format.pack import DROPPED, PackIndex
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.ref_write import Collected
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.transfer.bundle import Unpacked, create_bundle, standing, unpack_bundle
from lodefs.chunkstore.transfer.bundle_file import BundleReader, BundleWriter, check_bundle
from lodefs.chunkstore.transfer.import_session import ImportSession
from tests.support.chunkstore.directories import in_commit
from tests.support.chunkstore.handmade import Handmade, memory_store
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

FILES = {b"a": b"a" * 9000, b"d/b": bytes(range(256)) * 20}
MORE = {**FILES, b"d/c": b"c" * 7000}


class Source:
    """A store with two commits, the first of them tagged."""

    def __init__(self) -> None:
        self.made = Handmade(memory_store())
        self.store = self.made.store
        self.first = self.made.commit("r", FILES)
        self.store.refs("r").advance(TAGS, "v1", self.first, expected_sequence=None)
        self.second = self.made.commit("r", MORE)

    def bundle(self, rev: str = "main", since: str | None = None, repo: str = "r") -> bytes:
        file = BytesIO()
        create_bundle(self.store, repo, rev, since, file, clock=lambda: 0.0)
        return file.getvalue()


@pytest.fixture
def source() -> Source:
    return Source()


def unpacked(data: bytes, store: Store) -> Unpacked:
    reader = BundleReader(BytesIO(data), "it")
    return unpack_bundle(reader, store, standing(reader, store))


def at(store: Store, name: str = "main", kind: str = BRANCHES) -> CommitId | None:
    entry = store.refs("r").latest(kind, name)
    return None if entry is None else entry.commit


def remade(
    data: bytes,
    change: Callable[[BundleHead], BundleHead],
    *,
    first: bytes | None = None,
    leave_out: int | None = None,
) -> bytes:
    """A bundle with another head and a good checksum, ``first`` a commit more at its beginning,
    without records of a kind."""
    reader, file = BundleReader(BytesIO(data), "it"), BytesIO()
    writer = BundleWriter(file, change(reader.head))
    if first is not None:
        writer.add(COMMIT, first)
    for record in reader.records():
        if record.kind != leave_out:
            writer.add(record.kind, record.data)
    writer.end()
    return file.getvalue()


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_history_and_ids_come_through(source: Source) -> None:
    """What is unpacked into an empty store is what was bundled, by every id and byte; unpacked
    again it changes nothing; a bundle of one store is the same each time."""
    store, data = memory_store(), source.bundle()
    assert data == source.bundle()
    done = unpacked(data, store)
    assert (done.before, at(store), done.packs_there) == (None, source.second, 0)
    assert verify(store, data=True).problems == []
    for commit in (source.first, source.second):
        assert in_commit(store, "r", commit.hex()) == in_commit(source.store, "r", commit.hex())
    again = unpacked(data, store)
    assert (again.before, again.packs, again.packs_there) == (source.second, 0, done.packs)


def test_since(source: Source) -> None:
    """A bundle since a revision has the new alone, and fits where that is, also on a branch of
    another name; elsewhere it is refused with what is missing."""
    whole, part = source.bundle(), source.bundle(since="v1")
    assert len(part) < len(whole)
    with pytest.raises(NotFound, match=f"builds on commit {source.first.hex()[:12]}"):
        unpacked(part, memory_store())
    store = memory_store()
    unpacked(source.bundle("v1"), store)
    assert (at(store, "v1", TAGS), at(store)) == (source.first, None)
    unpacked(part, store)
    assert at(store) == source.second
    assert verify(store, data=True).problems == []
    for since in ("main", "dev"):
        with pytest.raises((InvalidInput, NotFound), match=since):
            source.bundle("main", since)


def packs_in(data: bytes) -> set[bytes]:
    records = BundleReader(BytesIO(data), "it").records()
    return {bytes(record.data[:ID_BYTES]) for record in records if record.kind == PACK}


def test_since_leaves_out_what_lies_beside_the_new(source: Source) -> None:
    """Of a directory with a new file, of one that was renamed and of one that was copied, a bundle
    since a revision has no pack that this names; and it is whole where the revision is."""
    old = packs_in(source.bundle("v1"))
    moved = {b"e/" + path: content for path, content in FILES.items()}
    source.made.commit("r", {**MORE, **moved, b"d/small": b"2"})
    part = source.bundle(since="v1")
    assert packs_in(part)
    assert not packs_in(part) & old
    store = memory_store()
    unpacked(source.bundle("v1"), store)
    unpacked(part, store)
    assert verify(store, data=True).problems == []


def test_since_brings_packs_of_which_the_revision_names_other_chunks(source: Source) -> None:
    """A pack comes again if a new file needs chunks of it that the revision does not name: a store
    may have the revision and no more of that pack."""
    both = {b"1": b"1" * 900, b"2": b"2" * 900}
    source.made.commit("s", both)
    one = source.made.commit("s", {b"1": both[b"1"]})
    two = source.made.commit("s", both)
    needed = {segment.pack for segment in source.made.entry(b"2", both[b"2"]).segments}
    assert needed <= packs_in(source.bundle(since=one.hex(), repo="s"))
    source.made.commit("s", {b"other/1": both[b"1"], **both})
    assert not needed & packs_in(source.bundle(since=two.hex(), repo="s"))


def test_a_base_that_has_lost_something_is_refused(source: Source) -> None:
    """Where the store has lost a pack of what a bundle builds on, and this does not bring it, the
    pack and the base are named, and the branch stays."""
    store = memory_store()
    unpacked(source.bundle("v1"), store)
    (segment, *_) = source.made.entry(b"b", FILES[b"d/b"]).segments
    store.objects.delete(keys.pack(segment.pack))
    part = source.bundle(since="v1")
    said = f"{keys.pack(segment.pack)}, which .* lacks it, too: .* may be damaged"
    with pytest.raises(Corrupt, match=said):
        unpacked(part, store)
    assert at(store) is None


def test_a_ref_that_a_bundle_makes_is_never_elsewhere(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new tag from a bundle since a revision exists only once it is where it belongs: not
    beside its packs, not after a crash, and not of a bundle that lacks something."""
    store = memory_store()
    unpacked(source.bundle("v1"), store)
    source.store.refs("r").advance(TAGS, "v2", source.second, expected_sequence=None)
    data = source.bundle("v2", since="v1")
    with pytest.raises(Corrupt, match="is incomplete"):
        unpacked(remade(data, lambda head: head, leave_out=PACK), store)
    assert store.refs("r").latest(TAGS, "v2") is None
    with monkeypatch.context() as patch:
        patch.setattr(ImportSession, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            unpacked(data, store)
    assert store.refs("r").latest(TAGS, "v2") is None
    unpacked(data, store)
    assert at(store, "v2", TAGS) == source.second
    assert verify(store, data=True).problems == []


def test_a_bundle_saves_what_it_builds_on(source: Source) -> None:
    """A commit that a bundle builds on, and that no ref leads to, is saved from a gc run that
    has tombstoned it, also where the branch is at another parent of what comes."""
    aside = source.made.commit("r", {b"b": b"b" * 3000}, branch="aside")
    parents = (source.second, aside)
    commit = replace(source.store.commit("r", source.second), parents=parents)
    merged = source.store.put_commit("r", commit)
    source.store.refs("r").advance(BRANCHES, "main", merged, expected_sequence=1)
    store = memory_store()
    for rev in ("aside", "v1"):
        unpacked(source.bundle(rev), store)
    for kind, name, start in ((BRANCHES, "aside", None), (BRANCHES, "main", source.first)):
        store.refs("r").advance(kind, name, start, expected_sequence=0 if start is None else None)
    assert collect(store, CollectOptions(clock=lambda: 0)).tombstoned.commits == 1
    unpacked(source.bundle(since="aside"), store)
    journal = StoreJournal(store.objects)
    newest = journal.newest()
    assert newest is not None
    assert newest.previous is not None
    assert journal.outcome(newest.previous) == DeletionOutcome(newest.previous, None)
    assert verify(store, data=True).problems == []


def test_a_bundle_that_lies_about_its_history(source: Source) -> None:
    """A bundle moves a branch only to what comes after it, whatever its head says; one that lists
    commits that its ref does not lead to is refused."""
    store = memory_store()
    unpacked(source.bundle(), store)
    evil = Handmade(memory_store())
    other = evil.commit("r", {b"evil": b"e" * 3000})
    file = BytesIO()
    create_bundle(evil.store, "r", "main", None, file)
    data = file.getvalue()
    with pytest.raises(Corrupt, match=f"does not come after {source.second.hex()[:12]}"):
        unpacked(remade(data, lambda head: replace(head, since=source.second)), store)
    ids, commit = (source.second, other), encode_commit(source.store.commit("r", source.second))
    with pytest.raises(Corrupt, match=f"does not come after {source.second.hex()[:12]}"):
        unpacked(remade(data, lambda head: replace(head, commits=ids), first=commit), store)
    assert at(store) == source.second


def test_history_that_has_expired(source: Source) -> None:
    """A commit that a retention has deleted is left out, and known to have expired there too."""
    source.store.objects.delete(keys.commit("r", source.first))
    with pytest.raises(NotFound):
        source.bundle()
    source.store.put_expired("r", source.first, 0)
    store = memory_store()
    done = unpacked(source.bundle(), store)
    assert (done.head.commits, done.head.expired) == ((source.second,), (source.first,))
    assert store.has_expired("r", source.first)
    assert verify(store, data=True).problems == []


def test_history_that_has_expired_since(source: Source) -> None:
    """Where the branch stands right before what was left of its history, a bundle of that fits;
    where what lies between has expired, it does not, and that is said."""
    older, old = memory_store(), memory_store()
    for store in (older, old):
        unpacked(source.bundle("v1"), store)
        unpacked(source.bundle("main") if store is old else source.bundle("v1"), store)
    older.refs("r").advance(BRANCHES, "main", source.first, expected_sequence=None)
    third = source.made.commit("r", FILES)
    for gone in (source.first, source.second):
        source.store.put_expired("r", gone, 0)
        source.store.objects.delete(keys.commit("r", gone))
    data = source.bundle()
    unpacked(data, old)
    assert at(old) == third
    assert old.has_commit("r", source.second)
    assert not old.has_expired("r", source.second)
    assert verify(old, data=True).problems == []
    with pytest.raises(Diverged, match="had expired when it was made"):
        unpacked(data, older)
    assert at(older) == source.first


def test_a_pack_that_is_there_in_part(source: Source) -> None:
    """A pack that the store has without some of its chunks gets those that the bundle has."""
    store = memory_store()
    for record in BundleReader(BytesIO(source.bundle()), "it").records():
        if record.kind == PACK:
            pack_id = PackId(bytes(record.data[:ID_BYTES]))
            index = PackIndex.decode(pack_id, record.data)
            left = record.data[ID_BYTES + index.offsets[1] : ID_BYTES + index.offsets[-1]]
            store.objects.put(keys.pack(pack_id), [left, index.without(1, DROPPED).encode()])
    done = unpacked(source.bundle(), store)
    assert (at(store), done.packs_there) == (source.second, 0)
    assert verify(store, data=True).problems == []


def test_a_pack_that_was_compacted(source: Source) -> None:
    """A pack of which a gc run has dropped chunks gets none of them back, and needs none: what
    is unpacked beside it is whole."""
    source.made.commit("s", {b"1": b"1" * 900, b"2": b"2" * 900}, branch="both")
    for n in range(2):
        source.made.commit("s", {b"1": b"1" * 900, b"n": b"%d" % n})
    store = memory_store()
    unpacked(source.bundle(repo="s"), store)
    for day in range(3):
        clock = lambda: 1.8e9 + day * 2 * 86_400  # noqa: B023, E731
        collect(store, CollectOptions(clock=clock, min_used=1.0))
    packs = {info.key: info.size_bytes for info in store.objects.list(keys.PACKS)}
    source.made.commit("s", {b"1": b"1" * 900, b"new": b"new"})
    done = unpacked(source.bundle(repo="s"), store)
    assert done.packs == 2  # of the new commit
    assert packs.items() < {i.key: i.size_bytes for i in store.objects.list(keys.PACKS)}.items()
    assert verify(store, data=True).problems == []
    with pytest.raises(Collected):
        unpacked(source.bundle("both", repo="s"), store)
    assert verify(store, data=True).problems == []


@pytest.mark.parametrize("is_new", [True, False])
def test_a_bundle_that_lies_about_what_has_expired(source: Source, *, is_new: bool) -> None:
    """It says so of what its own commits come after, and of nothing else in the store."""
    other = CommitId(b"\1" * 32) if is_new else source.first
    store, data = memory_store(), source.bundle()
    with pytest.raises(Corrupt, match=f"{other.hex()[:12]}, which it calls expired"):
        unpacked(remade(data, lambda head: replace(head, expired=(other,))), store)
    assert not store.has_expired("r", other)
    assert at(store) is None


def test_older_bundles_after_newer_ones(source: Source) -> None:
    """A branch never goes back, or aside; a tag does not move."""
    old = source.bundle("v1")
    store = memory_store()
    unpacked(source.bundle(), store)
    Handmade(store).commit("r", {b"other": b"o" * 2000})
    with pytest.raises(Diverged, match="branch main of r is at"):
        unpacked(source.bundle(), store)
    store.refs("r").advance(TAGS, "v1", source.second, expected_sequence=None)
    with pytest.raises(Diverged, match="tag v1 of r is at"):
        unpacked(old, store)


def test_damage_anywhere_is_seen(source: Source) -> None:
    """A bundle with a flipped bit, cut off, or with something behind its end, is refused before its
    end at the latest."""
    data = source.bundle()
    assert check_bundle(BytesIO(data), "it").head.commit == source.second
    places = [*range(80), *range(80, len(data), 61), *range(len(data) - 45, len(data))]
    for place in places:
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        with pytest.raises((Corrupt, UnknownFormat)):
            check_bundle(BytesIO(flipped), "it")
        with pytest.raises(Corrupt, match="it is truncated"):
            check_bundle(BytesIO(data[:place]), "it")
    with pytest.raises(Corrupt, match="after its end"):
        check_bundle(BytesIO(data + b"x"), "it")


def test_damage_in_a_stream_moves_no_ref(source: Source) -> None:
    """Damage that is met while a bundle is unpacked ends it without a ref or commit."""
    data = source.bundle()
    for place in range(0, len(data), len(data) // 23):
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        for bad in (flipped, data[:place]):
            store = memory_store()
            with pytest.raises((Corrupt, UnknownFormat)):
                unpacked(bad, store)
            assert next(iter(store.objects.list(keys.REPOS)), None) is None


def test_a_bundle_that_lacks_something(source: Source) -> None:
    """A bundle with a good checksum that lacks a pack, as nobody's bundle should, is refused."""
    reader = BundleReader(BytesIO(source.bundle()), "it")
    records = list(reader.records())
    for left_out in range(len(records)):
        file = BytesIO()
        writer = BundleWriter(file, reader.head)
        for number, record in enumerate(records):
            if number != left_out:
                writer.add(record.kind, record.data)
        writer.end()
        store = memory_store()
        what = "is incomplete" if records[left_out].kind == PACK else "does not hold the commits"
        with pytest.raises(Corrupt, match=what):
            unpacked(file.getvalue(), store)
        assert at(store) is None


def test_a_store_that_has_dropped_trees_of_a_bundle(tmp_path: Path) -> None:
    """The bundle is whole, and is not called otherwise: the store does not take its ids again."""
    with one_at_a_time():
        world = World(tmp_path)
        full = world.source("full", top=b"t" * 5000)
        for name in ("a", "b"):
            world.source(f"full/{name}", file=name.encode() * 5000)
        world.push(full, "full")
        out = BytesIO()
        create_bundle(world.store, REPO, "full", None, out)
        world.push(full / "a", "part")
        world.delete("full")
        for _ in range(3):
            world.collect(min_used=1.0)
            world.hours += 25
        with pytest.raises(Collected):
            unpacked(out.getvalue(), world.store)


def test_a_branch_that_moves_while_a_bundle_is_looked_at(source: Source) -> None:
    """It moves from where somebody has seen it, and from nowhere else."""
    here = memory_store()
    unpacked(source.bundle("v1"), here)
    start = RefName("r", BRANCHES, "main")
    point_ref(here, start, source.first, expected_sequence=None)
    reader = BundleReader(BytesIO(source.bundle()), "it")
    seen = standing(reader, here)
    unpacked(source.bundle(), here)
    with pytest.raises(Conflict):
        unpack_bundle(reader, here, seen)

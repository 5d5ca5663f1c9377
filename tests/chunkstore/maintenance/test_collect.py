"""A gc run: what it deletes and says, and what stops it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Corrupt, Denied, InvalidInput, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.journal.named_packs import add_named
from lodefs.chunkstore.maintenance import mark
from lodefs.chunkstore.maintenance.collect import Amount
from lodefs.chunkstore.repo.checks.verify import verify
from tests.support.chunkstore.directories import in_commit, in_directory
from tests.support.chunkstore.faulty_store import fail
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import HOUR_S, REPO, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two branches, which share a file."""
    with one_at_a_time():
        world = World(tmp_path)
        world.push(world.source("kept", a=b"a" * 9000, same=b"s" * 5000), "main")
        world.push(world.source("gone", b=b"b" * 7000, same=b"s" * 5000), "dev", "two")
        yield world


def test_garbage_goes_in_two_steps(world: World) -> None:
    """What a deleted branch alone led to is tombstoned by the next gc run, and deleted by one
    after the grace time; all else stays, and the figures say so."""
    assert world.collect().garbage == Amount()
    before = dict(world.memory.objects)
    world.delete("dev")
    first = world.collect()
    assert first.tombstoned == first.garbage == Amount(2, 1, first.garbage.size_bytes)
    assert (first.deleted, first.ripe_at_s) == (Amount(), int(world.clock()) + 24 * HOUR_S)
    assert set(before) <= set(world.memory.objects)
    world.hours += 23
    early = world.collect()
    assert (early.waiting, early.deleted, early.tombstoned) == (
        first.tombstoned,
        Amount(),
        Amount(),
    )
    world.hours += 2
    second = world.collect()
    assert (second.deleted, second.tombstoned, second.waiting) == (
        first.tombstoned,
        Amount(),
        Amount(),
    )
    assert world.garbage() == set()
    assert verify(world.store, data=True).problems == []
    assert world.collect().garbage == Amount()


def test_shards_name_no_pack_that_is_gone(world: World) -> None:
    """Index shards are rewritten without the packs that were deleted, and machines that knew them
    push on as before."""
    world.delete("dev")
    world.collect_all()
    assert verify(world.store).problems == []
    again = world.push(world.source("kept", c=b"c" * 100), "main", "two")
    assert (again.lost_packs, again.new_bytes) == (0, 100)


def test_a_clock_that_is_far_ahead_holds_nothing_up(world: World) -> None:
    """What it tombstoned is deleted a grace time after a sane collection has seen it, and so is
    what was tombstoned later."""
    world.delete("dev")
    world.hours += 24 * 365 * 10
    assert world.collect().tombstoned.packs == 2
    world.hours -= 24 * 365 * 10
    world.push(world.source("late", x=b"x" * 9000), "late")
    world.delete("late")
    seen = world.collect()
    assert (seen.deleted.packs, seen.waiting.packs) == (0, 2)
    assert seen.ripe_at_s == world.clock() + 24 * 3600
    world.hours += 23
    assert world.collect().deleted.packs == 0
    world.hours += 2
    assert world.collect().deleted.packs > 2
    assert world.garbage() == set()
    assert verify(world.store, data=True).problems == []


def test_a_dry_run_changes_nothing(world: World) -> None:
    """It tells what would be tombstoned and deleted, and writes nothing."""
    world.delete("dev")
    before = dict(world.memory.objects)
    assert world.collect(dry_run=True).tombstoned.packs == 2
    assert world.memory.objects == before
    world.collect()
    world.hours += 25
    before = dict(world.memory.objects)
    assert world.collect(dry_run=True).deleted.packs == 2
    assert world.memory.objects == before


def test_a_directory_that_was_met_is_not_named_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a directory that many commits share needs is added up once."""
    named: list[bytes] = []

    def add(found: dict[PackId, int], entries: Iterable[TreeEntry]) -> None:
        some = list(entries)
        named.extend(entry.name for entry in some)
        add_named(found, some)

    (tmp_path / "changing" / "shared").mkdir(parents=True)
    (tmp_path / "changing" / "shared" / "file").write_bytes(b"f")
    for number in range(3):
        (tmp_path / "changing" / "number").write_text(str(number))
        world.push(tmp_path / "changing", "main", "three")
    monkeypatch.setattr(mark, "add_named", add)
    world.collect()
    assert [named.count(name) for name in (b"number", b"shared", b"file")] == [3, 1, 1]


def test_refused_deletes(world: World) -> None:
    """A store that refuses deletes half way: the error says how many; the repetition ends it."""
    world.delete("dev")
    world.collect()
    world.hours += 25
    world.objects.add(fail(Denied("no deletes")), "delete", keys.PACKS, first=2)
    with pytest.raises(Denied) as error:
        world.collect()
    assert "1 of 2 deletes failed" in error.value.__notes__[0]
    world.objects.rules.clear()
    assert world.collect().deleted.packs == 2
    assert world.garbage() == set()


@pytest.mark.parametrize("what", ["tree", "commit"])
def test_damage_stops_it(world: World, what: str) -> None:
    """Where a ref leads to something that cannot be read, nothing is tombstoned or deleted: what it
    needs is not known. The error names the commit."""
    world.delete("dev")
    world.collect()
    world.hours += 25
    head = world.store.refs(REPO).read("branches", "main").commit
    assert head is not None
    root = world.store.commit(REPO, head).root
    key = keys.commit(REPO, head) if what == "commit" else keys.pack(root.segments[0].pack)
    data = world.memory.objects.pop(key)
    packs = world.packs()
    with pytest.raises(Corrupt, match=head.hex()[:12]):
        world.collect()
    assert world.packs() == packs
    world.memory.objects[key] = data
    assert world.collect().deleted.packs == 2


def test_a_store_that_is_gone(world: World) -> None:
    """A store that is not there as a whole is told as such: nothing in it is garbage."""
    store = world.store
    world.memory.objects.clear()
    with pytest.raises(Unavailable):
        world.collect(store=store)


def test_nonsense(world: World) -> None:
    """A grace time below 0 is refused."""
    with pytest.raises(InvalidInput):
        world.collect(grace_s=-1)


def test_a_push_of_a_branch_that_was_collected(world: World, tmp_path: Path) -> None:
    """A machine whose index knows what is gone stores it again, and its commit is whole."""
    world.delete("dev")
    world.collect_all()
    result = world.push(tmp_path / "gone", "dev", "two")
    assert result.lost_packs > 0
    assert in_commit(world.store, REPO, result.commit) == in_directory(tmp_path / "gone")
    assert verify(world.store, data=True).problems == []
    assert world.push(tmp_path / "gone", "dev", "two").unchanged


def test_collected_content_is_sent_once_by_a_new_machine(world: World, tmp_path: Path) -> None:
    """A machine that knows nothing of the gc run learns it before its first pack, so what was
    deleted is stored under another id at once."""
    first = world.packs()
    world.push(world.source("gone", b=b"B" * 7000), "dev")
    gone = world.packs() - first
    world.delete("dev")
    world.collect_all()
    assert not gone & world.packs()
    world.objects.forget()
    world.push(world.source("gone", b=b"B" * 7000), "dev", "fresh")
    assert world.objects.count("put", keys.PACKS) == len(gone)
    assert not gone & world.packs()
    world.needs.check("at the end")


def test_a_store_of_before(world: World, tmp_path: Path) -> None:
    """A machine that has seen a gc run which the store knows nothing of (it was restored from a
    backup) takes a new index."""
    backup = dict(world.memory.objects)
    world.delete("dev")
    world.collect_all()
    world.push(world.source("gone", b=b"B" * 7000), "dev", "two")
    world.memory.objects.clear()
    world.memory.objects.update(backup)
    result = world.push(world.source("gone", b=b"C" * 7000), "dev", "two")
    assert in_commit(world.store, REPO, result.commit) == in_directory(tmp_path / "gone")
    assert verify(world.store, data=True).problems == []


def test_what_nobody_wrote_is_left_alone(world: World) -> None:
    """Objects among packs and commits that have no such names are not touched."""
    others = ["packs/ab/readme", f"packs/zz/{'a' * 64}", f"{keys.REPOS}x/commits/y", "elsewhere/z"]
    for key in others:
        world.memory.put(key, [b"mine"])
    world.collect_all()
    assert all(key in world.memory.objects for key in others)


def test_a_repository_of_commits_alone(world: World) -> None:
    """Commits of pushes that never made a ref are found, whatever their repository."""
    head = world.store.refs(REPO).read("branches", "main").commit
    assert head is not None
    lone = world.store.put_commit("lone/one", world.store.commit(REPO, CommitId(head)))
    world.collect_all()
    assert keys.commit("lone/one", lone) not in world.memory.objects
    world.needs.check("at the end")


def test_requests_of_a_push(world: World) -> None:
    """A push asks the store four times more than without the journal: a list, a get, two puts; once
    more for each pack's index and tree that it has written, where something was ever tombstoned."""
    world.push(world.source("kept", more=b"1"), "main")
    world.objects.calls.clear()
    world.push(world.source("kept", more=b"2"), "main")
    calls = [call.operation for call in world.objects.calls if call.key.startswith("journal/")]
    assert calls == ["list", "get", "put", "put"]

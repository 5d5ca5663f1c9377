"""Gc runs and retention policies: history expires, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Conflict, Corrupt, Expired
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.push.changes.change import Put
from lodefs.chunkstore.push.changes.merge_branch import merge_branch
from lodefs.chunkstore.push.push import PushOptions
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.history import blame, log
from lodefs.chunkstore.repo.store import open_store
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World, finish, go_on_to


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A branch of five commits, an hour apart."""
    with one_at_a_time():
        world = World(tmp_path)
        for n in range(5):
            world.hours += 1
            world.push(world.source("data", a=bytes([n]) * 9000, same=b"s" * 5000))
        yield world


def _set(world: World, policy: Retention | None) -> None:
    world.store.settings_log(REPO).change(
        lambda now: replace(now, retention=policy, may_lack_history=True)
    )


def _history(world: World) -> list[CommitId]:
    return [commit_id for commit_id, _ in log(world.store, REPO, "main")]


def test_history_expires(world: World) -> None:
    """Two gc runs delete what the policy does not keep; log and verify take the rest for whole,
    and what is gone is told by its name."""
    all_of_it = _history(world)
    _set(world, Retention(keep_last=2))
    assert world.collect(dry_run=True).expired_commits == 3
    first = world.collect()
    assert (first.tombstoned.commits, first.expired_commits) == (3, 3)
    assert _history(world) == all_of_it
    world.hours += 25
    assert world.collect().deleted.commits == 3
    assert _history(world) == all_of_it[:2]
    assert world.garbage() == set()
    assert verify(world.store).problems == []
    for rev in (all_of_it[4].hex(), all_of_it[4].hex()[:9]):
        with pytest.raises(Expired, match=r"expired by the retention policy of r \(now --keep-l"):
            world.store.resolve(REPO, rev)
    world.hours += 1
    world.push(world.source("data", a=b"new" * 900))
    world.point("other", all_of_it[1])
    world.collect_all()
    assert _history(world)[1:] == all_of_it[:2]  # one that a branch names, one of the last two


def test_a_policy_is_looked_at_again_before_anything_is_deleted(world: World) -> None:
    """A policy that is cleared in time costs nothing."""
    all_of_it = _history(world)
    _set(world, Retention(keep_last=1))
    assert world.collect().tombstoned.commits == 4
    _set(world, None)
    world.hours += 25
    assert world.collect().deleted.commits == 0
    assert _history(world) == all_of_it


def test_a_clock_that_is_a_year_ahead(world: World) -> None:
    """What it takes for old is not deleted by anybody with a right clock, who judges again."""
    all_of_it = _history(world)
    _set(world, Retention(keep_within_s=int(world.clock()) + 90 * 86_400))  # pushed about 1970
    world.hours += 365 * 24
    assert world.collect().tombstoned.commits == 4
    world.hours -= 365 * 24
    for _ in range(3):
        world.hours += 25
        assert world.collect().deleted.commits == 0
    assert _history(world) == all_of_it


def test_an_expired_commit_that_is_named_in_time_stays_whole(world: World) -> None:
    """A branch at a tombstoned commit keeps it; what is before it may go or stay, but whole."""
    all_of_it = _history(world)
    _set(world, Retention(keep_last=1))
    world.collect()
    world.point("old", all_of_it[2])
    world.hours += 25
    world.collect()
    world.needs.check("after a branch was put at an old commit")
    world.collect_all()
    assert [at for at, _ in log(world.store, REPO, "old")] == [all_of_it[2]]
    with pytest.raises(Expired):
        world.point("older", all_of_it[3])


def test_a_policy_that_no_list_shows(world: World) -> None:
    """A policy counts where no list ever shows that one is set: two gc runs carry it out."""
    all_of_it = _history(world)
    _set(world, Retention(keep_last=2))
    world.objects.add(lambda perform: [], "list", keys.settings(REPO))
    world.collect_all()
    assert _history(world) == all_of_it[:2]
    assert world.garbage() == set()


def test_a_writer_between_the_outcomes_of_commits_and_packs(world: World) -> None:
    """A gc run that has decided about a commit, and stands still before its packs, agrees with
    a writer that comes meanwhile: the commit is gone, or whole."""
    all_of_it = _history(world)
    _set(world, Retention(keep_last=1))
    world.collect()
    world.hours += 25
    collector = world.actor("collect", lambda store: world.collect(store=store))
    go_on_to(collector, "put journal/fates/")
    world.point("old", all_of_it[1])
    finish(collector)
    world.needs.check("a writer was first")
    world.collect_all()
    world.needs.check("and a day later")
    assert world.store.resolve(REPO, "old") == all_of_it[1]


def test_a_copy_that_puts_expired_history_back_too_late(world: World) -> None:
    """Commits that a copy puts back after they were deleted, to be refused only then, stay the end
    of history also without a policy: a branch can be put after them, and gc runs delete them
    again."""
    all_of_it = _history(world)
    elsewhere = MemoryObjects("memory:elsewhere")
    elsewhere.objects.update(world.memory.objects)
    ref = RefName(REPO, "branches", "copied")
    point_ref(open_store(elsewhere), ref, all_of_it[1], expected_sequence=None)
    options = CopyOptions(workers=1, clock=world.clock)
    late = world.actor(
        "copy", lambda store: copy(open_store(elsewhere), store, [REPO], "copied", options)
    )
    go_on_to(late, "put repos/r/commits/")
    _set(world, Retention(keep_last=1))
    world.collect()
    world.hours += 25
    collector = world.actor("collect", lambda store: world.collect(store=store))
    go_on_to(collector, "delete packs/")
    finish(late)
    assert isinstance(late.error, Conflict)
    assert keys.commit(REPO, all_of_it[1]) in world.memory.objects
    finish(collector)
    assert collector.error is None
    world.needs.check("after a copy that was late")
    _set(world, None)
    assert world.collect().tombstoned.commits == 4
    world.point("new", all_of_it[0])
    for _ in range(2):
        world.hours += 25
        world.collect()
    world.needs.check("at the end")
    assert world.garbage() == set()
    assert _history(world) == all_of_it[:1]


def test_blame_and_merge_where_history_has_expired(world: World, tmp_path: Path) -> None:
    """Of what was there before the oldest commit that is kept, that commit is named; a merge that
    has lost its base says so."""
    all_of_it = _history(world)
    world.point("other", all_of_it[4])
    world.change("other", all_of_it[4], Put("more", b"more"))
    _set(world, Retention(keep_last=1))
    world.collect_all()
    kept = world.store.refs(REPO).read("branches", "main").commit
    assert kept == all_of_it[0]
    found = {one.path: one.commit_id for one in blame(world.store, Spec(REPO, "main", b""))}
    assert found == {b"a": kept, b"same": kept}
    other = world.store.resolve(REPO, "other")
    options = PushOptions("m", "a", 7, tmp_path / "index", workers=0)
    with pytest.raises(Expired, match="cannot tell what each of them changed"):
        merge_branch(world.store, REPO, "main", other, options)


def test_a_lost_commit_is_no_expired_one(world: World) -> None:
    """Of a commit that is lost without a word nothing is known, and nothing is deleted."""
    _set(world, Retention(keep_last=1))
    lost = _history(world)[2]
    world.memory.delete(keys.commit(REPO, lost))
    with pytest.raises(Corrupt, match=lost.hex()):
        world.collect()


def test_settings_that_two_change_at_once(world: World) -> None:
    """Who comes second builds on what the first has set."""
    log = world.store.settings_log(REPO)
    turns: list[int] = []

    def second(now: object) -> object:
        if not turns:
            turns.append(1)
            log.change(lambda now: replace(now, quota_size_bytes=7))
        return replace(now, retention=Retention(3))  # type: ignore[type-var]

    found = log.change(second)  # type: ignore[arg-type]
    assert (found.sequence, found.quota_size_bytes, found.retention) == (1, 7, Retention(3))
    assert log.newest() == log.surely_newest() == found

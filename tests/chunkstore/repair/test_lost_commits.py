"""Commits that branches lead to and that are not there: lost, or deleted by a retention policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.repair import Finding, RepairOptions, repair
from lodefs.chunkstore.repair.sources.source import StoreSource
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.history import log
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A branch of three commits, of which the last has one file of ten."""
    with one_at_a_time():
        world = World(tmp_path / "one")
        for n in range(3):
            files = {f"f{at}": bytes([at]) * 5000 for at in range(10 if n < 2 else 1)}
            world.push(world.source(str(n), n=bytes([n]), **files))
            world.hours += 1
        yield world


def _history(world: World) -> list[CommitId]:
    return [commit_id for commit_id, _ in log(world.store, REPO, "main")]


def _repaired(world: World, *sources: World, dry_run: bool = False) -> list[Finding]:
    return repair(
        locations_of(world.memory),
        [StoreSource(source.memory) for source in sources],
        RepairOptions(data=True, dry_run=dry_run, clock=world.clock),
    ).findings


@pytest.mark.parametrize("has_source", [False, True])
def test_the_word_that_a_commit_has_expired(world: World, tmp_path: Path, has_source: bool) -> None:
    """The journal has it too: history ends there again, and nothing comes back from a store that
    still has the commit."""
    other = World(tmp_path / "other")
    copy(world.store, other.store, [REPO], None, CopyOptions())
    log_before = _history(world)
    policy = Retention(keep_last=1)
    world.store.settings_log(REPO).change(
        lambda now: replace(now, retention=policy, may_lack_history=True)
    )
    for _ in range(3):
        world.collect(min_used=1.0)
        world.hours += 25
    objects = dict(world.memory.objects)
    words = [info.key for info in world.memory.list(keys.expired(REPO))]
    assert len(words) == 2
    for key in words:
        world.memory.delete(key)
    assert len(verify(world.store).problems) == 1
    sources = [other] if has_source else []
    found = _repaired(world, *sources, dry_run=True)
    assert [(one.key, one.what) for one in found] == [
        (keys.expired(REPO, log_before[1].hex()), "lost")
    ]
    assert verify(world.store).problems
    assert _repaired(world, *sources)[0].repaired_from == "the journal"
    assert _history(world) == log_before[:1]
    assert verify(world.store, data=True).problems == []
    assert world.packs() == {key for key in objects if key.startswith(keys.PACKS)}
    world.collect()


def test_a_lost_commit_is_told_once(world: World) -> None:
    """However many branches lead to it."""
    first = _history(world)[-1]
    for n, commit_id in enumerate(_history(world)):
        world.point(f"b{n}", commit_id)
    world.memory.delete(keys.commit(REPO, first))
    assert [one.key for one in _repaired(world)] == [keys.commit(REPO, first)]

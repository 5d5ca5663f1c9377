"""A gc run whose trees many machines read: it decides what one does that reads them itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import Corrupt, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.maintenance import tree_groups
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.maintenance.tree_groups import GroupNames, ReadGroups, read_group
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store
from tests.support.chunkstore.directories import write_files
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

DRY = CollectOptions(0, dry_run=True, workers=2, min_used=0.9)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(tree_groups, "GROUP_TREES", 3)
    monkeypatch.setattr(tree_groups, "WAVE_TREES", 7)
    with one_at_a_time():
        yield World(tmp_path)


def _elsewhere(store: Store, before: Callable[[], object] = lambda: None) -> ReadGroups:
    """Reads as the tasks of an executor do. ``before`` is called before each group."""

    def read(groups: Iterable[Sequence[TreeEntry]]) -> Iterator[GroupNames]:
        for group in groups:
            before()
            yield read_group(store.packs, group, 2)

    return read


def _history(world: World, seed: int) -> None:
    """Versions on three branches that share directories; some branches are deleted."""
    random = Random(seed)
    source = world.source("s")
    for _ in range(random.randrange(3, 9)):
        some = {
            f"{random.randrange(3)}/{random.randrange(4)}/{random.randrange(4)}": random.randbytes(
                random.randrange(3000)
            )
            for _ in range(6)
        }
        write_files(source, some)
        world.push(source, random.choice(["main", "b", "c"]))
    world.push(source)
    for branch in ("b", "c"):
        if random.random() < 0.5 and world.store.refs(REPO).latest("branches", branch):
            world.delete(branch)


@pytest.mark.parametrize("seed", range(6))
def test_it_marks_what_one_machine_marks(world: World, seed: int) -> None:
    """Of random histories: the same commits, packs and chunks, so the same is garbage."""
    _history(world, seed)
    store = world.store
    other = replace(DRY, read_groups=_elsewhere(store))
    assert collect(store, other) == collect(store, DRY)


def test_a_tree_that_is_lost_stops_it(world: World) -> None:
    """It names the commit, and neither deletes nor tombstones anything."""
    _history(world, 1)
    world.collect()
    root = world.store.commit(REPO, world.store.resolve(REPO, "main")).root
    del world.memory.objects[keys.pack(root.segments[0].pack)]
    before = dict(world.memory.objects)
    with pytest.raises(Corrupt, match=f"{REPO}@.* cannot be read completely"):
        collect(world.store, CollectOptions(0, workers=2, read_groups=_elsewhere(world.store)))
    assert world.memory.objects == before


def test_an_executor_that_fails_stops_it(world: World) -> None:
    """Half a marking is none: nothing was changed, and the next gc run does all of it."""
    _history(world, 2)
    world.collect()
    before, calls = dict(world.memory.objects), iter(range(99))

    def fail() -> None:
        if next(calls) == 2:
            raise Unavailable("the executor takes no more tasks")

    options = CollectOptions(0, workers=2)
    with pytest.raises(Unavailable):
        collect(world.store, replace(options, read_groups=_elsewhere(world.store, fail)))
    assert world.memory.objects == before
    collect(world.store, replace(options, read_groups=_elsewhere(world.store)))
    assert verify(world.store, data=True).problems == []


def test_a_push_while_others_read(world: World) -> None:
    """It uses what is garbage for this gc run, which keeps that: at each point of marking."""
    _history(world, 3)
    calls = 0
    for at in range(0, 20, 4):
        old = world.source("old", x=b"%d" % at * 999)
        world.push(old, f"gone{at}")
        world.delete(f"gone{at}")
        world.collect()
        calls = 0

        def push(at: int = at, old: Path = old) -> None:
            nonlocal calls
            calls += 1
            if calls == at + 1:
                world.push(old, f"kept{at}", machine="two")

        world.hours += 30
        options = CollectOptions(0, clock=world.clock, workers=2)
        collect(world.store, replace(options, read_groups=_elsewhere(world.store, push)))
        assert verify(world.store, data=True).problems == []
        if calls <= at:
            break
    assert at > 2

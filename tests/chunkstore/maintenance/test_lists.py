"""A list that lacks an object costs no data, whichever object that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from lodefs.chunkstore.format.repo_settings import Retention
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.needs import Needs
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import GRACE_S, HOUR_S, REPO, World

_random = Random(1)
A, B, C = (_random.randbytes(9000) for _ in range(3))


class ShortLists(MemoryObjects):
    """A store whose lists lack what ``is_hidden`` says."""

    def __init__(self, objects: dict[str, bytes], is_hidden: Callable[[str], bool]) -> None:
        super().__init__()
        self.objects = dict(objects)
        self.is_hidden = is_hidden

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        shown = (one for one in super().list(prefix, after=after) if not self.is_hidden(one.key))
        return iter([*shown][:limit])


def test_a_list_that_lacks_an_object(tmp_path: Path) -> None:
    """Each object of a store in turn, and each kind of object as a whole: gc runs that delete,
    expire and compact lose nothing that a ref leads to; with whole lists the garbage goes."""
    with one_at_a_time():
        world = _store_with_garbage(tmp_path)
        objects = world.memory.objects
        folders = {key.rpartition("/")[0] + "/" for key in objects if "/" in key}
        hidden = [*objects, *sorted(folders), ""]
        deleted = [_collect_with(objects, world.clock(), prefix) for prefix in hidden]
    assert len(hidden) > 30
    assert sum(deleted) > len(hidden), "gc runs have deleted something"


def _store_with_garbage(directory: Path) -> World:
    """Branches with some history, a policy, and deleted branches; all of that half collected."""
    world = World(directory)
    world.push(world.source("three", a=A, b=B, c=C), branch="three")
    for name, data in (("first", A), ("second", B), ("last", A + B)):
        world.push(world.source(name, a=data))
        world.hours += 1
    world.push(world.source("only", a=A), branch="one")
    world.delete("three")
    world.store.settings_log(REPO, world.clock).change(
        lambda now: replace(now, retention=Retention(keep_last=1), may_lack_history=True)
    )
    world.collect(min_used=1.0)
    world.push(world.source("new", c=C[:5000]), branch="new")
    world.delete("new")
    world.hours += 25
    return world


def _collect_with(objects: dict[str, bytes], now_s: float, hidden: str) -> int:
    """Gc runs of a copy, first with lists that lack what begins so; how much those deleted."""
    memory = ShortLists(objects, lambda key: key.startswith(hidden))
    needs = Needs(memory)
    deleted = 0
    for n in range(4):
        if n == 2:
            memory.is_hidden = lambda _: False
        options = CollectOptions(GRACE_S, clock=lambda: now_s, min_used=1.0)  # noqa: B023
        amount = collect(open_store(memory), options).deleted
        deleted += (amount.packs + amount.commits) * (n < 2)
        needs.check(f"after collection {n}, lists without {hidden!r}")
        now_s += 25 * HOUR_S
    assert not needs.garbage(set(), int(now_s)), hidden
    assert not needs.unused_chunks(set(), int(now_s)), hidden
    return deleted

"""An import in place by parts: what a plain import leaves in the bucket stays there, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lodefs.chunkstore.errors import SourceChanged
from lodefs.chunkstore.format.journal import End
from lodefs.chunkstore.format.push_plan import PushPlan
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.journal.push_plans import PushPlans
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.push.parts.finish import finish_plan
from lodefs.chunkstore.push.parts.part_row import do_part
from lodefs.chunkstore.push.parts.part_scan import PartLimits
from lodefs.chunkstore.push.parts.plan import make_plan
from lodefs.chunkstore.push.push import PushOptions, PushResult
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repo.store import Store, open_store
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.in_place_world import IN_PLACE, LARGE, URL, InPlaceWorld
from tests.support.chunkstore.memory_source import sources_of

FEW = PartLimits(files=3, size_bytes=2 * LARGE)
PIECES = PartLimits(files=3, size_bytes=2 * LARGE, whole_bytes=4 * LARGE, piece_bytes=3 * LARGE)


class PartsWorld(InPlaceWorld):
    """A bucket that is imported by the parts of a plan, each time by another machine."""

    machines = 0

    def options(self, *, is_plan: bool = False) -> PushOptions:
        """Those of a machine that knows nothing yet: only the plan says what stays in place."""
        self.machines += 1
        index_dir = self.folder / f"machine {self.machines}"
        return PushOptions(
            "", "jane", 0, index_dir, workers=0, in_place=IN_PLACE if is_plan else None
        )

    def again(self, objects: Any = None) -> Store:
        """The store as another machine opens it."""
        return Store(objects or self.objects(), self.store.settings)

    def plan(self, limits: PartLimits = FEW) -> PushPlan:
        options = self.options(is_plan=True)
        return make_plan(self.again(), "p", URL, "r", "main", options, limits=limits).plan

    def do(self, *numbers: int) -> None:
        self.remote.list(b"")  # it shows what the bucket has now
        for number in numbers:
            do_part(self.again(), "p", number, self.options())

    def finish(self) -> PushResult:
        return finish_plan(self.again(), "p", self.options())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartsWorld:
    """A world whose bucket the URL leads to."""
    made = PartsWorld(tmp_path)
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: made.remote)
    return made


def _filled(world: PartsWorld) -> dict[str, bytes]:
    contents = {f"d{n % 2}/large{n}": world.put(f"d{n % 2}/large{n}") for n in range(4)}
    contents |= {f"d{n % 2}/small{n}": world.put(f"d{n % 2}/small{n}", 3000) for n in range(9)}
    contents["huge"] = world.put("huge", 8 * LARGE)
    return contents


@pytest.mark.parametrize("limits", [FEW, PIECES], ids=["whole", "pieces"])
def test_parts_in_any_order_and_again_make_the_tree_of_a_plain_import(
    world: PartsWorld, limits: PartLimits
) -> None:
    """Large objects stay in the bucket, also one that is in pieces; small ones are stored."""
    contents = _filled(world)
    before = world.stored_bytes()
    plan = world.plan(limits)
    assert plan.in_place is not None and plan.source == world.remote.location.encode()
    order = [*range(plan.parts), *range(0, plan.parts, 2)]
    Random(3).shuffle(order)
    world.do(*order)
    ours = world.finish()
    assert world.stored_bytes() - before < 9 * 3000 + 0.02 * ours.size_bytes
    assert {path: world.read(path) for path in contents} == contents
    store = open_store(world.objects())
    digest = store.commit("r", store.resolve("r", "main")).root.digest
    theirs = world.imported(machine="plain")
    assert theirs.changes is None or theirs.changes.changed_files == 0
    assert store.commit("r", store.resolve("r", "main")).root.digest == digest
    assert (theirs.files, theirs.size_bytes) == (ours.files, ours.size_bytes)


class _Killed(BaseException):
    """The process is gone: no handler of errors sees it."""


def _die(perform: Callable[[], Any]) -> Any:
    raise _Killed


def test_a_kill_before_any_put_of_a_part_loses_nothing(world: PartsWorld) -> None:
    """Another machine does the part again, and reads all of it."""
    contents = {f"large{n}": world.put(f"large{n}") for n in range(2)}
    parts, number = world.plan(PartLimits(files=1)).parts, 0
    while True:
        number += 1
        faulty = FaultyObjects(world.memory)
        faulty.add(_die, "put", first=number)
        objects = PackLocations(VirtualPacks(faulty, sources_of(world.source)))
        try:
            do_part(world.again(objects), "p", 0, world.options())
        except _Killed:
            PushPlans(world.memory).remove("p", PushPlans(world.memory).find("p").first)
            parts = world.plan(PartLimits(files=1)).parts
        else:
            break
    assert number > 3
    world.do(*range(parts))
    world.finish()
    assert {path: world.read(path) for path in contents} == contents


def test_an_object_that_changes_after_the_plan_is_named(world: PartsWorld) -> None:
    """Its part fails, and so it does if the object had been read for a writer that has ended: its
    chunks are not where they were."""
    _filled(world)
    plan = world.plan(PartLimits(files=1))
    world.do(*range(plan.parts))
    world.source.put("d0/large0", world.random.randbytes(LARGE))
    _, writer = PushPlans(world.memory).find("p").writer()
    StoreJournal(world.memory).put_end(End(writer, None))
    with pytest.raises(SourceChanged, match="d0/large0 has changed since the plan was made"):
        world.do(*range(plan.parts))

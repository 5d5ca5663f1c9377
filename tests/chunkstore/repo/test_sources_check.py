"""verify with sources: what has changed in a bucket is told before anybody reads it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.maintenance.adopt import adopt
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repo.checks.verify import VerifyResult, verify
from lodefs.chunkstore.repo.store import open_store
from tests.support.chunkstore.in_place_world import InPlaceWorld
from tests.support.chunkstore.memory_source import sources_of


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InPlaceWorld:
    """Two large objects and a small one, imported."""
    world = InPlaceWorld(tmp_path)
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: world.remote)
    world.put("a")
    world.put("b")
    world.put("small", 3000)
    world.imported()
    return world


def checked(world: InPlaceWorld, *, sources: bool = True, data: bool = False) -> VerifyResult:
    return verify(open_store(world.objects()), sources=sources, data=data)


def test_unchanged_objects_are_asked_for_once(world: InPlaceWorld) -> None:
    """Nothing is read, and objects of several commits, or copied ones, are not asked for again."""
    world.put("c", 10)
    world.imported()
    world.source.reads.clear()
    result = checked(world)
    assert (result.problems, result.source_objects) == ([], 2)
    assert not world.source.reads


@pytest.mark.parametrize("how", ["changed", "gone", "archived"])
def test_a_lost_object_is_a_problem_of_its_file(world: InPlaceWorld, how: str) -> None:
    """The line names the object, the file, the versions and the way out; without the option only
    reading the data finds it."""
    if how == "changed":
        world.put("a")
    elif how == "gone":
        world.source.delete("a")
    else:
        world.source.archived.add("a")
    (problem,) = checked(world).problems
    for part in ("r@", ":a: ", "source/a ", how, "lodefs adopt", "in 1 commit, among them r@main"):
        assert part in problem
    assert not checked(world, sources=False).problems
    assert all("source/a " in line for line in checked(world, sources=False, data=True).problems)


def test_of_one_revision(world: InPlaceWorld) -> None:
    """Only the objects of its own files are asked for."""
    first = world.imported().commit
    world.source.put("a", b"other")
    world.imported()
    store = open_store(world.objects())
    assert not verify(store, Spec("r"), sources=True).problems
    assert len(verify(store, Spec("r", first), sources=True).problems) == 1


def test_a_pack_that_is_adopted_meanwhile(world: InPlaceWorld) -> None:
    """Whoever has read its index before does not call the bytes lost."""
    store = open_store(world.objects())
    (pack,) = world.packs_in_place()
    store.packs.index(pack)
    adopt(open_store(world.objects()), Spec("r"))
    world.source.delete("a")
    assert not verify(store, sources=True).problems


def test_a_source_that_is_not_known(world: InPlaceWorld) -> None:
    """One problem has the lines to add, and all else is checked: one commit does not end the check
    of a store. Without the options nobody needs the source."""
    world.put("d")
    world.imported()
    assert len(world.packs_in_place()) == 2
    store = open_store(VirtualPacks(world.memory, sources_of()))
    assert not verify(store).problems
    for result in (verify(store, sources=True), verify(store, data=True)):
        (problem,) = result.problems
        assert re.match(r"r@\w+:.* was not checked: .*\[sources.archive\]", problem)
        assert result.files > 1

"""Repair and scrub of packs whose bytes lie in place, in objects that are lost or not known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import SourceLost
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repair.repair import RepairOptions, RepairResult, repair
from lodefs.chunkstore.repair.scrub import ScrubOptions, parse_share, scrub
from lodefs.chunkstore.repair.sources.source import StoreSource
from tests.support.chunkstore.in_place_world import InPlaceWorld
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_source import sources_of

FILES = ("a", "b", "c")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InPlaceWorld:
    """Three large objects and a small one in one pack."""
    world = InPlaceWorld(tmp_path)
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: world.remote)
    for key in FILES:
        world.put(key)
    world.put("small", 3000)
    world.imported()
    assert len(world.packs_in_place()) == 1
    return world


def repaired(world: InPlaceWorld, *sources: MemoryObjects) -> RepairResult:
    found = [StoreSource(source) for source in sources]
    return repair(world.objects(), found, RepairOptions(data=True, workers=1))


def other_store(world: InPlaceWorld, *keys_kept: str) -> MemoryObjects:
    """A store into which the bucket was pushed, when it had these objects only."""
    other = InPlaceWorld(world.folder / "-".join(keys_kept))
    for key in keys_kept:
        other.source.put(key, bytes(world.source.versions[key, ""]))
    world.remote, there = other.remote, world.remote
    other.imported(None)
    world.remote = there
    return other.memory


def test_a_lost_object_is_named(world: InPlaceWorld) -> None:
    """The finding has the object and its file. The pack stays as it is, so the file is back with
    the object."""
    before, data = dict(world.memory.objects), world.read("b")
    world.source.delete("b")
    (found,) = repaired(world).left
    assert "source/b " in found.what
    assert [name.rpartition(":")[2] for name in found.concerns] == ["b"]
    assert world.memory.objects == before
    world.source.put("b", data)
    assert not repaired(world).findings


def test_lost_bytes_come_from_another_store(world: InPlaceWorld) -> None:
    """They are in the store then, and the bucket is not needed for that pack."""
    contents = {key: world.read(key) for key in FILES}
    other = other_store(world, *FILES)
    world.source.delete("b")
    assert not repaired(world, other).left
    assert not world.packs_in_place()
    for key in FILES:
        assert world.read(key) == contents[key]


def test_a_source_that_has_a_part(world: InPlaceWorld) -> None:
    """A pack is not written without the chunks of an object that may come back."""
    contents = {key: world.read(key) for key in FILES}
    other = other_store(world, "b")
    for key in ("b", "c"):
        world.source.delete(key)
    assert repaired(world, other).left
    assert world.read("a") == contents["a"]
    with pytest.raises(SourceLost):
        world.read("c")
    world.source.put("c", contents["c"])
    assert not repaired(world, other).left
    assert {key: world.read(key) for key in FILES} == contents


def test_an_unknown_source_is_no_damage(world: InPlaceWorld) -> None:
    """A repair that reads all bytes has one line for it, with those to add, and changes nothing;
    one that checks what the store has needs no source."""
    world.put("d")
    world.imported()
    assert len(world.packs_in_place()) == 2
    before = dict(world.memory.objects)
    there = VirtualPacks(world.memory, sources_of())
    result = repair(there, [], RepairOptions(data=True))
    (line,) = result.unchecked
    assert re.match(r"r@\w+:[abcd], and all else .* was not checked: .*\[sources.archive\]", line)
    assert not result.findings
    assert repair(there, [], RepairOptions()) == RepairResult(commits=2, packs=result.packs)
    assert world.memory.objects == before


def test_damage_beside_an_unknown_source(world: InPlaceWorld) -> None:
    """It is repaired, and no chunk of the source counts as lost in a pack that nobody has whole:
    that stays as it is."""
    contents = {key: world.read(key) for key in (*FILES, "small")}
    key = keys.pack(world.packs_in_place()[0])
    data = world.memory.objects[key]
    begin = data.index(contents["small"][:8])
    world.memory.objects[key] = data[:begin] + bytes([data[begin] ^ 1]) + data[begin + 1 :]
    there = VirtualPacks(world.memory, sources_of())
    part, whole = other_store(world, "small"), other_store(world, *FILES, "small")
    damaged = dict(world.memory.objects)
    result = repair(there, [StoreSource(part)], RepairOptions(data=True))
    assert len(result.unchecked) == 1
    assert [one.key for one in result.left] == [key]
    assert world.memory.objects[key] == damaged[key]
    result = repair(there, [StoreSource(whole)], RepairOptions(data=True))
    assert [one.key for one in result.findings] == [key]
    assert not result.left
    assert {name: world.read(name) for name in contents} == contents


def test_a_scrub_reads_what_the_store_has(world: InPlaceWorld) -> None:
    """It needs no source, reads none, and finds a decayed byte of the pack's own chunks."""
    there = VirtualPacks(world.memory, sources_of())
    options = ScrubOptions(parse_share("1/1"), workers=1)
    assert not scrub(there, options).damaged
    key = keys.pack(world.packs_in_place()[0])
    data = world.memory.objects[key]
    world.memory.objects[key] = bytes([data[0] ^ 1]) + data[1:]
    world.source.reads.clear()
    (damage,) = scrub(world.objects(), options).damaged
    assert keys.pack(damage.pack_id) == key
    assert not world.source.reads

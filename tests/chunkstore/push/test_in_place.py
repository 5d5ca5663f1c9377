"""An import in place: large objects stay where they are, and no commit names what has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import SourceLost
from lodefs.chunkstore.push.remote import remote_files
from tests.support.chunkstore import memory_source
from tests.support.chunkstore.in_place_world import LARGE, InPlaceWorld
from tests.support.chunkstore.memory_objects import etag_of


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., InPlaceWorld]:
    """Makes a world whose bucket the URL leads to."""

    def made(**options: bool) -> InPlaceWorld:
        world = InPlaceWorld(tmp_path, **options)
        monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: world.remote)
        return world

    return made


def test_large_objects_stay_where_they_are(make: Callable[..., InPlaceWorld]) -> None:
    """Their bytes are not in the store, those of small ones are; each byte is read once, and a
    second import reads none."""
    world = make()
    contents = {f"d{n % 2}/large{n}": world.put(f"d{n % 2}/large{n}") for n in range(4)}
    contents |= {f"d{n % 2}/small{n}": world.put(f"d{n % 2}/small{n}", 3000) for n in range(20)}
    contents["huge"] = world.put("huge", 9_000_000)
    before = world.stored_bytes()
    result = world.imported()
    assert world.stored_bytes() - before < 20 * 3000 + 0.01 * result.size_bytes
    for path, data in contents.items():
        assert world.read(path) == data
    assert len(world.remote.reads) == len(contents) + 2  # "huge" in three windows
    again = world.imported()
    assert again.unchanged
    assert not world.remote.reads


def test_small_and_large_objects_share_packs(make: Callable[..., InPlaceWorld]) -> None:
    """An object is not a pack of its own, whatever lies before and after it."""
    world = make()
    for n in range(40):
        world.put(f"{n:02}", 3000 if n % 2 else 200_000)
    world.imported()
    packs = [key for key in world.memory.objects if key.startswith("packs/")]
    assert len(packs) == 2  # one of data, one of trees


def test_a_changed_object_is_read_again(make: Callable[..., InPlaceWorld]) -> None:
    """A new commit has the object's new bytes, also those that the object had before, and nothing
    else is read; the old commit cannot be read any more."""
    world = make()
    old, other = world.put("a"), world.put("b")
    first = world.imported().commit
    new = old[: LARGE // 2] + world.random.randbytes(9) + old[LARGE // 2 :]
    world.source.put("a", new)
    second = world.imported()
    assert second.files_read >= 1
    assert b"b" not in world.remote.reads
    assert (world.read("a"), world.read("b")) == (new, other)
    with pytest.raises(SourceLost, match=r"source/a .*changed"):
        world.read("a", first)


def test_the_same_bytes_with_another_etag(make: Callable[..., InPlaceWorld]) -> None:
    """Objects that were deleted and came back in another way are read in their new state."""
    world = make(has_versions=True)
    data = world.put("a")
    world.imported()
    world.source.versions.clear()
    world.source.put("b", data)
    del world.source.current["a"]
    world.imported(machine="two")
    assert world.read("b") == data


def test_a_version_stays_readable(make: Callable[..., InPlaceWorld]) -> None:
    """If the bucket keeps versions, an overwritten object is read in its old one."""
    world = make(has_versions=True)
    data = world.put("a")
    world.imported()
    world.put("a")
    assert world.read("a") == data
    world.source.versions.clear()
    with pytest.raises(SourceLost, match=r"source/a .*lodefs adopt"):
        world.read("a")


def test_a_push_stores_what_an_import_left(make: Callable[..., InPlaceWorld]) -> None:
    """What is pushed does not depend on a bucket, even if the store knows its chunks from there."""
    world = make()
    data = world.put("a")
    world.imported()
    world.put("b", 10)
    world.imported(None)
    for key in ("a", "b"):
        world.source.delete(key)
    assert world.read("a") == data


def test_objects_without_a_condition_are_copied(
    make: Callable[..., InPlaceWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weak ETag matches no condition, so the object cannot be read in place."""
    world = make()
    data = world.put("a")
    monkeypatch.setattr(memory_source, "etag_of", lambda one: f"W/{etag_of(one)}")
    world.imported()
    world.source.delete("a")
    assert not world.packs_in_place()
    assert world.read("a") == data


def test_a_push_into_an_existing_pack(make: Callable[..., InPlaceWorld]) -> None:
    """A push from a machine that knows no index adopts a pack with the very same chunks."""
    world = make()
    data = world.put("a")
    world.imported()
    assert world.packs_in_place()
    for key in [key for key in world.memory.objects if key.startswith("index/")]:
        del world.memory.objects[key]
    world.put("b", 10)
    world.imported(None, machine="two")
    world.source.delete("a")
    assert world.read("a") == data

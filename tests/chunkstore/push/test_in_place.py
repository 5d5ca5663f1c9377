"""An import in place: large objects stay where they are, and no commit names what has changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.errors import SourceLost
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.objects.virtual_packs import VirtualPacks, virtual_pack_of
from lodefs.chunkstore.push.in_place import InPlace
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.remote import remote_files
from lodefs.chunkstore.repo.pack_reader import PackReader, read_index
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from tests.support.chunkstore import memory_source
from tests.support.chunkstore.memory_objects import MemoryObjects, etag_of
from tests.support.chunkstore.memory_source import MemorySource, SourceFiles, sources_of

URL = "memory://bucket/data"
LARGE = 600_000
IN_PLACE = InPlace("archive", "", 100_000)


class World:
    """A store, a bucket, and a machine that imports."""

    def __init__(self, folder: Path, *, has_versions: bool = False) -> None:
        self.folder = folder
        self.source = MemorySource("archive", has_versions=has_versions)
        self.memory = MemoryObjects()
        self.store = create_store(self.objects())
        self.remote = SourceFiles(self.source)
        self.random = Random(7)

    def objects(self) -> PackLocations:
        """The store as another machine with the same settings opens it."""
        return PackLocations(VirtualPacks(self.memory, sources_of(self.source)))

    def put(self, key: str, size_bytes: int = LARGE) -> bytes:
        """Writes an object of random bytes."""
        data = self.random.randbytes(size_bytes)
        self.source.put(key, data)
        return data

    def imported(self, in_place: InPlace | None = IN_PLACE, machine: str = "one") -> PushResult:
        """Imports, or pushes, the whole bucket to the branch main of r."""
        self.remote.reads.clear()
        index_dir = self.folder / machine
        options = PushOptions("", "jane", 0, index_dir, workers=0, in_place=in_place)
        return push(Store(self.objects(), self.store.settings), URL, "r", "main", options)

    def read(self, path: str, rev: str = "main") -> bytes:
        """Reads a file as a machine does that knows nothing yet."""
        store = open_store(self.objects())
        entry = store.commit("r", store.resolve("r", rev)).root
        for name in path.encode().split(b"/"):
            entry = next(e for e in store.packs.read_tree(entry) if e.name == name)
        return b"".join(store.packs.read_file(entry))

    def stored_bytes(self) -> int:
        """The bytes of all objects in the store."""
        return sum(map(len, self.memory.objects.values()))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Makes a world whose bucket the URL leads to."""

    def made(**options: bool) -> World:
        world = World(tmp_path, **options)
        monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: world.remote)
        return world

    return made


def test_large_objects_stay_where_they_are(make: Callable[..., World]) -> None:
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


def test_small_and_large_objects_share_packs(make: Callable[..., World]) -> None:
    """An object is not a pack of its own, whatever lies before and after it."""
    world = make()
    for n in range(40):
        world.put(f"{n:02}", 3000 if n % 2 else 200_000)
    world.imported()
    packs = [key for key in world.memory.objects if key.startswith("packs/")]
    assert len(packs) == 2  # one of data, one of trees


def test_a_changed_object_is_read_again(make: Callable[..., World]) -> None:
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


def test_the_same_bytes_with_another_etag(make: Callable[..., World]) -> None:
    """Objects that were deleted and came back in another way are read in their new state."""
    world = make(has_versions=True)
    data = world.put("a")
    world.imported()
    world.source.versions.clear()
    world.source.put("b", data)
    del world.source.current["a"]
    world.imported(machine="two")
    assert world.read("b") == data


def test_a_version_stays_readable(make: Callable[..., World]) -> None:
    """If the bucket keeps versions, an overwritten object is read in its old one."""
    world = make(has_versions=True)
    data = world.put("a")
    world.imported()
    world.put("a")
    assert world.read("a") == data
    world.source.versions.clear()
    with pytest.raises(SourceLost, match=r"source/a .*lodefs adopt"):
        world.read("a")


def test_a_push_stores_what_an_import_left(make: Callable[..., World]) -> None:
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
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weak ETag matches no condition, so the object cannot be read in place."""
    world = make()
    data = world.put("a")
    monkeypatch.setattr(memory_source, "etag_of", lambda one: f"W/{etag_of(one)}")
    world.imported()
    world.source.delete("a")
    assert not packs_in_place(world)
    assert world.read("a") == data


def packs_in_place(world: World) -> list[PackId]:
    """Returns the packs that have chunks in the bucket."""
    objects = world.objects()
    reader = PackReader(objects)
    store = open_store(objects)
    outline = reader.outline(store.commit("r", store.resolve("r", "main")).root)
    found = []
    for pack in outline.packs:
        version = read_index(objects, pack)
        if virtual_pack_of(objects, pack, version.etag) is not None:
            found.append(pack)
    return found


def test_a_push_into_an_existing_pack(make: Callable[..., World]) -> None:
    """A push from a machine that knows no index adopts a pack with the very same chunks."""
    world = make()
    data = world.put("a")
    world.imported()
    assert packs_in_place(world)
    for key in [key for key in world.memory.objects if key.startswith("index/")]:
        del world.memory.objects[key]
    world.put("b", 10)
    world.imported(None, machine="two")
    world.source.delete("a")
    assert world.read("a") == data

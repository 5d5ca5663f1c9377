"""A store, a bucket whose objects are imported in place, and machines that do so: for tests."""

from __future__ import annotations

from pathlib import Path
from random import Random

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks, virtual_pack_of
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.push.in_place import InPlace
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_source import MemorySource, SourceFiles, sources_of

URL = "memory://bucket/data"
LARGE = 600_000
IN_PLACE = InPlace("archive", "", 100_000)


class InPlaceWorld:
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

    def packs_in_place(self) -> list[PackId]:
        """The packs of main that have chunks in the bucket."""
        store = open_store(self.objects())
        root = store.commit("r", store.resolve("r", "main")).root
        return [
            pack for pack in named_packs(store.packs, root, None).found if self.is_virtual(pack)
        ]

    def is_virtual(self, pack: PackId) -> bool:
        """Whether a pack has chunks in the bucket."""
        objects = self.objects()
        return virtual_pack_of(objects, pack, read_index(objects, pack).etag) is not None

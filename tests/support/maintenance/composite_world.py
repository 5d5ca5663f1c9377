"""A world with many small packs, which are merged, and what to ask of it."""

from __future__ import annotations

from pathlib import Path
from random import Random

from lodefs.chunkstore.format.composite import COMPOSITES, TAIL_HEAD_SIZE_BYTES
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.repo.store import Store, create_store, open_store
from lodefs.chunkstore.transfer.copy import CopyOptions, copy
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.world import REPO, World

PUSHES = 6
BELOW = 1 << 20
_random = Random(1)
FILES = {f"f{n}".encode(): _random.randbytes(2000) for n in range(PUSHES)}


def grown(directory: Path) -> World:
    """A branch that grew by a file with each push."""
    world = World(directory)
    for n in range(PUSHES):
        world.push(world.source("files", **{f"f{n}": FILES[b"f%d" % n]}))
        world.hours += 2
    return world


def merge(world: World, store: Store | None = None) -> int:
    """How many packs were merged."""
    return world.collect(merge_below_bytes=BELOW, store=store).merged.packs


def files_of(store: Store, branch: str = "main") -> dict[bytes, bytes]:
    """All files of a branch, as they are read."""
    commit_id = store.refs(REPO).read("branches", branch).commit
    assert commit_id is not None
    root = store.commit(REPO, commit_id).root
    return {
        path: b"".join(store.packs.read_file(entry))
        for path, entry in store.packs.walk(root)
        if entry.kind is Kind.FILE
    }


def composites(world: World) -> set[str]:
    """The keys of those that have packs."""
    return {
        key
        for key, data in world.memory.objects.items()
        if key.startswith(COMPOSITES) and len(data) > TAIL_HEAD_SIZE_BYTES
    }


def holders(world: World, data: bytes) -> list[str]:
    """The objects that have those bytes."""
    return [key for key, stored in world.memory.objects.items() if data in stored]


def copied(world: World) -> Store:
    """Another store with the same repository."""
    there = MemoryObjects("memory:there")
    create_store(there)
    store = open_store(PackLocations(there))
    copy(world.store, store, [REPO], None, CopyOptions(clock=world.clock))
    assert not any(key.startswith("composites/") for key in there.objects)
    return store

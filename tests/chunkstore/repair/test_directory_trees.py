"""Trees of a store that come back from the directory that was pushed."""

from __future__ import annotations

import os
import random
from pathlib import Path

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.repair.repair import RepairOptions, RepairResult, repair
from lodefs.chunkstore.repair.sources.local_sources import DirectorySource
from lodefs.chunkstore.repair.sources.source import listed_packs
from lodefs.chunkstore.repo.checks.verify import verify
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.world import REPO, World

WIDE = 500  # files of long names: their tree has several chunks


def _filled(world: World) -> Path:
    """A directory of many shapes, pushed several times as it grew."""
    source = world.source("files", one=b"1" * 200_000, empty=b"", same=b"1" * 200_000)
    bits = random.Random(7)
    for n in range(3):
        below = source / "deep" / f"d{n}" / "more"
        below.mkdir(parents=True)
        for m in range(9):
            (below / f"file{m}").write_bytes(bits.randbytes((10, 3000, 90_000)[m % 3]))
        (below / "run").write_bytes(b"#!/bin/sh\n")
        (below / "run").chmod(0o755)
        os.symlink("../run", below.parent / "link")
        (below.parent / "nothing").mkdir()
        world.push(source)
        world.hours += 2
    wide = source / "wide"
    wide.mkdir()
    for _ in range(WIDE):
        (wide / bits.randbytes(100).hex()).touch()
    world.push(source)
    return source


def _repaired(world: World, memory: MemoryObjects, source: Path) -> RepairResult:
    found = DirectorySource(source, ChunkingParams(), lambda: listed_packs(memory))
    options = RepairOptions(data=True, workers=2, clock=world.clock)
    return repair(memory, [found], options)


def test_every_pack_of_the_newest_version(tmp_path: Path) -> None:
    """Each pack of the version that the directory is, lost in turn, comes back with the same bytes
    of chunks, be it of trees or of files; an older tree that is lost with it is named."""
    world = World(tmp_path)
    source = _filled(world)
    store = world.store
    head = store.commit(REPO, store.resolve(REPO, "main"))
    packs, unreadable = named_packs(store.packs, head.root, None)
    assert not unreadable
    wide = {entry.name: entry for entry in store.packs.read_tree(head.root)}[b"wide"]
    assert sum(segment.count for segment in wide.segments) > 1
    assert len(packs) > 2
    whole = dict(world.memory.objects)
    for pack in sorted(packs):
        memory = MemoryObjects()
        memory.objects = {key: data for key, data in whole.items() if key != keys.pack(pack)}
        found = _repaired(world, memory, source)
        left = [finding.key for finding in found.left]
        if left:  # it has trees of older versions too, which the directory is not any more
            assert left == [keys.pack(pack)]
            assert pack not in {segment.pack for segment in head.root.segments}
            continue
        assert verify(store.__class__(memory, store.settings), data=True).problems == []
    root = next(iter(head.root.segments)).pack
    memory = MemoryObjects()
    memory.objects = {key: data for key, data in whole.items() if key != keys.pack(root)}
    assert _repaired(world, memory, source).left == []


def test_all_packs_at_once(tmp_path: Path) -> None:
    """A store of one version that has lost all packs has them back from the directory, also after a
    repair from a directory that is another: it has forgotten nothing that this one needs."""
    world = World(tmp_path)
    source = world.source("files", a=b"a" * 9000, b=bytes(range(256)) * 900)
    (source / "c" / "d").mkdir(parents=True)
    (source / "c" / "d" / "e").write_bytes(b"e" * 700)
    world.push(source)
    memory = MemoryObjects()
    memory.objects = {k: v for k, v in world.memory.objects.items() if not k.startswith(keys.PACKS)}
    assert _repaired(world, memory, source).left == []
    assert verify(world.store.__class__(memory, world.store.settings), data=True).problems == []
    (source / "c" / "d" / "e").write_bytes(b"f" * 700)
    memory.objects = {k: v for k, v in world.memory.objects.items() if not k.startswith(keys.PACKS)}
    assert _repaired(world, memory, source).left
    assert memory.objects.keys() <= world.memory.objects.keys()
    (source / "c" / "d" / "e").write_bytes(b"e" * 700)
    assert _repaired(world, memory, source).left == []

"""``./run bench repair-each``: every object of a store of 200, lost and damaged in turn: whether a
repair names it, and from which sources it comes back.

The store is in memory, and the code is the real one. A node has read every file of every version;
its proxy serves from what its cache holds, over a store that has lost everything.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from loadtests.results import Result
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.composite import COMPOSITES, TABLES
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.objects.pack_locations import (
    PackLocations,
    locations_of,
)
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.repair.repair import RepairOptions, RepairResult, repair
from lodefs.chunkstore.repair.sources.local_sources import CacheSource, DirectorySource
from lodefs.chunkstore.repair.sources.proxy_source import ProxySource
from lodefs.chunkstore.repair.sources.source import RepairSource, StoreSource, listed_packs
from lodefs.chunkstore.repair.state_check import check_state
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store, open_store
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World
from tests.support.proxy.fake_node import start_proxy
from tests.support.proxy.rig import read_path

MERGED_PUSHES = 12
PUSHES = 24  # further pushes, whose packs are not merged
OBJECTS_MIN = 200
BELOW_BYTES = 1 << 20
A_YEAR_S = 365 * 24 * 3600
SOURCES = ("another store", "cache directory", "proxy", "original directory", "nothing")


@dataclass(frozen=True, slots=True)
class _Made:
    """The store, sources for its bytes, and the kind of each of its objects."""

    objects: dict[str, bytes]
    folder: Path
    proxy: str
    kinds: dict[str, str]
    now_s: float

    def damaged(self, key: str, *, lost: bool) -> MemoryObjects:
        memory = MemoryObjects()
        memory.objects = dict(self.objects)
        data = memory.objects.pop(key)
        if not lost:
            memory.objects[key] = bytes([data[0] ^ 0x81]) + data[1:]
        return memory

    def source(self, name: str, objects: PackLocations) -> list[RepairSource]:
        if name == "another store":
            whole = MemoryObjects("memory:whole")
            whole.objects = dict(self.objects)
            return [StoreSource(locations_of(whole))]
        if name == "cache directory":
            return [CacheSource(self.folder / "cache", ChunkingParams())]
        if name == "proxy":
            return [ProxySource(self.proxy, Client(parse_address(self.proxy), timeout_s=20))]
        if name == "original directory":
            listed = lambda: listed_packs(objects)  # noqa: E731
            return [DirectorySource(self.folder / "files", ChunkingParams(), listed)]
        return []

    def repaired(self, objects: PackLocations, source: str) -> RepairResult:
        options = RepairOptions(data=True, workers=1, clock=lambda: self.now_s)
        return repair(objects, self.source(source, objects), options)

    def is_whole(self, memory: MemoryObjects) -> bool:
        """Checks that nothing is wrong with it, and that its branch has not moved."""
        whole = MemoryObjects()
        whole.objects = dict(self.objects)
        there, before = _opened(memory), _opened(whole)
        if verify(there, data=True).problems or any(check_state(memory, lambda: self.now_s)):
            return False
        return there.resolve(REPO, "main") == before.resolve(REPO, "main")


def each(scratch: Path) -> Result:
    """Loses and damages each object, by kind; checks that it is named, and repaired by each
    source."""
    with one_at_a_time():
        world = _world(scratch)
        made = dict(world.memory.objects)
        trees = _tree_packs(world)
        kinds = {key: _kind(key, trees) for key in made}
        store = world.store

        @asynccontextmanager
        async def node() -> AsyncIterator[StoreNode]:
            opened = StoreNode(store, NodeSettings(CacheSettings(scratch / "cache", 256 << 20)))
            try:
                yield opened
            finally:
                await opened.close()

        asyncio.run(_read_all(node, world))
        for key in [key for key in made if key != keys.STORE]:
            del world.memory.objects[key]
        with start_proxy(node) as proxy:
            now_s = world.clock() + A_YEAR_S
            return _result(_Made(made, scratch, proxy.address, kinds, now_s))


def _result(made: _Made) -> Result:
    result = Result(f"repair-each: {len(made.objects)} objects, each lost and damaged in turn")
    result.add("objects", len(made.objects), at_least=OBJECTS_MIN)
    cases: Counter[str] = Counter()
    named: Counter[str] = Counter()
    healed: dict[str, Counter[str]] = {name: Counter() for name in SOURCES}
    left: list[str] = []
    for key, kind in made.kinds.items():
        for lost in (True, False):
            cases[kind] += 1
            for name in SOURCES:
                memory = made.damaged(key, lost=lost)
                found = made.repaired(locations_of(memory), name)
                if name == SOURCES[0]:
                    named[kind] += bool(found.findings)
                    if not found.findings:
                        left.append(f"not named: {key}, {'lost' if lost else 'damaged'}")
                healed[name][kind] += not found.left and made.is_whole(memory)
    for kind in sorted(cases):
        result.add(f"{kind}: cases", cases[kind])
        result.add(f"{kind}: named", named[kind] / cases[kind], "of them")
        for name in SOURCES:
            asked = 1.0 if name == "another store" else None
            share = healed[name][kind] / cases[kind]
            result.add(f"{kind}: whole again from {name}", share, "of them", at_least=asked)
    result.notes += left
    return result


def _world(scratch: Path) -> World:
    """Makes merged packs, separate packs, deleted branches, a tag and settings."""
    world = World(scratch)
    bits = Random(3)
    for n in range(MERGED_PUSHES + PUSHES):
        world.push(world.source("files", **{f"file{n}": bits.randbytes(3000 + n)}))
        world.hours += 2
        if n == MERGED_PUSHES - 1:
            world.collect(merge_below_bytes=BELOW_BYTES)
    for n in range(2):
        world.push(world.source(f"gone{n}", gone=b"%d" % n * 5000), "gone", "two")
        world.delete("gone")
        world.collect_all()
    for quota in (1 << 40, 1 << 41):
        log = world.store.settings_log(REPO)
        log.change(lambda now, quota=quota: replace(now, quota_size_bytes=quota))
    return world


async def _read_all(node, world: World) -> None:  # type: ignore[no-untyped-def]
    """Reads every file of every version, through a node."""
    async with node() as opened:
        store = world.store
        for commit_id in _commits(world):
            for path, entry in store.packs.walk(store.commit(REPO, commit_id).root):
                if entry.segments:
                    await read_path(opened, path, repo=REPO, rev=commit_id.hex())


def _opened(memory: MemoryObjects) -> Store:
    return open_store(locations_of(memory))


def _kind(key: str, trees: Collection[PackId]) -> str:
    pack_id = keys.pack_of(key)
    if pack_id is not None:
        return "tree pack" if pack_id in trees else "pack"
    if key.startswith("journal/"):
        return f"journal: {key.split('/')[1]}"
    for prefix, kind in (
        (keys.INDEX, "index shard"),
        (keys.settings(REPO), "settings of a repository"),
        (keys.commits(REPO), "commit"),
        (keys.REPOS, "ref entry"),
        (TABLES, "table of composites"),
        (COMPOSITES, "composite"),
    ):
        if key.startswith(prefix):
            return kind
    return key


def _commits(world: World) -> list[CommitId]:
    ids = [key.rpartition("/")[2] for key in world.memory.objects if "/commits/" in key]
    return [CommitId(bytes.fromhex(one)) for one in ids]


def _tree_packs(world: World) -> set[PackId]:
    roots = [world.store.commit(REPO, one).root for one in _commits(world)]
    return {segment.pack for root in roots for segment in root.segments}

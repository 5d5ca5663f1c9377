"""Every single object of a store, lost or damaged: it is named, and repaired by whatever has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.chunkstore.repair.repair import RepairOptions, RepairResult, repair
from lodefs.chunkstore.repair.sources.local_sources import CacheSource, DirectorySource
from lodefs.chunkstore.repair.sources.proxy_source import ProxySource
from lodefs.chunkstore.repair.sources.source import RepairSource, StoreSource, listed_packs
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import create_store, open_store
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World
from tests.support.proxy.fake_node import RunningProxy, start_proxy
from tests.support.proxy.rig import read_path

PUSHES = 14
# Some of these are lost without a trace: docs/decisions/0046 says which, and what follows
UNSEEN = ("journal/beats/", "journal/ends/", "journal/done/", "journal/ledger", keys.REMOVED_SHARDS)


@dataclass
class Years:
    """A store in memory that has been used for a while, and what else has its bytes."""

    objects: dict[str, bytes]
    directory: Path
    cache: Path
    proxy: RunningProxy
    newest_shards: set[str]

    def store(self, key: str, *, lost: bool) -> MemoryObjects:
        """The store without an object, or with another first byte of it."""
        memory = MemoryObjects()
        memory.objects = dict(self.objects)
        if lost:
            del memory.objects[key]
        else:
            data = memory.objects[key]
            memory.objects[key] = bytes([data[0] ^ 0x81]) + data[1:]
        return memory

    def source(self, kind: str, memory: MemoryObjects) -> list[RepairSource]:
        """A source of that kind, for a store."""
        if kind == "store":
            whole = MemoryObjects("memory:whole")
            whole.objects = dict(self.objects)
            return [StoreSource(whole)]
        if kind == "directory":
            return [DirectorySource(self.directory, ChunkingParams(), lambda: listed_packs(memory))]
        if kind == "proxy":
            reader = Client(parse_address(self.proxy.address), timeout_s=60)
            return [ProxySource(self.proxy.address, reader)]
        return [CacheSource(self.cache, ChunkingParams())] if kind == "cache" else []


@pytest.fixture(scope="module")
def years(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Years]:
    """Pushes of one more file each, a branch that went, and its collection."""
    folder = tmp_path_factory.mktemp("years")
    with one_at_a_time():
        world = World(folder)
        for n in range(PUSHES):
            world.push(world.source("files", **{f"file{n}": b"%d" % n * 3000}))
            world.hours += 2
        world.push(world.source("gone", gone=b"g" * 5000), "gone", "two")
        world.delete("gone")
        world.collect_all()
        made = dict(world.memory.objects)

        store = open_store(world.memory)

        @asynccontextmanager
        async def opened() -> AsyncIterator[StoreNode]:
            node = StoreNode(store, NodeSettings(CacheSettings(folder / "cache", 64 << 20)))
            try:
                yield node
            finally:
                await node.close()

        async def read_all() -> None:
            async with opened() as node:
                for n in range(PUSHES):
                    await read_path(node, b"file%d" % n, repo=REPO)

        asyncio.run(read_all())
        shards = {key for key in made if key.startswith(keys.INDEX)}
        for key in [key for key in made if key != keys.STORE]:  # the proxy has a cache, no more
            del world.memory.objects[key]
        with start_proxy(opened) as proxy:
            yield Years(made, folder / "files", folder / "cache", proxy, shards)


def repaired(
    years: Years, memory: MemoryObjects, source: str, *, dry_run: bool = False
) -> RepairResult:
    """One repair, a year later, of every byte."""
    options = RepairOptions(data=True, dry_run=dry_run, workers=1, clock=lambda: 1_800_000_000.0)
    return repair(memory, years.source(source, memory), options)


def test_nothing_is_wrong(years: Years) -> None:
    """A store of which nothing is lost is left as it is."""
    memory = MemoryObjects()
    memory.objects = dict(years.objects)
    found = repaired(years, memory, "store")
    assert found.findings == []
    assert (found.commits, memory.objects) == (PUSHES, years.objects)
    with pytest.raises(NotFound, match="is not a lodefs store"):
        repaired(years, MemoryObjects(), "store")


def test_what_a_push_left_is_no_damage(years: Years) -> None:
    """Packs that no shard lists and no version names stay as they are: gc deletes them."""
    memory, other = MemoryObjects(), MemoryObjects()
    Handmade(create_store(other)).commit(REPO, {b"sent": b"bytes of a push that was killed"})
    left = {key: made for key, made in other.objects.items() if key.startswith(keys.PACKS)}
    memory.objects = {**years.objects, **left}
    before = dict(memory.objects)
    assert left and left.keys().isdisjoint(years.objects)
    assert repaired(years, memory, "store").findings == []
    assert memory.objects == before


def _check(memory: MemoryObjects, years: Years, what: str) -> None:
    """The store is whole, its branch is where it was, and pushes and gc runs find nothing
    wrong with the journal."""
    store = open_store(memory)
    assert verify(store, data=True).problems == [], what
    newest = keys.ref_entry(REPO, "branches", "main", PUSHES - 1)
    whole = MemoryObjects()
    whole.objects = dict(years.objects)
    entry = store.refs(REPO).latest(BRANCHES, "main")
    before = open_store(whole).refs(REPO).latest(BRANCHES, "main")
    assert entry is not None and before is not None and newest in memory.objects, what
    assert (entry.commit, entry.sequence) == (before.commit, before.sequence), what


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "spoilt"])
def test_every_object_from_another_store(years: Years, lost: bool) -> None:
    """Each object in turn is named alone, and the repair leaves a store that is whole, in which
    another repair finds nothing; a dry run tells the same, and changes nothing."""
    assert len(years.objects) > 110
    seen = 0
    with one_at_a_time():
        for number, key in enumerate(years.objects):
            if key.startswith("journal/done/"):
                continue
            memory = years.store(key, lost=lost)
            before = dict(memory.objects)
            if number % 5 == 1:
                planned = repaired(years, memory, "store", dry_run=True)
                assert memory.objects == before, key
                assert planned.findings or (lost and key.startswith(UNSEEN)), key
            found = repaired(years, memory, "store")
            named = [one.key for one in found.findings]
            if lost and key.startswith(UNSEEN):
                if not named:
                    continue
                seen += 1
            if lost and key.startswith(keys.INDEX):
                assert named == [keys.INDEX], key
            else:
                assert named == [key]
            assert found.left == [], key
            assert all(one.concerns for one in found.findings), key
            _check(memory, years, key)
            if number % 5 == 0:
                assert repaired(years, memory, "store").findings == [], key
    assert seen == (PUSHES + 2 if lost else 0), "the ledger, and how all its writers ended"


@pytest.mark.parametrize("kind", ["directory", "cache", "proxy", "nothing"])
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "spoilt"])
def test_every_object_from_elsewhere(years: Years, lost: bool, kind: str) -> None:
    """From the files themselves, and from a node that has listed them, every pack of data
    is repaired, and the tree of the version that they are; without any source what the store tells
    of itself is. Older trees, and commits, are named, with their versions."""
    with one_at_a_time():
        whole = MemoryObjects()
        whole.objects = dict(years.objects)
        trees, newest = _tree_packs(years, whole)
        for number, key in enumerate(years.objects):
            is_content = key.startswith(keys.PACKS) or "/commits/" in key
            if (lost and key.startswith(UNSEEN)) or key.startswith("journal/done/"):
                continue
            # all else repairs without any source, and content alike
            if is_content == (kind == "nothing") and (number % 5 or not is_content):
                continue
            memory = years.store(key, lost=lost)
            found = repaired(years, memory, kind)
            is_data = key.startswith(keys.PACKS) and key not in trees
            has_it = (is_data or key in newest) and kind != "nothing"
            if has_it or not is_content:
                assert found.left == [], key
                _check(memory, years, key)
            else:
                assert key in [one.key for one in found.left]
                assert f"{REPO}@" in found.left[0].concerns[0]
                if is_data:
                    assert ":file" in found.left[0].concerns[0]


def _tree_packs(years: Years, memory: MemoryObjects) -> tuple[set[str], set[str]]:
    """The packs of the trees of all versions, and of the newest one."""
    store = open_store(memory)
    commits = [
        CommitId(bytes.fromhex(key.rpartition("/")[2]))
        for key in years.objects
        if "/commits/" in key
    ]

    def packs(commit_id: CommitId) -> set[str]:
        return {keys.pack(one.pack) for one in store.commit(REPO, commit_id).root.segments}

    return set().union(*map(packs, commits)), packs(store.resolve(REPO, "main"))

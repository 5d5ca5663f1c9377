"""Packs of trees that are lost, many at once: how often sources look for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, CommitId
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.repair.repair import RepairOptions, repair
from lodefs.chunkstore.repair.sources.proxy_source import ProxySource
from lodefs.chunkstore.repair.sources.source import NoStore, RepairSource, Search, StoreSource
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import REPO, World

PUSHES = 6


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Versions of a directory with one below it, both other ones each time."""
    with one_at_a_time():
        made = World(tmp_path)
        for n in range(PUSHES):
            made.source("files/below", file=b"%d" % n * 3000)
            made.push(made.source("files"))
        yield made


def _lose_trees(world: World) -> MemoryObjects:
    """A store that has what it has lost: all packs of trees."""
    whole = MemoryObjects("memory:whole")
    whole.objects = dict(world.memory.objects)
    store = world.store
    at: CommitId | None = store.resolve(REPO, "main")
    lost: set[str] = set()
    while at is not None:
        commit = store.commit(REPO, at)
        below = [one for one in store.packs.read_tree(commit.root) if one.kind is Kind.DIRECTORY]
        lost |= {keys.pack(one.pack) for entry in (commit.root, *below) for one in entry.segments}
        at = next(iter(commit.parents), None)
    for key in lost:
        del world.memory.objects[key]
    return whole


class _Chunks(NoStore):
    """Has chunks of a store, or nothing, and counts how often it looks for any."""

    url = "chunks"

    def __init__(self, below: RepairSource | None) -> None:
        self._below = below
        self.looks = 0

    def look(self, search: Search) -> None:
        self.looks += 1
        if self._below is not None:
            self._below.look(search)

    def chunks(self, wanted: Mapping[ChunkId, int]) -> Iterator[tuple[ChunkId, Buffer]]:
        return iter(()) if self._below is None else self._below.chunks(wanted)


def test_a_source_looks_once_for_all_of_a_level(world: World) -> None:
    """The trees of all commits come back by one search, and those below them by another."""
    source = _Chunks(StoreSource(_lose_trees(world)))
    result = repair(world.memory, [source], RepairOptions(clock=world.clock))
    assert len(result.findings) >= PUSHES
    assert result.left == []
    assert source.looks <= 2
    assert verify(world.store, data=True).problems == []


def test_what_nobody_has_is_looked_for_once(world: World) -> None:
    """A source without any of them searches once, and a node is asked once for each tree."""
    _lose_trees(world)
    source, node = _Chunks(None), _Node()
    sources: list[RepairSource] = [source, ProxySource("http://node", node)]
    result = repair(world.memory, sources, RepairOptions(clock=world.clock))
    assert len(result.left) >= PUSHES
    assert (source.looks, node.asked) == (1, PUSHES)


class _Node:
    """Knows nothing."""

    def __init__(self) -> None:
        self.asked = 0

    def tree(self, _repo: str, _rev: str, _path: bytes) -> Buffer:
        self.asked += 1
        raise NotFound("no r")

    def file_range(self, repo: str, rev: str, path: bytes, _first: int, _size: int) -> Buffer:
        return self.tree(repo, rev, path)

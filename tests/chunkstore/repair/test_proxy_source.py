"""A node's proxy as a source, by what it may answer."""

from __future__ import annotations

from random import Random

import pytest

from lodefs.chunkstore.errors import Corrupt, Denied, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.tree import encode_tree
from lodefs.chunkstore.repair.sources.proxy_source import FAILURES_MAX, ProxySource
from lodefs.chunkstore.repair.sources.source import Root, Search
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.handmade import Handmade, memory_store

FILES = {b"a": Random(1).randbytes(9500), b"d/b": Random(2).randbytes(5000), b"d/c": b"c" * 700}


class _Node:
    """Answers from a store that is whole, as far as it is not told otherwise."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: LodefsError | None = None
        self.together_max = 1 << 30  # more bytes than this are not in its cache
        self.damaged = False
        self.asked = 0

    def file_range(self, repo: str, rev: str, path: bytes, first: int, size_bytes: int) -> Buffer:
        self._count()
        if size_bytes > self.together_max:
            raise Corrupt("the store has lost it")
        data = FILES[path][first : first + size_bytes]
        return bytes(len(data)) if self.damaged else data

    def tree(self, repo: str, rev: str, path: bytes) -> Buffer:
        self._count()
        commit = self._store.commit(repo, self._store.resolve(repo, rev))
        packs = self._store.packs
        entry = next(
            one for at, one in [(b"", commit.root), *packs.walk(commit.root)] if at == path
        )
        (pack,) = {segment.pack for segment in entry.segments}
        return encode_tree(packs.read_tree(entry), own_pack=pack)

    def _count(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


def _searched() -> tuple[_Node, ProxySource, Search]:
    """A search for every chunk of a store, its trees too."""
    store = memory_store()
    commit_id = Handmade(store, pack_chunks=3).commit("r", FILES)
    commit = store.commit("r", commit_id)
    segments = {
        *commit.root.segments,
        *(one for _, entry in store.packs.walk(commit.root) for one in entry.segments),
    }
    packs = {one.pack: read_index(store.objects, one.pack).index for one in segments}
    wanted = {
        index.chunk_id(n): index.raw_sizes[n] for index in packs.values() for n in range(len(index))
    }
    node = _Node(store)
    search = Search(wanted, packs, lambda: [Root("r", commit_id, commit.root)])
    return node, ProxySource("http://node", node), search


def _found(source: ProxySource, search: Search) -> set[ChunkId]:
    source.look(search)
    return {chunk_id for chunk_id, _ in source.chunks(search.wanted)}


def test_all_chunks_of_files_and_trees() -> None:
    """Chunks that lie together come by one request; where the node lacks some, each alone."""
    node, source, search = _searched()
    assert _found(source, search) == search.wanted.keys()
    together = node.asked
    node.together_max = 1000
    assert _found(source, search) == search.wanted.keys()
    assert node.asked > 2 * together
    assert not source.notes


def test_bytes_that_are_others() -> None:
    """What does not match its id does not count."""
    node, source, search = _searched()
    node.damaged = True
    found = _found(source, search)
    node.damaged = False
    assert found
    assert found < _found(source, search)


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [(Unavailable("late"), True), (Denied("not for you"), True), (NotFound("no r"), False)],
)
def test_a_node_that_fails(error: LodefsError, is_noted: bool) -> None:
    """One that does not answer, or refuses, has nothing, and is not asked for ever; it is told."""
    node, source, search = _searched()
    source.look(search)
    node.error = error
    for _ in range(4):
        assert list(source.chunks(search.wanted)) == []
    assert (node.asked <= FAILURES_MAX + 3) is is_noted
    assert any(str(error) in note for note in source.notes) is is_noted

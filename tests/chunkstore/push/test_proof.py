"""Trees of others: the same chunks elsewhere are told from other chunks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.trees.tree_writer import has_same_chunks
from lodefs.chunkstore.repo.store import Store, create_store
from tests.adversary.hostile_repo import Claims, FileClaim, TreeClaim, lying_commit
from tests.support.chunkstore.directories import random_files
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.handmade import Files, Handmade, Program, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects

FILES: Files = {
    b"a": b"a" * 3000,
    b"d/b": b"bb" * 3000,
    b"d/e/f": b"c",
    b"d/empty": b"",
    b"g": Program(b"x"),
}


def root_of(store: Store, made: Handmade, files: Files) -> TreeEntry:
    return store.commit("r", made.commit("r", files)).root


def test_the_same_chunks_in_other_packs() -> None:
    """What another machine stored in packs of its own leads to the same chunks."""
    store = memory_store()
    own = root_of(store, Handmade(store), FILES)
    theirs = root_of(store, Handmade(store, pack_chunks=3), FILES)
    assert own.segments != theirs.segments
    assert has_same_chunks(store.packs, own, theirs)
    assert has_same_chunks(store.packs, own, own)


@pytest.mark.parametrize(
    "claims",
    [
        {b"a": FileClaim(b"x" * 3000)},
        {b"a": FileClaim(b"x" * 2000, stretched=True)},
        {b"d/e/f": FileClaim(b"x")},
        {b"d/e": TreeClaim({b"f": b"x"})},
        {b"": TreeClaim({b"f": b"x"})},
    ],
)
def test_other_chunks_are_told(claims: Claims) -> None:
    """A lie at any depth is told."""
    store = memory_store()
    own = root_of(store, Handmade(store, chunk_size_bytes=60_000), FILES)
    honest = store.commit("x", lying_commit(store, "x", FILES, {})).root
    assert has_same_chunks(store.packs, own, honest)
    lying = store.commit("x", lying_commit(store, "x", FILES, claims)).root
    assert lying.digest == own.digest
    assert not has_same_chunks(store.packs, own, lying)


def test_a_tree_that_cannot_be_read_is_no_proof() -> None:
    """Packs that are missing are no error, and lead nowhere."""
    store = memory_store()
    own = root_of(store, Handmade(store), FILES)
    theirs = root_of(store, Handmade(store, pack_chunks=3), FILES)
    store.objects.delete(keys.pack(theirs.segments[0].pack))
    assert not has_same_chunks(store.packs, own, theirs)


def test_two_machines_that_store_apart_do_not_outdo_each_other(tmp_path: Path) -> None:
    """Two machines whose chunks of one directory lie in different packs push it in turn: there is
    one commit, and after the first comparison nothing more is written or compared."""
    objects = FaultyObjects(MemoryObjects())
    store, source = create_store(objects), tmp_path / "source"
    random_files(source, files=30, size_bytes_max=50_000)

    def machine(index: str, part: str = "", repo: str = "r") -> PushResult:
        later = lambda: time.time_ns() + 3600 * 10**9  # noqa: E731
        options = PushOptions("", "", 0, tmp_path / index, workers=0, clock_ns=later)
        return push(store, source / part, repo, "main", options)

    first = machine("one")
    for info in list(store.objects.list(keys.INDEX)):
        store.objects.delete(info.key)  # the other machine does not know what is there
    machine("two", "d3", "apart")
    objects.forget()
    assert machine("two").commit == first.commit
    assert objects.count("put", keys.PACKS)  # trees that say where it has the chunks
    objects.forget()
    again = machine("two")
    assert (again.unchanged, again.files_read, again.commit) == (True, 0, first.commit)
    assert objects.count("put") == objects.count("get", keys.PACKS) == 0

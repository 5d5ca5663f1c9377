"""tree_walk.py: every directory that is new is read once, several at a time, and none is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from lodefs.chunkstore.errors import Corrupt, NotFound, Unavailable
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.repo import entry_set
from lodefs.chunkstore.repo.entry_set import EntrySet
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.repo.tree_walk import AHEAD, Place, walk, walk_trees
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects

FILES = {
    b"a/one/x": b"x" * 300,
    b"a/two/y": b"y" * 300,
    b"b/one/x": b"x" * 300,  # the same directory as a/one
    b"z": b"z" * 300,
}


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def store() -> Store:
    made = Handmade(create_store(MemoryObjects()))
    made.commit("r", FILES)
    return made.store


def root_of(store: Store) -> Place[str]:
    commit_id = store.resolve("r", "main")
    return Place("r", b"", store.commit("r", commit_id).root)


def test_parents_come_first_with_every_path(store: Store, executor: ThreadPoolExecutor) -> None:
    """Without a condition equal directories come at each of their paths, each after its parent."""
    trees = list(walk_trees(store.packs, [root_of(store)], executor))
    paths = [tree.node.path for tree in trees]
    assert sorted(paths) == [b"", b"a", b"a/one", b"a/two", b"b", b"b/one"]
    assert all(paths.index(path.rpartition(b"/")[0]) < paths.index(path) for path in paths if path)
    assert [entry.name for entry in trees[0].content] == [b"a", b"b", b"z"]
    assert {tree.node.root for tree in trees} == {"r"}


def test_what_is_not_new_is_not_read(store: Store, executor: ThreadPoolExecutor) -> None:
    """With a set of what was met, shared directories and roots come once, over several walks."""
    root = root_of(store)
    with EntrySet() as seen:

        def paths() -> list[bytes]:
            trees = walk_trees(
                store.packs, [root, root], executor, lambda place: seen.add(place.entry)
            )
            return sorted(tree.node.path for tree in trees)

        assert paths() == [b"", b"a", b"a/one", b"a/two", b"b"]
        assert paths() == []


def test_a_bad_tree_is_handed_out_and_never_empty(executor: ThreadPoolExecutor) -> None:
    """A directory that cannot be read comes with its error, which who takes its content gets; the
    others come too."""

    def read(node: str) -> tuple[str, Sequence[str]]:
        if node == "lost":
            raise NotFound(node)
        if node == "bad":
            raise Corrupt(node)
        return node.upper(), ["lost", "bad", "good"] if node == "root" else []

    trees = {tree.node: tree for tree in walk(read, ["root"], executor, lambda _: True)}
    assert trees["good"].content == "GOOD"
    assert isinstance(trees["lost"].error, NotFound)
    for bad, error in (("lost", NotFound), ("bad", Corrupt)):
        with pytest.raises(error, match=bad):
            _ = trees[bad].content


def test_a_store_that_does_not_answer_ends_the_walk(executor: ThreadPoolExecutor) -> None:
    """That is no fault of a tree, so nobody may go on as if it were."""

    def read(_node: str) -> tuple[str, Sequence[str]]:
        raise Unavailable("later")

    with pytest.raises(Unavailable, match="later"):
        list(walk(read, ["root"], executor, lambda _: True))


def test_reads_run_at_once_and_memory_is_bounded() -> None:
    """All threads read at the same time, and however wide a tree is, AHEAD directories at most are
    read before the first of them was looked at."""
    together = threading.Barrier(4)
    read_by_now: list[int] = []

    def read(node: int) -> tuple[int, Sequence[int]]:
        read_by_now.append(node)
        if 0 < node <= 4:
            together.wait(10)  # breaks unless four threads come
        return node, range(1, 1000) if node == 0 else ()

    with ThreadPoolExecutor(4) as executor:
        trees = walk(read, [0], executor, lambda _: True)
        assert [next(trees).node, next(trees).node] == [0, 1]
        assert len(read_by_now) <= AHEAD + 2
        assert [tree.node for tree in trees] == list(range(2, 1000))


def test_roots_are_taken_as_they_are_needed(executor: ThreadPoolExecutor) -> None:
    """A long history is not read before its first trees were looked at."""
    taken: list[int] = []

    def roots() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    trees = walk(lambda node: (node, ()), roots(), executor, lambda _: True)
    next(trees)
    assert len(taken) <= AHEAD + 1
    assert len(list(trees)) == 999


def test_an_early_end_cancels_what_is_not_begun() -> None:
    """Who has seen enough does not wait for directories that nobody looks at."""
    go_on = threading.Event()
    read_by_now: list[int] = []

    def read(node: int) -> tuple[int, Sequence[int]]:
        read_by_now.append(node)
        assert node == 0 or go_on.wait(10)
        return node, ()

    with ThreadPoolExecutor(1) as executor:
        trees = walk(read, range(50), executor, lambda _: True)
        next(trees)
        trees.close()  # type: ignore[attr-defined]
        go_on.set()
    assert len(read_by_now) <= 2


@pytest.mark.parametrize("in_memory_max", [1, 7, 10**6])
def test_a_set_of_entries_is_a_set(
    store: Store, monkeypatch: pytest.MonkeyPatch, in_memory_max: int
) -> None:
    """Each content in each place is new once, in memory and in temporary files; a name does not
    count, a size does."""
    monkeypatch.setattr(entry_set, "IN_MEMORY_MAX", in_memory_max)
    rng, entry = Random(1), root_of(store).entry
    entries = [TreeEntry(b"n", entry.kind, size_bytes=n, digest=entry.digest) for n in range(40)]
    asked = rng.choices(entries, k=300)
    known: set[int] = set()
    with EntrySet() as seen:
        for one in asked:
            other = TreeEntry(
                b"%d" % rng.randrange(9), one.kind, size_bytes=one.size_bytes, digest=one.digest
            )
            assert (other in seen) is (one.size_bytes in known)
            assert seen.add(other) is (one.size_bytes not in known)
            known.add(one.size_bytes)

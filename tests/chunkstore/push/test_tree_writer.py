"""The trees of a push: which are stored, and that they find each other."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.push import source_directory
from lodefs.chunkstore.push.push import PushOptions, PushResult, push
from lodefs.chunkstore.push.trees import tree_writer
from lodefs.chunkstore.repo.checks.verify import verify
from lodefs.chunkstore.repo.store import Store, create_store
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.directories import in_commit, in_directory, remove, write_files
from tests.support.chunkstore.faulty_store import FaultyObjects
from tests.support.chunkstore.memory_objects import MemoryObjects

SMALL_CHUNKS = ChunkingParams(64, 256, 1024)


class Trees:
    """A store of small chunks, and a source."""

    def __init__(self, base: Path, params: ChunkingParams = SMALL_CHUNKS) -> None:
        self.objects = FaultyObjects(MemoryObjects())
        self.store: Store = create_store(self.objects, params)
        self.source = base / "source"
        self.source.mkdir()
        self._index_dir = base / "index"

    def push(self, index: str = "") -> PushResult:
        options = PushOptions(
            message="",
            author="",
            time_s=0,
            index_dir=self._index_dir / index,
            workers=0,
            clock_ns=lambda: time.time_ns() + 3600 * 10**9,
        )
        self.objects.forget()
        return push(self.store, self.source, "r", "main", options)

    def assert_sound(self, result: PushResult) -> None:
        assert in_commit(self.store, "r", result.commit) == in_directory(self.source)
        assert verify(self.store, None, data=True, progress=Progress()).problems == []

    def packs_put(self) -> int:
        return self.objects.count("put", keys.PACKS)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


@pytest.fixture
def tiny_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tree packs so small that a few trees fill one."""
    monkeypatch.setattr(source_directory, "TREE_PACK_SIZES_BYTES", (2000,))


@pytest.mark.usefixtures("tiny_packs")
def test_trees_in_many_packs_find_each_other(trees: Trees) -> None:
    """A tree names the packs of its directories, whether they lie with it or in earlier packs."""
    write_files(
        trees.source,
        {
            f"a{n}/b{m}/c{k}/f": b"%d" % (n * m * k)
            for n in range(14)
            for m in (1, 2)
            for k in (1, 2)
        },
    )
    result = trees.push()
    assert trees.packs_put() > 3
    trees.assert_sound(result)
    write_files(trees.source, {"a3/b1/c1/f": b"changed", "a3/b1/new": b""})
    trees.assert_sound(trees.push())


def test_a_tree_over_the_limit_names_all_packs(
    trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large tree with directories in the open pack closes that pack first."""
    monkeypatch.setattr(tree_writer, "WHOLE_SIZE_BYTES_MAX", 1000)
    write_files(trees.source, {f"file{n:04d}": b"%d" % n for n in range(100)})
    write_files(trees.source, {f"d{n}/f": b"%d" % n for n in range(10)})
    result = trees.push()
    assert trees.packs_put() == 3  # data; trees of the directories; the root's tree
    trees.assert_sound(result)


def test_a_change_in_a_large_directory_costs_a_few_chunks(trees: Trees) -> None:
    """Of the tree of a large directory only the changed chunks are stored again, also where it
    holds directories."""
    write_files(trees.source, {f"large/file{n:05d}": b"%d" % n for n in range(3000)})
    first = trees.push()
    write_files(trees.source, {"large/file01234": b"changed"})
    second = trees.push()
    trees.assert_sound(second)
    assert second.stored_bytes < first.stored_bytes / 10


def test_equal_directories_are_stored_once(trees: Trees) -> None:
    """A directory that is there many times has one tree."""
    write_files(trees.source, {f"d{n}/same/deeper/f": b"x" for n in range(30)})
    result = trees.push()
    trees.assert_sound(result)
    root = trees.store.commit("r", trees.store.resolve("r", "main")).root
    places = {entry.segments for path, entry in trees.store.packs.walk(root) if b"/" not in path}
    assert len(places) == 1
    assert result.stored_bytes < 4000


def test_an_empty_directory_beside_files(trees: Trees) -> None:
    """Empty directories have a tree of their own, the same for all of them."""
    for name in ("a", "b/c", "d"):
        (trees.source / name).mkdir(parents=True)
    write_files(trees.source, {"b/file": b"1"})
    trees.assert_sound(trees.push())


@pytest.mark.usefixtures("tiny_packs")
def test_without_an_index_the_head_is_searched(trees: Trees) -> None:
    """A machine that never saw the branch reads trees of the head only where something changed,
    and stores only those."""
    write_files(trees.source, {f"a{n}/b{m}/f": b"%d" % n for n in range(12) for m in range(12)})
    trees.push()
    write_files(trees.source, {"a5/b5/f": b"changed"})
    result = trees.push("another machine")
    assert result.stored_bytes < 8000
    trees.assert_sound(result)
    write_files(trees.source, {"a6/b6/f": b"changed"})
    result = trees.push("another machine")
    assert result.stored_bytes < 8000
    trees.assert_sound(result)


names = st.sampled_from(["a", "b", "c", "a-", "a.b", "\udcff"])
contents = st.sampled_from([b"", b"x", b"y" * 300, bytes(5000), b"z" * 2000 + b"tail"])
directories = st.recursive(
    st.dictionaries(names, contents, max_size=4),
    lambda below: st.dictionaries(names, st.one_of(contents, below), max_size=4),
    max_leaves=12,
)


def make(root: Path, tree: dict[str, object]) -> None:
    """Makes ``root`` a directory that holds ``tree``."""
    if root.exists():
        remove(root)
    root.mkdir()
    for name, value in tree.items():
        if isinstance(value, bytes):
            (root / name).write_bytes(value)
        elif isinstance(value, dict):
            make(root / name, value)


@pytest.mark.slow
@settings(max_examples=40)
@given(versions=st.lists(directories, min_size=1, max_size=4), fresh=st.booleans())
def test_any_directory_in_any_versions(versions: list[dict[str, object]], fresh: bool) -> None:
    """Whatever a directory holds and becomes: each commit holds just that, with the machine's
    index or without."""
    with TemporaryDirectory() as name:
        trees = Trees(Path(name))
        for number, version in enumerate(versions):
            make(trees.source, version)
            result = trees.push(str(number) if fresh else "")
            trees.assert_sound(result)
            assert trees.push().unchanged

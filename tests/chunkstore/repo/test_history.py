"""history.py: commits, directories, differences."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.tree import Kind, symlink
from lodefs.chunkstore.repo.history import (
    NAMES_MAX,
    Change,
    ChangeKind,
    blame,
    diff,
    find,
    has_directory,
    listing,
    log,
    names_of_commits,
)
from lodefs.chunkstore.repo.store import Store
from tests.support.chunkstore.handmade import Files, Handmade, Link, Program, memory_store
from tests.support.chunkstore.memory_objects import MemoryObjects

OLD: Files = {
    b"same/deep/file": b"1",
    b"same/other": b"2",
    b"gone/a": b"3",
    b"gone/b/c": b"4",
    b"changed": b"old",
    b"made-executable": b"5",
    b"file-then-directory": b"6",
    b"directory-then-link/x": b"7",
    b"link": Link(b"one"),
}
NEW: Files = {
    b"same/deep/file": b"1",
    b"same/other": b"2",
    b"changed": b"newer",
    b"made-executable": Program(b"5"),
    b"file-then-directory/y": b"6",
    b"directory-then-link": Link(b"same"),
    b"link": Link(b"two"),
    b"new": b"",
}


@pytest.fixture
def store() -> Store:
    """Two commits of the repository r: OLD, tagged old, and NEW, the branch main."""
    store = memory_store()
    made = Handmade(store, pack_chunks=1)  # so that every tree lies in an object of its own
    old = made.commit("r", OLD, message="old")
    store.refs("r").advance("tags", "old", old, expected_sequence=None)
    made.commit("r", NEW, message="new")
    return store


def changes(store: Store, before: Spec, after: Spec) -> list[Change]:
    """The differences of two places."""
    return list(diff(store, find(store, before), find(store, after)))


def test_log_is_newest_first(store: Store) -> None:
    """log goes from the newest commit to the first."""
    assert [commit.message for _, commit in log(store, "r", "main")] == ["new", "old"]
    assert [commit.message for _, commit in log(store, "r", "old")] == ["old"]
    with pytest.raises(NotFound):
        next(log(store, "r", "none"))


def test_log_goes_through_all_children_first(store: Store) -> None:
    """A commit comes after all that were made on it, also of commits of one second."""

    def commit(message: str, *parents: CommitId, time_s: int = 9) -> CommitId:
        one = store.commit("r", store.resolve("r", "main"))
        return store.put_commit(
            "r", dataclasses.replace(one, parents=parents, message=message, time_s=time_s)
        )

    root = commit("root")
    short = commit("short", root)
    long = commit("long 2", commit("long 1", commit("long 0", root)))
    merge = commit("merge", short, long)
    found = [one.message for _, one in log(store, "r", merge.hex())]
    assert (found[0], found[-1], len(found)) == ("merge", "root", 6)
    slow = commit("a clock that is late", root, time_s=1)
    both = commit("both", merge, slow, time_s=10)
    found = [one.message for _, one in log(store, "r", both.hex())]
    assert (found[0], len(found), len({*found})) == ("both", 8, 8)
    found = [one.message for _, one in log(store, "r", both.hex(), first_parent=True)]
    assert found == ["both", "merge", "short", "root"]


def test_names_of_commits(store: Store) -> None:
    """Branches and tags by the commit that they are at, and whether these are all."""
    old, new = store.resolve("r", "old"), store.resolve("r", "main")
    for number in range(NAMES_MAX - 1):
        store.refs("r").advance("tags", f"t{number:03}", new, expected_sequence=None)
    found, are_all = names_of_commits(store, Spec("r"))
    assert (found[old], found[new].branches, len(found[new].tags)) == (([], ["old"]), ["main"], 99)
    assert are_all
    store.refs("r").advance("tags", "t999", new, expected_sequence=None)
    assert not names_of_commits(store, Spec("r"))[1]


def test_find(store: Store) -> None:
    """find gives the entry at a path, however the path is written."""
    assert find(store, Spec("r")).kind is Kind.DIRECTORY
    assert find(store, Spec("r", path=b"same/deep")).name == b"deep"
    assert find(store, Spec("r", path=b"same//./deep/file")).size_bytes == 1
    assert find(store, Spec("r", path=b"link")).target == b"two"


def test_find_says_which_part_is_missing(store: Store) -> None:
    """Errors name the first part of the path that does not exist or is no directory."""
    with pytest.raises(NotFound, match="r@main:same/none does not exist"):
        find(store, Spec("r", path=b"same/none/x"))
    with pytest.raises(NotADirectory, match="r@main:changed is a file, not a directory"):
        find(store, Spec("r", path=b"changed/x"))
    with pytest.raises(NotADirectory, match="r@main:link is a symlink"):
        find(store, Spec("r", path=b"link/x"))


def test_has_directory(store: Store) -> None:
    """It knows directories from files, symlinks, and paths of which some part is not there."""
    directories = [b"", b"same", b"same//./deep"]
    others = [b"same/other", b"link", b"none", b"same/none/x", b"changed/x", b"link/x"]
    for path in directories + others:
        assert has_directory(store, Spec("r", path=path)) == (path in directories)
    with pytest.raises(NotFound):
        has_directory(store, Spec("r", "none"))


@pytest.mark.parametrize("path", [b"..", b"same/../../x", b"a\0b", b"n" * 256])
def test_find_refuses_what_is_no_path(store: Store, path: bytes) -> None:
    """Paths that leave the snapshot or cannot be names are malformed."""
    with pytest.raises(InvalidInput):
        find(store, Spec("r", path=path))


def test_listing(store: Store) -> None:
    """listing gives children by name, all that lies below with paths, or a file alone."""
    names = [path for path, _ in listing(store, Spec("r", path=b"same"))]
    assert names == [b"deep", b"other"]
    below = [path for path, _ in listing(store, Spec("r", path=b"same"), recursive=True)]
    assert below == [b"deep", b"deep/file", b"other"]
    assert [path for path, _ in listing(store, Spec("r", path=b"same/other"))] == [b"other"]


def test_diff_tells_every_kind_of_change(store: Store) -> None:
    """Added, removed and changed entries and changes of type come by path."""
    found = [(c.what, c.path) for c in changes(store, Spec("r", "old"), Spec("r"))]
    assert found == [
        (ChangeKind.CHANGED, b"changed"),
        (ChangeKind.TYPE_CHANGED, b"directory-then-link"),
        (ChangeKind.REMOVED, b"directory-then-link/x"),
        (ChangeKind.TYPE_CHANGED, b"file-then-directory"),
        (ChangeKind.ADDED, b"file-then-directory/y"),
        (ChangeKind.REMOVED, b"gone"),
        (ChangeKind.REMOVED, b"gone/a"),
        (ChangeKind.REMOVED, b"gone/b"),
        (ChangeKind.REMOVED, b"gone/b/c"),
        (ChangeKind.CHANGED, b"link"),
        (ChangeKind.CHANGED, b"made-executable"),
        (ChangeKind.ADDED, b"new"),
    ]


def test_diff_has_both_entries(store: Store) -> None:
    """A change holds what was there and what is there."""
    first = changes(store, Spec("r", "old"), Spec("r"))[0]
    assert first.before is not None
    assert first.after is not None
    assert (first.before.size_bytes, first.after.size_bytes) == (3, 5)


def test_diff_of_equals(store: Store) -> None:
    """A revision does not differ from itself, nor two places with the same content."""
    assert changes(store, Spec("r"), Spec("r")) == []
    assert changes(store, Spec("r", "old", b"same"), Spec("r", path=b"same")) == []


def test_diff_of_two_files(store: Store) -> None:
    """Two files differ as one change."""
    found = changes(store, Spec("r", "old", b"changed"), Spec("r", path=b"changed"))
    assert [c.what for c in found] == [ChangeKind.CHANGED]


def test_diff_does_not_read_equal_directories(store: Store) -> None:
    """Trees that both sides have are not read: they may be missing."""
    objects = store.objects
    assert isinstance(objects, MemoryObjects)
    same = find(store, Spec("r", path=b"same"))
    for segment in same.segments:
        del objects.objects[keys.pack(segment.pack)]
    assert len(changes(store, Spec("r", "old"), Spec("r"))) == 12


def test_diff_of_a_deep_tree() -> None:
    """A tree deeper than Python's stack differs without an error."""
    store = memory_store()
    made = Handmade(store, pack_chunks=5000)
    for branch in ("a", "b"):
        entry = symlink(b"link", branch.encode())
        for _ in range(1500):
            entry = made.tree(b"d", [entry])
        made.commit_root("deep", replace(entry, name=b""), branch=branch)
    found = changes(store, Spec("deep", "a"), Spec("deep", "b"))
    assert [c.path for c in found] == [b"d/" * 1499 + b"link"]


def test_blame_ends_where_its_caller_says() -> None:
    """Before each tree and each commit is read, the caller is asked; what was found is given."""
    store = memory_store()
    made = Handmade(store)
    for n in range(4):
        made.commit("r", {b"d/old": b"old", b"d/new": b"%d" % n}, message=f"{n}")
    asked: list[int] = []

    def found(most: int) -> dict[bytes, str]:
        asked.clear()
        spec = Spec("r", "main", b"d")
        walk = blame(store, spec, goes_on=lambda size: asked.append(size) or len(asked) <= most)
        return {one.path: one.commit.message for one in walk}

    assert found(1000) == {b"d/new": "3", b"d/old": "0"}
    assert asked.count(0) == 4
    assert min(size for size in asked if size) > 20
    total = len(asked)
    assert found(total - 1) == {b"d/new": "3"}
    assert found(0) == {}
    assert len(asked) == 1

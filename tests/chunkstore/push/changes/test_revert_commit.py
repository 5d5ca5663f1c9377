"""Reverts: what a commit has changed is taken back, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Diverged, InvalidInput, NotFound
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.changes.change import Put, Remove, Rename
from lodefs.chunkstore.push.changes.merge_branch import merge_branch
from lodefs.chunkstore.push.changes.revert_commit import revert_commit
from tests.support.chunkstore.branches import Branches


@pytest.fixture
def branches(tmp_path: Path) -> Branches:
    """Two commits: a, b and d/e come, then a changes, b is c, and d/f comes."""
    made = Branches(tmp_path)
    made.change(Put("a", b"a"), Put("b", b"b"), Put("d/e", b"e"), time_s=1)
    made.change(Put("a", b"aa"), Rename("b", "c"), Put("d/f", b"f"), time_s=2)
    return made


def reverted(
    branches: Branches, rev: str, on: str = "main", parent: int | None = None
) -> ChangesResult:
    at = branches.store.resolve("r", rev)
    return revert_commit(branches.store, "r", on, at, branches.options(time_s=9), parent=parent)


def test_the_last_commit(branches: Branches) -> None:
    """Its parent's content is there again, on top of it; reverted again nothing changes."""
    was = branches.head()
    result = reverted(branches, "main")
    assert branches.files(result.commit) == {b"a": b"a", b"b": b"b", b"d/e": b"e"}
    assert branches.head().root.digest == branches.store.commit("r", was.parents[0]).root.digest
    assert (branches.head().files, branches.head().size_bytes) == (3, 3)
    assert reverted(branches, "main~1").unchanged
    branches.assert_sound()


def test_one_before_others(branches: Branches) -> None:
    """What came since stays, if it is elsewhere; a revert is reverted as any commit."""
    branches.change(Put("d/g", b"g"), Remove("d/e"), time_s=3)
    result = reverted(branches, "main~1")
    assert branches.files(result.commit) == {b"a": b"a", b"b": b"b", b"d/g": b"g"}
    back = reverted(branches, "main")
    assert branches.files(back.commit) == {b"a": b"aa", b"c": b"b", b"d/f": b"f", b"d/g": b"g"}


def test_conflicts_are_named_and_nothing_is_committed(branches: Branches) -> None:
    """A path that was changed again since is named, with a way out."""
    branches.change(Put("a", b"aaa"), time_s=3)
    before = branches.store.resolve("r", "main")
    with pytest.raises(Diverged, match=r"changed a: nothing was committed.*lodefs cp"):
        reverted(branches, "main~1")
    assert branches.store.resolve("r", "main") == before


def test_the_first_commit(branches: Branches) -> None:
    """What it brought goes; what later commits made of that is in its way."""
    with pytest.raises(Diverged, match="changed a, d: nothing"):
        reverted(branches, "main~1")
    branches.store.refs("r").advance(
        "branches", "dev", branches.store.resolve("r", "main~1"), expected_sequence=None
    )
    result = reverted(branches, "dev", on="dev")
    assert (branches.files(result.commit), result.changes.removed_files) == ({}, 3)


def test_a_merge(branches: Branches) -> None:
    """It has to be said which parent the branch goes back to."""
    branches.store.refs("r").advance(
        "branches", "dev", branches.store.resolve("r", "main"), expected_sequence=None
    )
    branches.change(Put("dev", b"1"), on="dev", time_s=3)
    branches.change(Put("main", b"2"), time_s=3)
    dev = branches.store.resolve("r", "dev")
    merge_branch(branches.store, "r", "main", dev, branches.options(time_s=4))
    with pytest.raises(InvalidInput, match=rf"is a merge: .*--parent .*2 is {dev.hex()[:12]}"):
        reverted(branches, "main")
    with pytest.raises(InvalidInput, match="has no parent 3"):
        reverted(branches, "main", parent=3)
    assert b"dev" not in branches.files(reverted(branches, "main", parent=1).commit)
    files = branches.files(reverted(branches, "main~1", parent=2).commit)
    assert (b"dev" in files, b"main" in files) == (False, False)


def test_no_such_branch(branches: Branches) -> None:
    """A tag or a new name is no branch to commit to."""
    for name in ("nope", branches.store.resolve("r", "main").hex()[:12]):
        with pytest.raises(NotFound, match=f"no branch.* {name}"):
            reverted(branches, "main", on=name)

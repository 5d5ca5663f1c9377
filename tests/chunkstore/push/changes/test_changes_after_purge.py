"""Changes and merges in a store in which something was purged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Purged
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.push.changes.change import Change, CopyFrom, Put, Remove, Rename
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.changes.merge_branch import merge_branch
from tests.chunkstore.push.changes.test_merge_branch import commit_of
from tests.support.chunkstore.branches import Branches

SECRET = b"secret" * 30


@pytest.fixture
def branches(tmp_path: Path) -> Branches:
    """main has kept files and one that was purged; dev is the same and one file more."""
    made = Branches(tmp_path)
    files = {"a": b"a", "b": b"b", "d/secret": SECRET, "d/e": b"e" * 50}
    first = made.change(*(Put(path, data) for path, data in files.items()), time_s=1).commit
    made.store.refs("r").advance("branches", "dev", commit_of(first), expected_sequence=None)
    made.change(Put("more", b"more"), on="dev", time_s=2)
    purge(made.store, plan_path(made.store, "r", b"d/secret"))
    return made


CHANGES: list[Change] = [
    Rename("a", "c"),
    Rename("d/secret", "was"),
    Put("b", b"new"),
    Put("d/e", b"new"),
    CopyFrom("r@dev:more", "copy"),
    CopyFrom("r@dev:d/secret", "again"),
    Remove("c"),
    Remove("was"),
]


@pytest.mark.parametrize("machine", ["index", "another"])
def test_small_changes_go_through(branches: Branches, machine: str) -> None:
    """In any repository, on the machine that pushed what was purged and on another one."""
    options = branches.options(index_dir=branches.base / machine)
    for change in CHANGES:
        before = branches.head()
        assert not commit_changes(branches.store, "r", "main", [change], options).unchanged
        assert branches.head().root != before.root
    commit_changes(branches.store, "other", "main", [Put("x", b"x")], options)


@pytest.mark.parametrize("machine", ["index", "another"])
def test_small_content_is_refused(branches: Branches, machine: str) -> None:
    """Bytes that were purged are not stored again, however few they are."""
    options = branches.options(index_dir=branches.base / machine)
    with pytest.raises(Purged, match="d/secret"):
        commit_changes(branches.store, "other", "main", [Put("x", SECRET)], options)


def test_merges_go_through(branches: Branches) -> None:
    """A merge of branches that both have the purged file."""
    branches.change(Remove("a"), time_s=3)
    other = branches.store.resolve("r", "dev")
    merge_branch(branches.store, "r", "main", other, branches.options(time_s=4))
    tree = {path for path, _ in branches.store.packs.walk(branches.head().root)}
    assert {b"b", b"more", b"d/secret", b"d/e"} <= tree
    assert b"a" not in tree

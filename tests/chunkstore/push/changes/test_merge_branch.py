"""Merges by trees, and which commit brought what a path has."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Diverged, NotFound
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.changes.change import CopyFrom, Put, Remove, Rename
from lodefs.chunkstore.push.changes.merge_branch import common_ancestor, merge_branch
from lodefs.chunkstore.push.changes.three_way import Choices
from lodefs.chunkstore.push.limits import Changes
from lodefs.chunkstore.repo.history import blame, log
from tests.support.chunkstore.branches import Branches


@pytest.fixture
def branches(tmp_path: Path) -> Branches:
    """main with a, b and d/e, and dev at the same commit."""
    made = Branches(tmp_path)
    first = made.change(Put("a", b"a"), Put("b", b"b"), Put("d/e", b"e"), time_s=1).commit
    made.store.refs("r").advance("branches", "dev", commit_of(first), expected_sequence=None)
    return made


def commit_of(text: str) -> CommitId:
    return CommitId(bytes.fromhex(text))


def merged(
    branches: Branches, rev: str = "dev", into: str = "main", choices: Choices | None = None
) -> ChangesResult:
    other = branches.store.resolve("r", rev)
    options = branches.options(time_s=9)
    return merge_branch(branches.store, "r", into, other, options, choices=choices)


def blamed(branches: Branches, path: bytes) -> dict[bytes, int]:
    """The time of the commit that brought each path."""
    return {one.path: one.commit.time_s for one in blame(branches.store, Spec("r", "main", path))}


def test_disjoint_changes_come_together(branches: Branches) -> None:
    """The merge has both sides' changes and both parents; merged again there is nothing to do."""
    branches.change(Put("d/new", b"n"), Rename("b", "c"), on="dev", time_s=2)
    branches.change(Put("a", b"aa"), Put("d/f", b"f"), time_s=3)
    sides = [branches.store.resolve("r", name) for name in ("main", "dev")]
    result = merged(branches)
    assert branches.files(result.commit) == {
        b"a": b"aa", b"c": b"b", b"d/e": b"e", b"d/f": b"f", b"d/new": b"n"
    }  # fmt: skip
    assert list(branches.head().parents) == sides
    assert result.changes == Changes(2, 2, 0, 0, 1, 1)
    assert branches.head().files == 5
    assert merged(branches).unchanged
    assert blamed(branches, b"") == {b"a": 3, b"c": 2, b"d": 9}
    assert blamed(branches, b"d") == {b"d/e": 1, b"d/new": 2, b"d/f": 3}
    branches.assert_sound()


def test_a_log_has_what_a_merge_brought(branches: Branches) -> None:
    """All commits that led there, each once; or along first parents."""
    branches.change(Put("d/new", b"n"), on="dev", time_s=2)
    branches.change(Put("a", b"aa"), time_s=3)
    merged(branches)

    def times(*, first_parent: bool) -> list[int]:
        found = log(branches.store, "r", "main", first_parent=first_parent)
        return [commit.time_s for _, commit in found]

    assert times(first_parent=False) == [9, 3, 2, 1]
    assert times(first_parent=True) == [9, 3, 1]


def test_conflicts_are_named_and_nothing_is_committed(branches: Branches) -> None:
    """Changed twice, removed and changed, a file where the other made a directory; the same change
    on both sides is none."""
    branches.change(
        Put("a", b"1"), Remove("b"), Put("x/y", b"x"), Put("same", b"s"), on="dev", time_s=2
    )
    head = branches.change(Put("a", b"2"), Put("b", b"3"), Put("x", b"x"), Put("same", b"s")).commit
    with pytest.raises(Diverged, match=r"both sides changed a, b, x: nothing.* --ours PATH"):
        merged(branches)
    assert branches.store.resolve("r", "main").hex() == head


def test_conflicts_are_decided_by_what_is_chosen(branches: Branches) -> None:
    """For each conflict the nearest choice at or above its path counts, for a removal too; what one
    side alone changed comes whatever is chosen; without a choice for one nothing is committed."""
    branches.change(
        Put("a", b"1"), Remove("b"), Put("d/e", b"1"), Put("d/f", b"1"), on="dev", time_s=2
    )
    branches.change(Put("a", b"2"), Put("b", b"2"), Put("d/e", b"2"), Put("g", b"2"))
    with pytest.raises(Diverged, match="both sides changed a, d/e: nothing"):
        merged(branches, choices={(b"b",): True, (b"d", b"x"): True, (b"other",): False})
    done = merged(branches, choices={(): True, (b"d",): False, (b"d", b"e", b"below"): True})
    assert branches.files(done.commit) == {b"a": b"1", b"d/e": b"2", b"d/f": b"1", b"g": b"2"}
    assert len(branches.head().parents) == 2
    branches.assert_sound()


def test_a_branch_that_is_behind_moves(branches: Branches) -> None:
    """No commit is made where one side has nothing of its own."""
    ahead = branches.change(Put("a", b"1"), on="dev", time_s=2).commit
    result = merged(branches)
    assert (result.commit, result.unchanged) == (ahead, False)
    assert branches.store.resolve("r", "main").hex() == ahead
    with pytest.raises(NotFound):
        merged(branches, into="none")


def test_the_common_ancestor_of_a_criss_cross(branches: Branches) -> None:
    """Clocks that were wrong do not matter; unrelated histories have none."""
    old = branches.change(Put("z", b"z"), on="dev", time_s=100).commit
    branches.change(Put("a", b"1"), time_s=5)
    merged(branches)
    branches.change(Put("b", b"1"), on="dev", time_s=3)
    ends = [branches.store.resolve("r", name) for name in ("main", "dev")]
    assert common_ancestor(branches.store, "r", *ends) == commit_of(old)
    alone = branches.change(Put("q", b"q"), on="alone").commit
    assert common_ancestor(branches.store, "r", ends[0], commit_of(alone)) is None
    assert merged(branches, "alone").changes.added_files == 1


def test_blame_follows_what_came_back(branches: Branches) -> None:
    """A file that was changed and put back counts from then; one in a directory that did not
    exist before, from the commit that made it; a lone file is looked up by itself."""
    branches.change(Put("a", b"other"), time_s=2)
    branches.change(Put("a", b"a"), CopyFrom("r@dev:d", "n/d"), time_s=3)
    branches.change(Put("unrelated", b"u"), time_s=4)
    assert blamed(branches, b"a") == {b"a": 3}
    assert blamed(branches, b"n/d/e") == {b"n/d/e": 3}
    assert blamed(branches, b"d/e") == {b"d/e": 1}
    with pytest.raises(NotFound):
        blamed(branches, b"none")

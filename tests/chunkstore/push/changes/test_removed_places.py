"""A directory that is pushed to its place: whoever would lose most of that place is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import TooManyRemovals
from lodefs.chunkstore.push.changes.change import Change, Put, PutDirectory, Remove
from lodefs.chunkstore.push.limits import Removals, allow_all
from tests.support.chunkstore.branches import Branches


class _Asked:
    """What a push asked for; the answer is no."""

    def __init__(self) -> None:
        self.removals: list[Removals] = []

    def __call__(self, removals: Removals) -> bool:
        self.removals.append(removals)
        return False


def _branches(tmp_path: Path) -> Branches:
    """A branch of 20 files, four of which are at a/b and below it."""
    branches = Branches(tmp_path)
    names = ["a/b/1", "a/b/2", "a/b/c/3", "a/b/c/4", *(f"else/{n}" for n in range(16))]
    branches.change(*(Put(name, name.encode()) for name in names))
    return branches


def _directory(tmp_path: Path, *names: str) -> Path:
    for name in names:
        path = tmp_path / "pushed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"a/b/{name}")
    (tmp_path / "pushed").mkdir(exist_ok=True)
    return tmp_path / "pushed"


@pytest.mark.parametrize("kept", [(), ("1",), ("c/3", "x", "y", "z")])
def test_most_of_a_place(tmp_path: Path, kept: tuple[str, ...]) -> None:
    """Three or four of the four files of a place would go: it is refused, and nothing is committed;
    of the branch that is little. With consent it is done."""
    branches = _branches(tmp_path)
    before = branches.head()
    asked = _Asked()
    put = PutDirectory("a/b", _directory(tmp_path, *kept))
    gone = 4 - len({"1", "2", "c/3", "c/4"} & set(kept))
    with pytest.raises(TooManyRemovals, match=f"remove {gone} of the 4 files of r@main:a/b "):
        branches.change(put, allow_removals=asked)
    assert [one[1:] for one in map(_tuple, asked.removals)] == [(gone, 4, b"a/b")]
    assert branches.head() == before
    assert branches.change(put, allow_removals=allow_all).changes.removed_files == gone


@pytest.mark.parametrize("kept", [("1", "2"), ("1", "2", "c/3", "x"), ("1", "2", "c/3", "c/4")])
def test_half_of_a_place(tmp_path: Path, kept: tuple[str, ...]) -> None:
    """Half of a place, or less, goes without a question; so does all that a change names itself."""
    branches = _branches(tmp_path)
    asked = _Asked()
    branches.change(PutDirectory("a/b", _directory(tmp_path, *kept)), allow_removals=asked)
    branches.change(PutDirectory("new", _directory(tmp_path)), allow_removals=asked)
    changes: list[Change] = [Remove("a/b"), Put("a/b", b"file")]
    branches.change(*changes, allow_removals=asked)
    changes = [Remove("a/b"), PutDirectory("a/b/c", _directory(tmp_path))]
    branches.change(*changes, allow_removals=asked)
    assert asked.removals == []


def _tuple(removals: Removals) -> tuple[object, ...]:
    return removals.head, removals.removed_files, removals.files, removals.path

"""reflog, branch --undelete, tag --undelete: what was done to branches and tags can be undone."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


@pytest.fixture
def commits(lodefs: Lodefs, tmp_path: Path) -> list[str]:
    """The ids of three commits of r@main, by ann, bob and cy, oldest first."""
    lodefs("init", "s3://memory")
    source = tmp_path / "source"
    source.mkdir()
    found = []
    for author in ("ann", "bob", "cy"):
        (source / "file").write_text(author)
        ran = lodefs("push", "--json", "--author", author, str(source), "r")
        found.append(ran.json["commit"])
    return found


def moves(lodefs: Lodefs, spec: str, *options: str) -> list[tuple[object, ...]]:
    """What reflog tells, newest first, without the times."""
    lines = lodefs("reflog", "--json", spec, *options).json_lines
    return [(one["change"], one["previous"], one["commit"], one["author"]) for one in lines]


def test_reflog_tells_all_moves(lodefs: Lodefs, commits: list[str]) -> None:
    """Pushes with their authors, moves, deletions and what was got back, newest first."""
    first, second, third = commits
    lodefs("branch", "--force", f"r@{first}", "main")
    lodefs("branch", "--delete", "--yes", "r", "main")
    lodefs("branch", "--undelete", "r", "main")
    lodefs("branch", "--delete", "--yes", "r", "main")
    lodefs("branch", f"r@{second}", "main")
    assert moves(lodefs, "r") == [
        ("created", None, second, None),
        ("deleted", first, None, None),
        ("restored", None, first, None),
        ("deleted", first, None, None),
        ("moved", third, first, None),
        ("pushed", second, third, "cy"),
        ("pushed", first, second, "bob"),
        ("created", None, first, None),
    ]
    assert moves(lodefs, "r@main", "-n", "2") == moves(lodefs, "r")[:2]


def test_reflog_for_people(lodefs: Lodefs, commits: list[str]) -> None:
    """One line for each move; what an author wrote cannot move the cursor."""
    lines = lodefs("reflog", "r").out.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        f"{commits[1][:12]} -> {commits[2][:12]}  pushed  cy",
        f"{commits[0][:12]} -> {commits[1][:12]}  pushed  bob",
        f"none         -> {commits[0][:12]}  created",
    ]
    assert all(" UTC  " in line for line in lines)


@pytest.mark.parametrize("command", ["branch", "tag"])
def test_the_printed_command_undoes(lodefs: Lodefs, commits: list[str], command: str) -> None:
    """What a delete and a forced move print brings the branch or tag back to where it was."""

    def at() -> list[object]:
        return [one["commit"] for one in lodefs(command, "--json", "r").json_lines]

    if command == "branch":
        lodefs("branch", f"r@{commits[2]}", "x")
        lodefs("branch", "--delete", "--yes", "r", "main")
    else:
        lodefs("tag", f"r@{commits[2]}", "x")
    assert "undo" not in lodefs(command, f"r@{commits[2]}", "x").out  # it is there already
    for change in (["--delete", "r", "x"], ["--force", f"r@{commits[0]}", "x"]):
        ran = lodefs(command, *change)
        assert ran.code == 0, ran.err
        assert at() != [commits[2]]
        label, undo = ran.out.splitlines()[-1].split(": ")
        assert label == "undo"
        assert undo.startswith(f"lodefs {command} ")
        assert lodefs(*shlex.split(undo)[1:]).code == 0
        assert at() == [commits[2]]


def test_reflog_of_a_tag_and_a_branch_of_one_name(lodefs: Lodefs, commits: list[str]) -> None:
    """A name that was a branch and became a tag has two logs."""
    lodefs("branch", "r", "x")
    lodefs("branch", "--delete", "r", "x")
    lodefs("tag", f"r@{commits[0]}", "x")
    assert [move[0] for move in moves(lodefs, "r@x")] == ["deleted", "created"]
    assert moves(lodefs, "r@x", "--tag") == [("created", None, commits[0], None)]


def test_reflog_without_a_commit(
    lodefs: Lodefs, commits: list[str], objects: MemoryObjects
) -> None:
    """A commit that is gone hides no move."""
    objects.delete(f"repos/r/commits/{commits[2]}")
    assert moves(lodefs, "r")[0] == ("moved", commits[1], commits[2], None)
    lodefs("branch", "--delete", "--yes", "r", "main")
    ran = lodefs("branch", "--undelete", "r", "main")
    assert ran.code == 3
    assert [move[0] for move in moves(lodefs, "r", "-n", "1")] == ["deleted"]


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("reflog none", 3, "there is no repository none"),
        ("reflog r@none", 3, "r never had a branch or tag none"),
        ("reflog r:path", 2, "without a path"),
        ("branch --undelete r", 2, "NAME is missing"),
        ("branch --undelete r main", 4, "main of r is not deleted"),
        ("branch --undelete r none", 3, "r never had a branch none; deleted ones: gone, taken"),
        ("tag --undelete r gone", 3, "r never had a tag gone; deleted ones: none"),
        ("branch --undelete r taken", 2, "r has a tag taken"),
    ],
)
def test_what_cannot_be_got_back(
    lodefs: Lodefs, commits: list[str], line: str, code: int, told: str
) -> None:
    """Each mistake is one line that says what there is, and nothing moves."""
    for name in ("gone", "taken"):
        lodefs("branch", "r", name)
        lodefs("branch", "--delete", "r", name)
    lodefs("tag", "r", "taken")
    ran = lodefs(*line.split())
    assert ran.code == code
    assert told in ran.err
    assert ran.err.count("\n") == 1

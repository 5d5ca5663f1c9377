"""cp and mv on the command line: within a branch, between branches, between repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.api import moving
from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.push.changes import commit_changes as committing
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


@pytest.fixture(autouse=True)
def pushed(lodefs: Lodefs, tmp_path: Path) -> None:
    """r with a.txt and d/b, d/c; s with x."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "a.txt").write_text("a\n")
    (source / "d" / "b").write_text("b" * 2000)
    (source / "d" / "c").write_text("c" * 300_000)
    lodefs("init", "s3://memory")
    lodefs("push", str(source), "r", "-m", "first")
    lodefs("push", str(source / "a.txt"), "s:x")


def _names(lodefs: Lodefs, spec: str) -> list[str]:
    return lodefs("ls", "-R", spec).out.split()


@pytest.mark.parametrize(
    ("source", "to", "there"),
    [
        ("r:d", "s:e/f", ["e/", "e/f/", "e/f/b", "e/f/c", "x"]),
        ("r:d", "s:", ["d/", "d/b", "d/c", "x"]),
        ("r:d/b", "s:e/", ["e/", "e/b", "x"]),
        ("r:a.txt", "s:x", ["x"]),
        ("r", "s:all", ["all/", "all/a.txt", "all/d/", "all/d/b", "all/d/c", "x"]),
        ("r:a.txt", "r@new:y", ["y"]),
        ("r:a.txt", "r:d", ["a.txt", "d/", "d/a.txt", "d/b", "d/c"]),
    ],
)
def test_copy(
    lodefs: Lodefs, objects: MemoryObjects, source: str, to: str, there: list[str]
) -> None:
    """A path comes to another place, and what was stored is no more than trees."""
    packs = sum(len(data) for key, data in objects.objects.items() if key.startswith("packs/"))
    done = lodefs("cp", "--json", source, to).json
    assert (done["files_read"], done["new_bytes"]) == (0, 0)
    assert _names(lodefs, to.partition(":")[0]) == there
    after = sum(len(data) for key, data in objects.objects.items() if key.startswith("packs/"))
    assert after - packs < 3000
    assert lodefs("cp", "--json", source, to).json["unchanged"]
    assert lodefs("verify", "--data").code == 0


def test_move(lodefs: Lodefs) -> None:
    """Within a branch one commit; to another repository one in each, and nothing stays."""
    assert "commit" in lodefs("mv", "r:d", "r:e").out
    assert _names(lodefs, "r") == ["a.txt", "e/", "e/b", "e/c"]
    moved = lodefs("mv", "--json", "r:e", "s:deep/").json
    assert moved["removal"]["removed_files"] == 2
    assert (_names(lodefs, "r"), _names(lodefs, "s:deep")) == (["a.txt"], ["e/", "e/b", "e/c"])
    assert lodefs("log", "--json", "s").json_lines[0]["message"] == "move r@main:e"
    assert lodefs("mv", "r:a.txt", "r@dev:d/").out.count("removed from r@main") == 1
    assert lodefs("verify", "--data").code == 0


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        ("cp r:d s", 2, "name the path, s@main:PATH"),
        ("cp r s:", 2, "has no name: name its path in s:"),
        ("cp r:none s:y", 3, "r@main:none does not exist"),
        ("mv r s:y", 2, "name what to move"),
        ("mv r:d r:d/e", 2, "cannot be moved into itself"),
        ("mv r:d s:x", 2, "s@main:x exists: remove it first"),
        ("mv r@v1:d s:y", 2, "r@v1 is not a branch"),
    ],
)
def test_refused(lodefs: Lodefs, words: str, code: int, hint: str) -> None:
    """What cannot be done is refused in one line, and changes nothing."""
    lodefs("tag", "r", "v1")
    ran = lodefs(*words.split())
    assert (ran.code, ran.err.count("\n")) == (code, 1)
    assert hint in ran.err
    assert (_names(lodefs, "s"), len(_names(lodefs, "r"))) == (["x"], 4)


def test_most_of_a_place(lodefs: Lodefs) -> None:
    """A copy that would remove most of the files at its place is asked for on purpose."""
    lodefs("cp", "r:d", "s:d")
    lodefs("cp", "r:a.txt", "s:e/")
    ran = lodefs("cp", "s:e", "s:d")
    assert (ran.code, "--allow-removals" in ran.err) == (14, True)
    assert lodefs("cp", "--allow-removals", "s:e", "s:d").code == 0
    assert _names(lodefs, "s:d") == ["a.txt"]


def test_a_removal_that_fails(lodefs: Lodefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both places have it, which is said, and the command can be repeated."""
    commit = committing.commit_changes
    asked: list[object] = []

    def fails_second(*given: object, **more: object) -> object:
        asked.append(given)
        if len(asked) == 2:
            raise Conflict("the branch moves all the time")
        return commit(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(committing, "commit_changes", fails_second)
    ran = lodefs("mv", "r:d", "s:d")
    assert ran.code == 5
    assert "s@main:d has the copy, and r@main:d still exists: repeat the command" in ran.err
    assert _names(lodefs, "s:d") == _names(lodefs, "r:d") == ["b", "c"]
    assert lodefs("mv", "r:d", "s:d").code == 0
    assert _names(lodefs, "r") == ["a.txt"]


def test_only_what_was_copied_is_removed(
    lodefs: Lodefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What somebody changes between the two commits of a move is not removed."""
    commit = moving._commit

    def and_a_push(
        settings: object, branch: object, change: object, *given: object, **more: object
    ) -> object:
        done = commit(settings, branch, change, *given, **more)  # type: ignore[arg-type]
        if type(change).__name__ == "CopyFrom":
            (tmp_path / "b").write_text("another b")
            assert lodefs("push", str(tmp_path / "b"), "r:d/b").code == 0
        return done

    monkeypatch.setattr(moving, "_commit", and_a_push)
    ran = lodefs("mv", "r:d", "s:d")
    assert (ran.code, "r@main:d still exists" in ran.err) == (5, True)
    assert lodefs("cat", "r:d/b").out == "another b"


def test_fork(lodefs: Lodefs) -> None:
    """A new repository begins where another one is, and the two go on apart."""
    first = lodefs("log", "--json", "r").json["commit"]
    lodefs("tag", "r", "v1")
    lodefs("mv", "r:d", "r:e")
    forked = lodefs("fork", "--json", "r@v1", "t").json
    assert forked == {"repo": "t", "commit": first, "commits": 1}
    assert "t2@main is at" in lodefs("fork", "r", "t2").out
    assert lodefs("fork", "r", "t").code == 4
    assert lodefs("fork", "none", "t3").code == 3
    lodefs("rm", "--yes", "r")
    assert lodefs("verify", "--data").code == 0
    assert _names(lodefs, "t") == ["a.txt", "d/", "d/b", "d/c"]


def test_rename(lodefs: Lodefs, tmp_path: Path) -> None:
    """The old name leads to the new one for who reads and pushes, with a note; other commands name
    it; and it can be taken back."""
    lodefs("tag", "r", "v1")
    lodefs("quota", "r", "--size-bytes-max", "10MB")
    done = lodefs("repo", "rename", "--json", "r", "new/r").json
    assert done["refs"] == [{"kind": "branch", "name": "main"}, {"kind": "tag", "name": "v1"}]
    assert lodefs("ls").out.split() == ["new/r", "s"]
    read = lodefs("cat", "r@v1:a.txt")
    assert (read.code, read.out) == (0, "a\n")
    assert "lodefs: warning: the repository is now called new/r" in read.err
    for words in ("log r", "diff r r@v1", "blame r:d", "ls r:d", "verify r@v1", "cp r:d s:d"):
        assert lodefs(*words.split()).code == 0
    (tmp_path / "b").write_text("b")
    pushed = lodefs("push", str(tmp_path / "b"), "r:more/b")
    assert (pushed.code, "now called new/r" in pushed.err) == (0, True)
    assert lodefs("push", str(tmp_path / "source"), "r@again").code == 0
    assert lodefs("pull", "r", str(tmp_path / "out")).code == 0
    assert _names(lodefs, "new/r:more") == ["b"]
    for words in ("rm --yes r", "tag r v2", "branch r", "retain r", "undelete r"):
        ran = lodefs(*words.split())
        assert (ran.code in (3, 4), "new/r" in ran.err) == (True, True)
    assert lodefs("quota", "new/r").out.count("10")
    assert lodefs("undelete").out == ""
    assert "r is new/r now, with 0 refs" in lodefs("repo", "rename", "r", "new/r").out
    assert lodefs("repo", "rename", "new/r", "r", "--old-name-for", "1d").code == 0
    assert len(_names(lodefs, "r")) == len(_names(lodefs, "new/r")) == 6
    assert lodefs("verify", "--data").code == 0


def test_rules_that_cover_one_name(lodefs: Lodefs, tmp_path: Path) -> None:
    """The rules of access of this machine are compared."""
    settings = tmp_path / "lodefs.toml"
    settings.write_text('[access]\n"*" = ["*"]\n"r*" = ["0"]\n')
    one = lodefs("repo", "rename", "--json", "r", "q", LODEFS_CONFIG=str(settings)).json
    assert one["access_rules"] == ["r*", "*"]
    two = lodefs("repo", "rename", "q", "r", LODEFS_CONFIG=str(settings))
    assert "the rule 'r*' of [access]" in two.err

"""branch --move and --reset, diff --stat and --name-only, merge and blame on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lodefs.command_line import Lodefs


@pytest.fixture(autouse=True)
def pushed(lodefs: Lodefs, tmp_path: Path) -> None:
    """main with a.txt and d/b, and dev where d/b is longer and c is new."""
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b").write_text("b" * 2000)
    lodefs("init", "s3://memory")
    lodefs("push", str(tmp_path / "a.txt"), "r:", "-m", "first")
    lodefs("push", str(tmp_path / "b"), "r:d/b", "-m", "second\nline")
    lodefs("branch", "r", "dev")
    (tmp_path / "b").write_text("b" * 3000)
    lodefs("push", str(tmp_path / "b"), "r@dev:d/b", "-m", "third")
    lodefs("push", str(tmp_path / "a.txt"), "r@dev:c", "-m", "fourth")


def test_move_and_reset(lodefs: Lodefs) -> None:
    """A branch gets another name, unless that is taken; reset moves one that exists."""
    at = {one["name"]: one["commit"] for one in lodefs("branch", "--json", "r").json_lines}
    assert "r@dev is r@trial now" in lodefs("branch", "--move", "r@dev", "trial").out
    names = {one["name"]: one["commit"] for one in lodefs("branch", "--json", "r").json_lines}
    assert names == {"main": at["main"], "trial": at["dev"]}
    assert lodefs("branch", "--move", "r@trial", "main").code == 4
    assert lodefs("branch", "--move", "r@none", "x").code == 3
    assert lodefs("branch", "--reset", "r@trial", "none").code == 3
    ran = lodefs("branch", "--reset", "r@trial", "main")
    assert f"undo: lodefs branch --force r@{at['main'][:12]} main" in ran.out
    both = lodefs("branch", "--reset", "--force", "r@trial", "main")
    assert (both.code, "--reset does nothing with --force" in both.err) == (2, True)


def test_diff_in_short(lodefs: Lodefs) -> None:
    """--stat counts files and bytes, --name-only shows paths."""
    words = ("r@main", "r@dev")
    assert lodefs("diff", "--name-only", *words).out.splitlines() == ["c", "d/b"]
    assert lodefs("diff", "--stat", *words).out.splitlines() == [
        "added        1 file, 2 B", "changed      1 file, 2.9 KiB"
    ]  # fmt: skip
    found = lodefs("diff", "--stat", "--json", *words).json
    assert (found["added_files"], found["changed_bytes"], found["removed_files"]) == (1, 3000, 0)
    assert lodefs("diff", "--stat", "--exit-code", "r", "r").code == 0
    assert lodefs("diff", "--stat", "--exit-code", *words).code == 1
    assert lodefs("diff", "--stat", "--name-only", *words).code == 2


def test_merge_and_blame(lodefs: Lodefs, tmp_path: Path) -> None:
    """What dev changed comes into main; blame says since when; a conflict has its exit code, until
    it is said who wins."""
    lodefs("push", str(tmp_path / "a.txt"), "r:e", "-m", "fifth")
    dry = lodefs("merge", "--dry-run", "--json", "r@dev", "main").json
    done = lodefs("merge", "--json", "r@dev", "main").json
    assert (dry["added_files"], dry["changed_files"]) == (1, 1)
    assert (done["added_files"], done["changed_files"]) == (1, 1)
    assert lodefs("log", "--json", "r").json_lines[0]["message"] == "merge dev into main"
    by_path = {one["path"]: one["message"] for one in lodefs("blame", "--json", "r").json_lines}
    assert by_path == {"a.txt": "first", "c": "fourth", "d": "third", "e": "fifth"}
    assert "d/b  third" in lodefs("blame", "r:d/b").out
    assert "a.txt  first" in lodefs("blame", "r@dev:a.txt").out
    for branch, text in (("main", "x"), ("dev", "y")):
        (tmp_path / "a.txt").write_text(text)
        lodefs("push", str(tmp_path / "a.txt"), f"r@{branch}:a.txt")
    refused = lodefs("merge", "r@dev", "main")
    assert (refused.code, "both sides changed a.txt" in refused.err) == (15, True)
    both = ("--ours", "a.txt", "--theirs", "./a.txt")
    assert lodefs("merge", "r@dev", "main", *both).code == 2
    assert lodefs("merge", "r@dev", "main", *both[2:]).code == 0
    assert lodefs("cat", "r:a.txt").out == "y"


def test_revert(lodefs: Lodefs, tmp_path: Path) -> None:
    """A commit is taken back, under a message that names it; a conflict has its exit code."""
    fourth = lodefs("log", "--json", "r@dev").json_lines[0]["commit"]
    dry = lodefs("revert", "--dry-run", "--json", "r@dev", "dev").json
    done = lodefs("revert", "--json", "r@dev", "dev").json
    assert (dry["removed_files"], done["removed_files"]) == (1, 1)
    message = lodefs("log", "--json", "r@dev").json_lines[0]["message"]
    assert message == f"revert {fourth[:12]}: fourth"
    assert lodefs("diff", "--exit-code", "r@dev~2", "r@dev").code == 0
    assert "nothing changed" in lodefs("revert", "r@dev", fourth).out
    lodefs("push", str(tmp_path / "a.txt"), "r@dev:d/b")
    refused = lodefs("revert", "r@dev", "dev~3")
    assert (refused.code, "both sides changed d/b" in refused.err) == (15, True)
    refused = lodefs("revert", "r", "main~9")
    assert (refused.code, "is the first commit" in refused.err) == (3, True)


def test_a_repository_with_an_old_name(lodefs: Lodefs) -> None:
    """log and revert go on under the name that it has now."""
    lodefs("repo", "rename", "r", "new")
    assert "(dev) fourth" in lodefs("log", "--oneline", "r@dev").out
    assert lodefs("revert", "r@dev", "dev~1").code == 0
    assert lodefs("log", "--json", "new@dev").json_lines[0]["message"].endswith(": third")


def test_log_in_short(lodefs: Lodefs, tmp_path: Path) -> None:
    """--oneline has a line for each commit, with the names that are there; --graph draws merges."""
    lodefs("tag", "r@main~1", "v1")
    lodefs("push", str(tmp_path / "a.txt"), "r:e", "-m", "fifth\nand more")
    lodefs("merge", "r@dev", "main")
    log = lodefs("log", "--json", "r").json_lines
    commits = {one["message"].partition("\n")[0]: one for one in log}
    id_of = {message: one["commit"][:12] for message, one in commits.items()}
    assert (commits["fourth"]["branches"], commits["first"]["tags"]) == (["dev"], ["v1"])
    assert lodefs("log", "--oneline", "-n", "1", "r@main~1").out == f"{id_of['fifth']} fifth\n"
    out = lodefs("log", "--oneline", "--graph", "r").out.splitlines()
    assert out[:2] == [f"*  {id_of['merge dev into main']} (main) merge dev into main", "|\\"]
    assert f"*  {id_of['first']} (tag: v1) first" in out
    assert sorted(line.strip("|/*\\ ").partition(" ")[0] for line in out if "*" in line) == sorted(
        id_of.values()
    )
    whole = lodefs("log", "--graph", "-n", "1", "r").out
    assert f"|  merge  {id_of['fifth']} {id_of['fourth']}" in whole
    assert lodefs("log", "--graph", "--json", "r").code == 2


def test_diff_of_contents(lodefs: Lodefs, tmp_path: Path) -> None:
    """-p shows what differs in texts, in a form that patch(1) takes, and says what it does not
    show."""
    (tmp_path / "labels.csv").write_text("id,label\n1,cat\n2,dog\n")
    (tmp_path / "b").write_bytes(b"\0")
    lodefs("push", str(tmp_path / "labels.csv"), "r:")
    (tmp_path / "labels.csv").write_text("id,label\n1,cat\n2,bird\n3,\\\n")
    lodefs("push", *(str(tmp_path / name) for name in ("labels.csv", "b")), "r:")
    ran = lodefs("diff", "-p", "r@main~1", "r")
    assert ran.out.splitlines() == [
        "A  b  (nothing -> 1 B)",
        "   binary: its lines are not shown",
        "M  labels.csv  (21 B -> 26 B)",
        "--- a/labels.csv",
        "+++ b/labels.csv",
        "@@ -1,3 +1,4 @@",
        " id,label",
        " 1,cat",
        "-2,dog",
        "+2,bird",
        "+3,\\",
        "1 added, 1 changed",
    ]
    added, changed = lodefs("diff", "--patch", "--json", "r@main~1", "r").json_lines
    assert (added["patch"], added["not_shown"]) == ([], "binary")
    assert (changed["patch"][3], changed["not_shown"]) == ("-2,dog", "")
    assert "--- /dev/null\n+++ b/labels.csv\n" in lodefs("diff", "-p", "r@main~2", "r@main~1").out
    assert lodefs("diff", "-p", "--stat", "r", "r").code == 2

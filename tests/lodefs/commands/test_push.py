"""push on the command line, into a real store in a directory."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs

TIMEOUT_S = 120


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory to push."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "a.txt").write_text("hello\n")
    (source / "d" / "b").write_bytes(os.urandom(300_000))
    return source


@pytest.fixture(autouse=True)
def created(lodefs: Lodefs) -> None:
    """The store exists."""
    assert lodefs("init", "s3://memory").code == 0


def test_push_prints_what_it_did(lodefs: Lodefs, source: Path) -> None:
    """Files, bytes, new bytes, stored bytes and the commit are printed."""
    ran = lodefs("push", str(source), "vision/cats", "-m", "first")
    assert ran.code == 0, ran.err
    names = [line.split()[0] for line in ran.out.splitlines()]
    what = ["added", "changed", "removed"]
    assert names == ["files", "bytes", *what, "new", "stored", "created", "commit"]
    assert lodefs("log", "--json", "vision/cats").json["message"] == "first"
    assert lodefs("cat", "vision/cats:a.txt").out == "hello\n"


def test_push_leaves_the_collector_on(lodefs: Lodefs, source: Path) -> None:
    """Cycles are not looked for during a push only."""
    assert lodefs("push", str(source), "r").code == 0
    assert gc.isenabled()


def test_push_of_the_same_again(lodefs: Lodefs, source: Path) -> None:
    """Without a change there is no commit, and the output says so instead of zeros."""
    first = lodefs("push", "--json", str(source), "r@dev").json
    assert first["unchanged"] is False
    again = lodefs("push", str(source), "r@dev")
    assert again.code == 0
    assert again.out.splitlines()[2:] == [f"nothing changed: r@dev stays at {first['commit']}"]
    assert len(lodefs("log", "--json", "r@dev").json_lines) == 1


@pytest.mark.parametrize(
    ("directory", "repo", "code"),
    [
        ("none", "r", 3),
        ("a.txt", "r", 2),
        (".", "r:../path", 2),
        (".", "../r", 2),
        (".", "r@a/b", 2),
    ],
)
def test_push_bad_input(lodefs: Lodefs, source: Path, directory: str, repo: str, code: int) -> None:
    """A source that is no directory and a malformed target are one line each."""
    ran = lodefs("push", str(source / directory), repo)
    assert ran.code == code
    assert ran.err.startswith("lodefs: error: ")
    assert ran.err.count("\n") == 1


def test_skipped_are_named(lodefs: Lodefs, source: Path) -> None:
    """Pipes and sockets are named on standard error, and the rest is pushed."""
    os.mkfifo(source / "pipe\n\x1b")
    ran = lodefs("push", str(source), "r")
    assert ran.code == 0
    assert "lodefs: skipped: " in ran.err
    assert "left out of the commit: 1 path" in ran.err
    assert "\x1b" not in ran.err
    assert len(lodefs("push", "--json", str(source), "r").json["skipped"]) == 1


def test_push_says_what_a_commit_does_not_keep(lodefs: Lodefs, source: Path) -> None:
    """Private files, hard links and names that are often left out are told when they are committed,
    on standard error and to scripts; a push into a place, and of one file, tells them too."""
    (source / "d" / "b").chmod(0o600)
    os.link(source / "a.txt", source / "link")
    (source / ".git").mkdir()
    ran = lodefs("push", str(source), "r")
    assert "1 file that others may not read here can be read by all who may" in ran.err
    assert ": d/b (--private skip" in ran.err
    assert "2 files with hard links" in ran.err
    assert "pushed too: .git (1); " in ran.err
    assert lodefs("push", str(source), "r").err == ""  # nothing is committed
    for spec in ("r", "r:place"):
        found = lodefs("push", "--json", str(source), spec).json
        assert (found["private_files"], found["hard_linked_files"]) == (1, 2)
        assert found["often_excluded"] == {".git": 1}
    ran = lodefs("push", str(source / "d/b"), "s:b")
    assert "1 file that others may not read here" in ran.err


def test_private_files_can_be_kept_out_of_a_push(lodefs: Lodefs, source: Path) -> None:
    """--private skip leaves them out and names them, --private refuse pushes nothing; a file that
    is named itself is refused by both."""
    (source / "d" / "b").chmod(0o600)
    skipped = lodefs("push", "--private", "skip", str(source), "r")
    assert "skipped: d/b is private (mode 0600)" in skipped.err
    assert lodefs("ls", "-R", "r").out.split() == ["a.txt", "d/"]
    refused = lodefs("push", "--private", "refuse", str(source), "s")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "d/b is private" in refused.err
    for private in ("skip", "refuse"):
        assert lodefs("push", "--private", private, str(source / "d/b"), "s:b").code == 2
    assert lodefs("ls").out == "r\n"


def test_push_and_pull_count_alike(lodefs: Lodefs, source: Path, tmp_path: Path) -> None:
    """JSON counts files and symlinks apart in both. What push writes adds up: each line counts
    symlinks as files, as log does."""
    os.symlink("nowhere", source / "link")
    shown = lodefs("push", str(source), "r").out
    assert "files   3 (2 read, 1 symlink)\n" in shown
    assert "added   3 files" in shown
    assert "holds  3 files" in lodefs("log", "r").out
    assert ", 1 symlink" in lodefs("pull", "r", str(tmp_path / "t")).out
    pushed = lodefs("push", "--json", str(source), "r").json
    pulled = lodefs("pull", "--json", "r", str(tmp_path / "u")).json
    for what in ("files", "symlinks", "directories"):
        assert pushed[what] == pulled[what]


@pytest.mark.slow
def test_the_program_itself(tmp_path: Path, source: Path) -> None:
    """init, push, ls, cat, pull and verify as a user types them, each in a process of its own."""
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "LODEFS_STORE": str(tmp_path / "store"),
        "LODEFS_CONFIG": os.devnull,
    }

    def lodefs(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "lodefs.main", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
        ).stdout

    lodefs("init", str(tmp_path / "store"))
    lodefs("push", str(source), "r")
    (source / "a.txt").write_text("changed\n")
    lodefs("push", str(source), "r")
    assert lodefs("ls", "r") == "a.txt\nd/\n"
    assert lodefs("cat", "r:a.txt") == "changed\n"
    lodefs("pull", "r", str(tmp_path / "copy"))
    assert (tmp_path / "copy" / "d" / "b").read_bytes() == (source / "d" / "b").read_bytes()
    assert "all is well" in lodefs("verify", "--data")


def test_push_tells_of_a_new_branch(lodefs: Lodefs, source: Path) -> None:
    """The first push to a branch says that it created it; the next ones do not."""
    assert "created branch neuer-zweig\n" in lodefs("push", str(source), "r@neuer-zweig").out
    (source / "a.txt").write_text("changed\n")
    assert "created" not in lodefs("push", str(source), "r@neuer-zweig").out
    assert lodefs("push", "--json", str(source), "r@two").json["created_branch"] is True


def test_push_says_what_it_changes(lodefs: Lodefs, source: Path) -> None:
    """Added, changed and removed files with their bytes, for people and for scripts."""
    assert (
        "added   2 files, 293.0 KiB\nchanged 0 files, 0 B\n" in lodefs("push", str(source), "r").out
    )
    (source / "a.txt").write_text("changed\n")
    (source / "d" / "c").write_text("new")
    out = lodefs("push", str(source), "r").out
    assert "added   1 file, 3 B\nchanged 1 file, 8 B\nremoved 0 files, 0 B\n" in out
    (source / "d" / "b").unlink()
    told = lodefs("push", "--json", str(source), "r").json
    assert (told["removed_files"], told["removed_bytes"], told["changed_files"]) == (1, 300_000, 0)


def test_most_of_a_branch_is_not_removed_unasked(lodefs: Lodefs, source: Path) -> None:
    """Scripts get an exit code and no commit; --allow-removals says that it is meant."""
    before = lodefs("push", "--json", str(source), "r").json["commit"]
    ran = lodefs("push", str(source / "d"), "r")
    assert (ran.code, ran.out) == (14, "")
    assert "would remove 2 of the 2 files of r@main" in ran.err
    assert "--allow-removals" in ran.err
    assert lodefs("log", "--json", "r").json["commit"] == before
    assert lodefs("push", "--allow-removals", str(source / "d"), "r").code == 0
    assert lodefs("ls", "r").out == "b\n"


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 14), ("\n", 14)])
def test_a_terminal_is_asked(
    lodefs: Lodefs, source: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    """On a terminal the question stands on standard error, and no answer means no."""
    lodefs("push", str(source), "r")
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    monkeypatch.setattr("lodefs.cli.consent.has_terminal", lambda: True)
    ran = lodefs("push", "--json", str(source / "d"), "r")
    assert ran.code == code, ran.err
    assert "This removes 2 of the 2 files of r@main" in ran.err
    assert bool(ran.out) == (code == 0)


def test_a_checked_push_tells_what_was_lost(
    lodefs: Lodefs, source: Path, objects: MemoryObjects
) -> None:
    """--check stores again what the store has lost, and says so, once."""
    lodefs("push", str(source), "r")
    for info in list(objects.list("packs/")):
        objects.delete(info.key)
    ran = lodefs("push", "--check", str(source), "r")
    assert ran.code == 0, ran.err
    told = "pack: deleted by gc, lost, or in place in a bucket; stored again\n"
    assert told in ran.out.replace("packs", "pack")
    assert lodefs("cat", "r:a.txt").out == "hello\n"
    assert lodefs("push", "--check", "--json", str(source), "r").json["lost_packs"] == 0


def paths(lodefs: Lodefs, spec: str) -> list[str]:
    """All files and directories of a revision."""
    return [one["path"] for one in lodefs("ls", "-R", "--json", spec).json_lines]


@pytest.mark.parametrize(
    ("sources", "target", "made"),
    [
        (["a.txt"], "r:new.txt", {"new.txt"}),
        (["a.txt"], "r:d", {"d/a.txt"}),  # d is a directory there
        (["a.txt"], "r:", set()),
        (["a.txt"], "r:x/y/", {"x", "x/y", "x/y/a.txt"}),
        (["d"], "r:e/f", {"e", "e/f", "e/f/b"}),
        (["d"], "r:e/", {"e", "e/d", "e/d/b"}),
        (["d", "a.txt"], "r:e", {"e", "e/d", "e/d/b", "e/a.txt"}),
    ],
)
def test_push_into_a_place(
    lodefs: Lodefs, source: Path, sources: list[str], target: str, made: set[str]
) -> None:
    """Files and directories come to their places, and all else stays."""
    lodefs("push", str(source), "r")
    ran = lodefs("push", *(str(source / one) for one in sources), target)
    assert ran.code == 0, ran.err
    assert set(paths(lodefs, "r")) == {"a.txt", "d", "d/b"} | made


def test_push_of_standard_input(lodefs: Lodefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """- is what comes from standard input; it needs a whole path."""
    stdin = io.TextIOWrapper(io.BytesIO(b"from a pipe\n"))
    monkeypatch.setattr("sys.stdin", stdin)
    assert lodefs("push", "-", "r@new:a/b.txt").code == 0
    assert lodefs("cat", "r@new:a/b.txt").out == "from a pipe\n"
    for target in ("r", "r:", "r:dir/"):
        assert lodefs("push", "-", target).code == 2


def test_push_of_a_list(lodefs: Lodefs, source: Path, tmp_path: Path) -> None:
    """Only the listed paths are pushed, below PATH; names may end with NUL. What leads out of the
    directory, or is not there, is refused."""
    listed = tmp_path / "list"
    (source / "link").symlink_to("a.txt")
    listed.write_bytes(b"d/b\n./link\n\n")
    ran = lodefs("push", str(source), "r:sub", "--from-list", str(listed), "--json")
    assert (ran.code, ran.json["added_files"]) == (0, 2), ran.err
    assert set(paths(lodefs, "r")) == {"sub", "sub/d", "sub/d/b", "sub/link"}
    listed.write_bytes(b"a.txt\0")
    assert lodefs("push", str(source), "r", "--from-list", str(listed), "--null").code == 0
    assert "a.txt" in paths(lodefs, "r")
    (source / "away").symlink_to(tmp_path)
    (source / "same").symlink_to("d")
    through = (b"away/list", b"away/none", b"same/b", b"d/b\naway/source/d/b")
    refused = [(b"none", 3), (b"../x", 2), (b"/etc/passwd", 2), *((line, 2) for line in through)]
    for line, code in refused:
        listed.write_bytes(line)
        ran = lodefs("push", str(source), "r", "--from-list", str(listed))
        assert (ran.code, line in through) == (code, "leads through the symlink" in ran.err)


def test_a_dry_run(lodefs: Lodefs, source: Path, objects: MemoryObjects) -> None:
    """It says what would change and be sent, and the store stays as it was; then a push does just
    that."""
    lodefs("push", str(source), "r")
    before = {info.key: info.etag for info in objects.list("")}
    (source / "a.txt").write_text("other\n")
    (source / "new").write_bytes(os.urandom(100_000))
    dry = lodefs("push", "--dry-run", "--json", str(source), "r").json
    assert {info.key: info.etag for info in objects.list("")} == before
    assert (dry["dry_run"], dry["commit"], dry["unchanged"]) == (True, "", False)
    shown = lodefs("push", "-n", str(source), "r:other")
    assert "a dry run: nothing was written" in shown.out
    assert {info.key: info.etag for info in objects.list("")} == before
    real = lodefs("push", "--json", str(source), "r").json
    same = ("added_files", "changed_files", "removed_files", "new_bytes")
    assert [dry[key] for key in same] == [real[key] for key in same]
    again = lodefs("push", "--dry-run", str(source), "r")
    assert f"nothing changed: r@main stays at {real['commit']}" in again.out


def test_metadata(lodefs: Lodefs, source: Path) -> None:
    """What --meta says is in the log, and found by it; what cannot be is refused before a push, and
    what was not written is said."""
    words = ["--meta", "source=crawl-7", "--meta", "note=a = b\u202e"]
    commit = lodefs("push", str(source), "r", *words, "--json").json["commit"]
    (source / "a.txt").write_text("other\n")
    lodefs("push", str(source), "r", "--meta", "source=crawl-8", "-m", "second")
    assert "meta   note=a = b\\u202e\nmeta   source=crawl-7\n" in lodefs("log", "r@main~1").out
    (found,) = lodefs("log", "--json", "--meta", "source=crawl-7", "r").json_lines
    assert (found["commit"], found["metadata"]["source"]) == (commit, "crawl-7")
    assert (
        lodefs("log", "--oneline", "--meta", "source", "--meta", "note", "r").out
        == f"{commit[:12]}\n"
    )
    assert lodefs("log", "--meta", "source=", "r").out == ""
    assert "so --meta is not stored" in lodefs("push", str(source), "r", "--meta", "a=b").err
    assert lodefs("revert", "r", "main", "--meta", "why=wrong").code == 0
    assert [one["metadata"] for one in lodefs("log", "-n", "1", "--json", "r").json_lines] == [
        {"why": "wrong"}
    ]
    for wrong in ("x", "author=me", "x=a\nb", f"x={'y' * 10**6}"):
        ran = lodefs("push", str(source), "r:new", "--meta", wrong)
        assert (ran.code, ran.err.count("\n"), "metadata" in ran.err) == (2, 1, True)

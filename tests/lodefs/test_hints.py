"""Common mistakes: each is refused with one line that names the way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.app import COMMANDS, run
from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.push import push as push_module
from lodefs.chunkstore.repo.store import create_store
from lodefs.settings.session import Session
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs

FOLDERS_OF_COMMANDS = {
    "token": ("create", "list", "delete"),
    "repair": ("index",),
    "repo": ("rename",),
    "bundle": ("create", "unpack", "list"),
    "plan": ("create", "part", "run", "status", "finish", "discard"),
}


@pytest.fixture(autouse=True)
def store(objects: MemoryObjects) -> None:
    """A repository with a tag."""
    store = create_store(objects)
    commit = Handmade(store).commit("vision/cats", {b"images/1.jpg": b"1" * 9, b"a": b"x"})
    store.refs("vision/cats").advance("tags", "v2", commit, expected_sequence=None)


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        ("ls vision/cats@v2/images", 2, "a path follows a colon: vision/cats@v2:images"),
        ("ls vision/cats/images/x", 3, "a path follows a colon: vision/cats:images/x"),
        ("ls vision/cats:v2", 3, "a revision is written with @: vision/cats@v2"),
        ("pull vision/cats:v2 /nowhere/at/all", 3, "@: vision/cats@v2"),
        ("diff vision/cats@v2 main", 3, "the same repository is vision/cats@main"),
        ("ls --store s3//bucket vision/cats", 2, "lacks a colon: s3://bucket"),
        ("init s3//bucket/prefix", 2, "lacks a colon: s3://bucket/prefix"),
        ("init file//srv/x", 2, "lacks a colon: file:///srv/x"),
        ("mount --rw vision/cats /mnt", 2, "mounts are read-only"),
        ("push . . vision/cats", 2, "several sources go into a path"),
        ("log vision/cats~1", 2, "~ follows a revision: vision/cats@main~1"),
        ("cat vision/cats^2:a", 2, "^ follows a revision: vision/cats@main^2:a"),
        ("diff vision/cats@v2", 2, "name two, as in lodefs diff vision/cats@v2 vision/cats"),
        ("revert vision/cats@main~1", 2, "as in lodefs revert vision/cats main~1"),
        ("evict vision/cats@v2/images", 2, "a path follows a colon: vision/cats@v2:images"),
    ],
)
def test_mistakes_have_a_hint(lodefs: Lodefs, words: str, code: int, hint: str) -> None:
    """A mistake that users have made is one line with what was meant."""
    ran = lodefs(*words.split())
    assert ran.code == code
    assert hint in ran.err
    assert ran.err.count("\n") == 1


def test_paths_that_do_not_exist_have_no_hint(lodefs: Lodefs) -> None:
    """A mistyped path is not taken for a revision."""
    assert "written with @" not in lodefs("ls", "vision/cats:imagse").err


def test_swapped_arguments_of_push(lodefs: Lodefs, tmp_path: Path) -> None:
    """push REPO DIR is told the right order; push FILE REPO that it needs a place."""
    swapped = lodefs("push", "vision/cats", str(tmp_path))
    assert swapped.code == 2
    assert f"SRC comes first: lodefs push {tmp_path} vision/cats" in swapped.err
    (tmp_path / "one.jpg").write_text("")
    of_a_file = lodefs("push", str(tmp_path / "one.jpg"), "vision/cats")
    assert of_a_file.code == 2
    assert f"lodefs push {tmp_path}/one.jpg vision/cats:one.jpg" in of_a_file.err


def test_branch_that_looks_like_a_commit(lodefs: Lodefs, tmp_path: Path) -> None:
    """push says that a new branch was named like a commit, and how to remove it; not of a date."""
    source = tmp_path / "source"
    source.mkdir()
    ran = lodefs("push", str(source), "a/b@8b9f9451e872")
    assert ran.code == 0
    assert "8b9f9451e872 is the name of a new branch" in ran.err
    assert "lodefs branch --delete a/b 8b9f9451e872" in ran.err
    assert lodefs("branch", "--delete", "a/b", "8b9f9451e872").code == 0
    assert "new branch" not in lodefs("push", str(source), "a/b@20261122").err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("store = /srv/x", 'texts need quotes: store = "/srv/x"'),
        ("store = s3://b/p  # here", 'texts need quotes: store = "s3://b/p"'),
        ('store = "/x', ""),
    ],
)
def test_unquoted_toml(lodefs: Lodefs, tmp_path: Path, line: str, hint: str) -> None:
    """A TOML value without its quotes is shown with them."""
    config = tmp_path / "c.toml"
    config.write_text(f"# settings\n{line}\n")
    ran = lodefs("ls", LODEFS_CONFIG=str(config))
    assert ran.code == 2
    assert hint in ran.err
    assert ("need quotes" in ran.err) == bool(hint)


def test_proxy_is_not_enough(lodefs: Lodefs) -> None:
    """A command that reads the store says so if only a proxy was named."""
    ran = lodefs("--proxy", "unix:/p", "ls", "vision/cats", LODEFS_STORE="")
    assert ran.code == 2
    assert "so --proxy is not enough" in ran.err


def test_interrupted_push(lodefs: Lodefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C push says that the data sent so far stays."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(push_module, "push", interrupted)
    ran = lodefs("push", str(tmp_path), "r")
    assert ran.code == 130
    assert "the data sent so far stays: repeat the command" in ran.err


def test_notes_of_errors_are_shown(capfd: pytest.CaptureFixture[str]) -> None:
    """The notes of an error follow it on the same line."""

    class Failing(Session):
        def objects(self, url: str) -> MemoryObjects:
            error = Denied("no")
            error.add_note("ask root")
            raise error

    assert run(["ls", "r"], Failing({"LODEFS_STORE": "s3://memory"})) == 6
    assert capfd.readouterr().err == "lodefs: error: no; ask root\n"


@pytest.mark.parametrize(
    "words",
    [[name, *more] for name in COMMANDS for more in ([], *FOLDERS_OF_COMMANDS.get(name, []))],
    ids=lambda words: " ".join(map(str, words)),
)
def test_help_has_an_example(lodefs: Lodefs, words: list[str]) -> None:
    """Each --help ends with at least one example of its own command."""
    words = [words[0], *([] if len(words) == 1 else ["".join(words[1:])])]
    out = lodefs(*words, "--help").out
    examples = out.partition("Examples:\n")[2]
    assert f"lodefs {words[0]}" in examples
    assert words[-1] in examples


def test_help_as_a_word(lodefs: Lodefs) -> None:
    """`lodefs help` is --help, also of a command, and -v is --version."""
    assert lodefs("help").out == lodefs("--help").out
    assert lodefs("help", "push").out == lodefs("push", "--help").out
    assert lodefs("help", "token", "create").out == lodefs("token", "create", "--help").out
    assert lodefs("help", "psuh").code == 2
    assert lodefs("-v").out == lodefs("version").out


def test_sizes_that_look_equal(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """diff shows bytes if rounded sizes would look equal."""
    store = create_store(other := MemoryObjects())
    made = Handmade(store)
    made.commit("r", {b"f": b"1" * 2000})
    made.commit("r", {b"f": b"1" * 2001})
    objects.objects = other.objects
    first = lodefs("log", "--json", "r").json_lines[1]["commit"]
    assert "(2,000 B -> 2,001 B)" in lodefs("diff", f"r@{first}", "r").out


def test_run_install_says_what_comes_next() -> None:
    """The task that installs lodefs ends with the first commands."""
    script = Path(__file__).parents[2] / "run"
    assert "lodefs init $LODEFS_STORE" in script.read_text()


def test_help_of_a_closed_terminal() -> None:
    """`lodefs help COMMAND` works as a program too."""
    done = subprocess.run(
        [sys.executable, "-m", "lodefs.main", "help", "push"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.stdout.startswith("Usage: lodefs push ")

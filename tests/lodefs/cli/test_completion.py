"""Completion: what a shell is offered, and that it never waits long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import click
import pytest
from click.shell_completion import CompletionItem

from lodefs.app import cli
from lodefs.chunkstore.repo.store import create_store
from lodefs.cli import completion
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import MemorySession

LONG_S = 60.0


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> MemorySession:
    """Two repositories; a tag; a directory with a name that a shell would take apart."""
    monkeypatch.setattr(completion, "TIME_S_MAX", LONG_S)
    store = create_store(objects := MemoryObjects())
    made = Handmade(store)
    at = made.commit("vision/cats", {b"a.txt": b"1", b"sub dir/b\xff": b"2"})
    made.commit("vision/dogs", {})
    store.refs("vision/cats").advance("tags", "v1.0", at, expected_sequence=None)
    store.refs("vision/cats").advance("tags", "old", at, expected_sequence=None)
    store.refs("vision/cats").advance("tags", "old", None, expected_sequence=0)
    return MemorySession({"LODEFS_STORE": "s3://memory"}, objects)


def offered(session: MemorySession, *words: str) -> list[str]:
    """What follows the words of a command line."""
    shell = completion._Bash(cli, {"obj": session}, "lodefs", "_LODEFS_COMPLETE")
    *args, incomplete = words
    return [f"{one.type} {one.value}" for one in shell.get_completions(args, incomplete)]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["ls", "vis"], ["vision/cats", "vision/dogs"]),
        (["ls", "vision/cats"], ["vision/cats", "vision/cats@", "vision/cats:"]),
        (["log", "vision/cats"], ["vision/cats", "vision/cats@"]),
        (["du", "vision/cats@"], ["vision/cats@main", "vision/cats@v1.0"]),
        (["ls", "vision/cats@v"], ["vision/cats@v1.0"]),
        (["cat", "vision/cats@v1.0:"], ["vision/cats@v1.0:a.txt", "vision/cats@v1.0:sub dir/"]),
        (["pull", "vision/cats:s"], ["vision/cats:sub dir/"]),
        (["cat", "vision/cats:sub dir/"], ["vision/cats:sub dir/b\udcff"]),
        (["revert", "vision/cats", ""], ["main", "v1.0"]),
        (["revert", "vision/cats@main", "v"], ["v1.0"]),
        (["merge", "vision/cats@v1.0", ""], ["main"]),
        (["revert", "vision/nope", ""], []),
        (["log", "vision/cats:"], []),
        (["ls", "vision/cats@nope:"], []),
        (["ls", "../.."], []),
    ],
)
def test_names_in_the_store(session: MemorySession, words: list[str], values: list[str]) -> None:
    """Repositories, then their branches and tags, then paths, as far as the command takes them."""
    assert offered(session, *words) == [f"plain {value}" for value in values]


def test_files_then_places(session: MemorySession) -> None:
    """push takes files first; after one of them a place of the store too."""
    assert offered(session, "push", "vis") == ["file vis"]
    found = offered(session, "push", "x", "vision/d")
    assert found == ["file vision/d", "plain vision/dogs"]


def test_a_store_that_is_away(session: MemorySession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is offered, and nothing said: of an error, and of what takes too long."""

    def broken() -> Iterator[str]:
        yield "one"
        raise OSError("no store")

    def slow() -> Iterator[str]:
        yield "two"
        signal.pause()

    assert completion._soon(broken) == ["one"]
    monkeypatch.setattr(completion, "TIME_S_MAX", 0.2)
    assert completion._soon(slow) in (["two"], [])
    nowhere = MemorySession({"HOME": "/nonexistent"}, MemoryObjects())
    assert offered(nowhere, "ls", "vis") == []


@pytest.mark.parametrize(
    ("line", "breaks", "found", "written"),
    [
        ("lodefs ls vision/cats@ma", " @:", "vision/cats@main", "plain,main"),
        ("lodefs ls r@v1:im", " @:", "r@v1:images/", "plain,images/"),
        ("lodefs ls r@v1:im", " :", "r@v1:images/", "plain,images/"),
        ("lodefs ls r@v1:im", " ", "r@v1:images/", "plain,r@v1:images/"),
        ("lodefs ls r:a\\ b/", " @:", "r:a b/$c'", "plain,a\\ b/\\$c\\'"),
        ("lodefs ls r:a\\ ", " @:", "r:a b/", "plain,a\\ b/"),
        ('lodefs ls "r@v1:a b', " @:", 'r@v1:a b/$"c', 'plain,r@v1:a b/\\$\\"c'),
        ('lodefs ls "r:a ', " @:", "r:a b/", "plain,r:a b/"),
        ("lodefs ls 'r@v1:a", " @:", "r@v1:a b/$c'", "plain,r@v1:a b/$c'\\''"),
        ('lodefs ls r@v1:"a', " @:", "r@v1:a b/", "plain,a b/"),
        ('lodefs ls "r@v1:a b/"im', " @:", "r@v1:a b/images/", "plain,r@v1:a\\ b/images/"),
        ("lodefs ls ", " @:", "r", "plain,r"),
    ],
)
def test_words_of_bash(
    monkeypatch: pytest.MonkeyPatch, line: str, breaks: str, found: str, written: str
) -> None:
    """bash replaces what follows an open quote, or the last character outside of quotes at which it
    ends words. Special characters have a backslash before them, as far as the quote needs it."""
    monkeypatch.setenv("LODEFS_COMPLETE_LINE", line)
    monkeypatch.setenv("LODEFS_COMPLETE_BREAKS", breaks)
    shell = completion._Bash(click.Command("x"), {}, "lodefs", "_LODEFS_COMPLETE")
    assert shell.get_completion_args()[0] == ["ls"]
    assert shell.format_completion(CompletionItem(found)) == written


@pytest.mark.skipif(which("bash") is None, reason="needs bash")
def test_in_bash(tmp_path: Path) -> None:
    """The script that the help names completes commands, options and files."""
    (tmp_path / "lodefs").write_text(f'#!/bin/sh\nexec {sys.executable} -m lodefs.main "$@"\n')
    (tmp_path / "lodefs").chmod(0o755)
    (tmp_path / "a file").touch()
    script = """
        eval "$(_LODEFS_COMPLETE=bash_source lodefs)"
        for COMP_LINE in "lodefs pu" "lodefs log --one" "lodefs push a"; do
            COMP_POINT=${#COMP_LINE} COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
            _lodefs_completion lodefs 2>/dev/null
            printf '[%s]' "${COMPREPLY[@]}"
        done
    """
    ran = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert ran.stdout == "[push][pull][purge][--oneline][a file]"

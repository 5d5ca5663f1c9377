"""``lodefs purge``, as a user runs it: by path, and at a copy of the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.settings.session import Session


@pytest.fixture
def stores(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """A store and its copy, of three files of which two are equal; the copy has another one."""
    source = tmp_path / "source"
    source.mkdir()
    for name, data in (("a", "a"), ("secret", "s"), ("same", "t")):
        (source / name).write_text(data * 9000)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    for line in (
        ["init", here],
        ["init", there],
        ["--store", here, "push", str(source), "x/y"],
        ["copy", here, there, "--all"],
    ):
        assert lodefs(tmp_path, *line) == 0
    capfd.readouterr()
    return here, there


def lodefs(home: Path, *line: str) -> int:
    """Runs one command."""
    return run(list(line), Session({"HOME": str(home)}))


def test_a_purge_that_did_not_reach_a_copy(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next copy says it, each time, and names the command that purges there too: after that
    the bytes are gone there, and nothing is left to say."""
    here, there = stores
    assert lodefs(tmp_path, "--store", here, "purge", "x/y", "--path", "secret", "-y") == 0
    assert f"lodefs purge --from {here} --store COPY" in capfd.readouterr().out
    for more in ([], ["--dry-run"]):
        assert lodefs(tmp_path, "copy", here, there, "--all", *more) == 0
        told = capfd.readouterr().err
        assert "has purged 1 chunk of x/y:secret" in told
    assert lodefs(tmp_path, "--store", there, "cat", "x/y:secret") == 0
    capfd.readouterr()
    command = told.strip().rpartition(": lodefs ")[2].split()
    assert command[:2] == ["purge", "--from"]
    assert lodefs(tmp_path, *command) == 2  # nobody is there to be asked
    assert lodefs(tmp_path, *command, "-y", "--json") == 0
    assert json.loads(capfd.readouterr().out)["size_bytes"] > 0
    assert lodefs(tmp_path, "--store", there, "cat", "x/y:secret") == 8
    assert lodefs(tmp_path, "--store", there, "cat", "x/y:same") == 0
    capfd.readouterr()
    assert lodefs(tmp_path, "copy", here, there, "--all") == 0
    assert capfd.readouterr().err == ""


def test_other_files_of_a_copy_have_the_same_bytes(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was purged for one path of the store is not purged for another one of the copy
    unasked."""
    here, there = stores
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "f").write_text("s" * 9000)
    assert lodefs(tmp_path, "--store", there, "push", str(tmp_path / "own"), "own") == 0
    assert lodefs(tmp_path, "--store", here, "purge", "x/y", "--path", "secret", "-y") == 0
    line = ["purge", "--from", here, "--store", there, "-y"]
    assert lodefs(tmp_path, *line) == 2
    assert "own:f" in capfd.readouterr().err
    assert lodefs(tmp_path, *line, "--also-shared") == 0
    assert lodefs(tmp_path, "--store", there, "cat", "own:f") == 8


def test_a_purge_at_a_copy_that_never_had_it(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is known there from then on: its bytes are refused, and no copy speaks of it again."""
    here, _ = stores
    empty = str(tmp_path / "empty")
    assert lodefs(tmp_path, "init", empty) == 0
    assert lodefs(tmp_path, "--store", here, "purge", "x/y", "--path", "secret", "-y") == 0
    assert lodefs(tmp_path, "purge", "--from", here, "--store", empty, "-y") == 0
    capfd.readouterr()
    assert lodefs(tmp_path, "copy", here, empty, "--all") == 0
    assert capfd.readouterr().err == ""
    assert lodefs(tmp_path, "--store", empty, "push", str(tmp_path / "source"), "z") != 0


@pytest.mark.parametrize("target", ["x/y@main", "x/y:secret"])
def test_a_revision_is_not_purged_alone(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str], target: str
) -> None:
    """The error names the command for all versions, and not rules for names."""
    assert lodefs(tmp_path, "--store", stores[0], "purge", target, "--path", "secret", "-y") == 2
    assert "lodefs purge x/y --path secret" in capfd.readouterr().err

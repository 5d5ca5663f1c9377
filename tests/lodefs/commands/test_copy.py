"""``lodefs copy`` between two directories, as a user runs it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.settings.session import Session


@pytest.fixture
def stores(tmp_path: Path) -> tuple[str, str]:
    """A store with one repository, and an empty one."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "a").write_text("a" * 9000)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    for line in (["init", here], ["init", there], ["--store", here, "push", str(source), "x/y"]):
        assert lodefs(tmp_path, *line) == 0
    return here, there


def lodefs(home: Path, *line: str) -> int:
    """Runs one command."""
    return run(list(line), Session({"HOME": str(home)}))


def test_copy_and_copy_again(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A dry run plans what the copy then does, and the second copy has nothing to do."""
    capfd.readouterr()
    found = []
    for more in (["--dry-run"], [], []):
        assert lodefs(tmp_path, "copy", *stores, "--all", "--json", *more) == 0
        found.append(json.loads(capfd.readouterr().out))
    planned, done, again = found
    assert done.keys() == {
        "dry_run", "refs", "refused", "commits", "packs", "packs_by_server", "packs_there",
        "purged_chunks", "stored_bytes",
    }  # fmt: skip
    assert (done["commits"], done["packs"], again["commits"], again["packs"]) == (1, 2, 0, 0)
    assert planned == done | {"dry_run": True}
    (ref,) = again["refs"]
    assert (ref["repo"], ref["kind"], ref["name"]) == ("x/y", "branch", "main")
    assert ref["previous"] == ref["commit"]
    assert lodefs(tmp_path, "copy", *stores, "x/y") == 0
    assert "x/y@main  unchanged" in capfd.readouterr().out
    assert lodefs(tmp_path, "--store", stores[1], "verify", "--data") == 0


def test_one_that_is_damaged(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --all, a branch that needs a damaged pack is named with the way out, and the pack does
    not count as sent."""
    here, there = stores
    (tmp_path / "source" / "b").write_bytes(random.Random(1).randbytes(9000))
    assert lodefs(tmp_path, "--store", here, "push", str(tmp_path / "source"), "x/y") == 0
    pack = max(Path(here).glob("packs/*/*"), key=lambda path: path.stat().st_size)
    pack.write_bytes(b"?" * 100 + pack.read_bytes()[100:])
    capfd.readouterr()
    assert lodefs(tmp_path, "copy", here, there, "--all", "--json") == 1
    out, err = capfd.readouterr()
    assert err.startswith("lodefs: x/y@main is not copied: chunk 0 of pack")
    assert "`lodefs repair`" in err
    found = json.loads(out)
    arrived = sum(path.stat().st_size for path in Path(there).glob("packs/*/*"))
    assert found["stored_bytes"] == arrived


def test_one_that_is_refused(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --all, a branch that is ahead there is named, all else is copied, and the exit code is
    1; alone it is refused with that of sides that went apart."""
    here, there = stores
    assert lodefs(tmp_path, "copy", here, there, "--all") == 0
    (tmp_path / "source" / "b").write_text("b" * 9000)
    source = str(tmp_path / "source")
    assert lodefs(tmp_path, "--store", there, "push", source, "x/y") == 0
    assert lodefs(tmp_path, "--store", here, "push", source, "x/z") == 0
    capfd.readouterr()
    assert lodefs(tmp_path, "copy", here, there, "--all", "--json") == 1
    out, err = capfd.readouterr()
    assert err.startswith("lodefs: x/y@main is not copied: branch main of x/y is ahead")
    assert err.count("\n") == 1
    found = json.loads(out)
    assert [one["repo"] for one in found["refs"]] == ["x/z"]
    assert [(one["repo"], one["kind"], one["name"]) for one in found["refused"]] == [
        ("x/y", "branch", "main")
    ]
    assert lodefs(tmp_path, "copy", here, there, "x/y") == 15


def test_bad_lines(
    stores: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What cannot be copied is told in one line, with its exit code."""
    here, there = stores
    for line, code, words in (
        ([here, there], 2, "--all"),
        ([here, here, "x/y"], 2, "copied to itself"),
        ([here, there, "x/y:dir"], 2, ""),
        ([here, there, "x/z"], 3, f"{here} has x/y"),
        ([here, str(tmp_path / "none"), "x/y"], 3, "lodefs init"),
    ):
        capfd.readouterr()
        assert lodefs(tmp_path, "copy", *line) == code
        err = capfd.readouterr().err
        assert words in err
        assert err.count("\n") == 1

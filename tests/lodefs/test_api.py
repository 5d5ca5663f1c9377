"""import lodefs: what the command line does, as functions."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lodefs
from lodefs.app import run
from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, NotFound, TooManyRemovals
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store
from lodefs.settings.session import Session

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty store, which the environment names."""
    place = str(tmp_path / "store")
    create_store(DirectoryObjects(place))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LODEFS_STORE", place)
    monkeypatch.setenv("LODEFS_CONFIG", os.devnull)
    return place


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with some files."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / f"{number}.txt").write_text(f"file {number}\n")
    return source


def test_signatures_name_every_option() -> None:
    """What shows a function's signature to people shows each option, its type and its default."""
    shown = inspect.signature(lodefs.push).parameters
    defaults = {one.name: one.default for one in shown.values() if one.default is not one.empty}
    assert defaults == {
        "message": "", "author": None, "metadata": (), "skip_unreadable": False,
        "allow_removals": False, "check": False, "exclude": (), "private": "push",
        "dry_run": False, "workers": None, "rate_bytes_s": None, "executor": None, "progress": None,
        "store": None, "session": None,
    }  # fmt: skip
    assert [one.name for one in shown.values()][:2] == ["directory", "repo"]
    assert shown["workers"].annotation == int | None
    assert {"store", "session"} <= inspect.signature(lodefs.tag.delete).parameters.keys()


@pytest.mark.usefixtures("store")
def test_a_version_and_another(source: Path, tmp_path: Path) -> None:
    """push, log, diff, tag, branch and pull do what the commands do."""
    first = lodefs.push(source, "vision/cats", message="first")
    assert lodefs.tag("vision/cats", "v1").commit == first.commit
    (source / "0.txt").write_text("changed\n")
    second = lodefs.push(source, "vision/cats", message="second", author="me")
    assert lodefs.push(source, "vision/cats").unchanged
    log = list(lodefs.log("vision/cats"))
    assert [(one.id, one.commit.message) for one in log] == [
        (second.commit, "second"), (first.commit, "first")
    ]  # fmt: skip
    assert log[0].commit.author == "me"
    changes = list(lodefs.diff("vision/cats@v1", "vision/cats"))
    assert [(change.what.value, change.path) for change in changes] == [("changed", b"0.txt")]
    lodefs.branch("vision/cats@v1", "dev")
    with pytest.raises(AlreadyExists):
        lodefs.branch("vision/cats", "dev")
    assert lodefs.branch("vision/cats", "dev", force=True).previous == first.commit
    assert {ref.name for ref in lodefs.branch.list("vision/cats")} == {"main", "dev"}
    lodefs.branch.delete("vision/cats", "dev")
    assert lodefs.branch.undelete("vision/cats", "dev").commit == second.commit
    pulled = lodefs.pull("vision/cats@v1", tmp_path / "copy")
    assert pulled.files == 5
    assert (tmp_path / "copy" / "0.txt").read_text() == "file 0\n"


@pytest.mark.usefixtures("store")
def test_bad_input(source: Path, tmp_path: Path) -> None:
    """Errors are those of the commands."""
    lodefs.push(source, "cats")
    with pytest.raises(InvalidInput, match="without a path"):
        lodefs.push(source, "cats:images")
    with pytest.raises(NotFound):
        list(lodefs.log("dogs"))
    with pytest.raises(NotFound):
        lodefs.tag("cats@unknown", "v1")
    for number in range(4):
        (source / f"{number}.txt").unlink()
    with pytest.raises(TooManyRemovals):
        lodefs.push(source, "cats")
    assert lodefs.push(source, "cats", allow_removals=True).changes


def test_import_costs_nothing() -> None:
    """import lodefs brings no library with it, and knows its names all the same."""
    script = """
import sys
before = set(sys.modules)
import lodefs
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(new - set(sys.stdlib_module_names)), "push" in dir(lodefs))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['lodefs'] True"


def test_mount_is_package_and_function() -> None:
    """lodefs.mount can be called, and the modules in it be imported, in any order."""
    check = "callable(lodefs.mount) or 1/0"
    scripts = (
        f"import lodefs; {check}; import lodefs.mount.options as o; o.MODE_MAX",
        f"import lodefs.mount.options as o; import lodefs; {check}; o.MODE_MAX",
        f"import lodefs; from lodefs import mount; {check}; mount.__path__",
    )
    for script in scripts:
        subprocess.run([sys.executable, "-c", script], check=True)


def test_extras_are_installed() -> None:
    """The tests of the file system do not run without fsspec: `./run setup` installs it."""
    assert find_spec("fsspec")


@pytest.mark.usefixtures("store")
def test_changes_without_a_directory(source: Path) -> None:
    """commit_changes puts, copies, renames and removes; what others changed meanwhile stays."""
    first = lodefs.push(source, "vision/cats", message="first")
    lodefs.commit_changes("vision/cats", [lodefs.changes.Put("b/new.txt", b"new")])
    done = lodefs.commit_changes(
        "vision/cats",
        [
            lodefs.changes.Rename("0.txt", "a/0.txt"),
            lodefs.changes.CopyFrom("vision/cats:1.txt", "a/1.txt"),
            lodefs.changes.Remove("2.txt"),
        ],
        message="second",
        base=first.commit,
    )
    assert (done.changes.added_files, done.changes.removed_files) == (2, 2)
    found = {
        c.path: c.what.value for c in lodefs.diff(f"vision/cats@{first.commit}", "vision/cats")
    }
    assert found == {
        b"0.txt": "removed", b"2.txt": "removed", b"a": "added", b"a/0.txt": "added",
        b"a/1.txt": "added", b"b": "added", b"b/new.txt": "added",
    }  # fmt: skip
    with pytest.raises(NotFound):
        lodefs.commit_changes("vision/cats", [lodefs.changes.Remove("none")])


def test_the_version_is_that_of_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    """lodefs.__version__ is a text, as of other packages."""
    assert run(["version"], Session({})) == 0
    assert capfd.readouterr().out == f"lodefs {lodefs.__version__}\n"

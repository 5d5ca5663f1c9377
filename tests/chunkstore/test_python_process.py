"""Other Python processes of lodefs: that they start everywhere, and what they see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lodefs.chunkstore import python_process

ROOT = str(Path(__file__).parents[2])
FOREIGN = "import sys; sys.exit('a foreign module was imported')"


@pytest.fixture
def interpreter() -> str:
    """Python without this environment's packages, as the program of a package has it: unlike one
    of a virtual environment it looks for packages of the user."""
    return os.path.realpath(sys.executable)


def printed(command: list[str], **more: str) -> str:
    """What a command prints that succeeds, with ``more`` in its environment."""
    return subprocess.run(
        command, env=os.environ | more, capture_output=True, text=True, timeout=60, check=True
    ).stdout


def test_it_starts_from_an_isolated_python(interpreter: str) -> None:
    """A program that was told where its packages lie, as the installed /usr/bin/lodefs is, starts a
    process that finds them without being told."""
    program = f"""
import subprocess, sys
sys.path += {[place for place in sys.path if os.path.isabs(place)]}
from lodefs.chunkstore import python_process
subprocess.run(python_process.command("lodefs.main", "version"), check=True)
"""
    assert printed([interpreter, "-IS", "-c", program]).startswith("lodefs ")


def test_it_sees_no_foreign_modules(
    interpreter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of the current directory, of the HOME that is set, nor of PYTHONPATH."""
    home, here, path = tmp_path / "home", tmp_path / "here", tmp_path / "path"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for place, names in {
        home / f".local/lib/{version}/site-packages": ["usercustomize"],
        here: ["lodefs", "msgspec", "click"],
        path: ["sitecustomize", "msgspec", "click"],
    }.items():
        place.mkdir(parents=True)
        for name in names:
            (place / f"{name}.py").write_text(FOREIGN)
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "executable", interpreter)
    monkeypatch.setattr(sys, "path", ["", str(here), *sys.path])
    command = python_process.command("lodefs.main", "version")
    assert printed(command, HOME=str(home), PYTHONPATH=str(path)).startswith("lodefs ")


def test_where_its_packages_lie() -> None:
    """Its own first, then those of its starter; relative places and the current one are left out,
    unless that is its own."""
    path = ["", "lib", "/here", "/usr/lib/python3", ROOT, "/site"]
    assert python_process.package_places(path, "/here") == [ROOT, "/usr/lib/python3", "/site"]
    assert python_process.package_places([ROOT, "/site"], ROOT) == [ROOT, "/site"]


def test_a_directory_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can be started where there is no current directory."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert python_process.command("lodefs.main", "version")[-1] == "version"


def test_its_environment_has_nothing_for_python() -> None:
    """Only variables that other Pythons would follow are dropped."""
    kept = {"PATH": "/bin", "LODEFS_STORE": "/s", "MY_PYTHONPATH": "/m"}
    dropped = {"PYTHONPATH": "/p", "PYTHONHOME": "/h", "PYTHONSTARTUP": "/s"}
    assert python_process.environment(kept | dropped) == kept

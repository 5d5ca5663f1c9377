"""install.sh and uninstall.sh below a directory of their own, and what they refuse."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.conftest import DEPLOY, build
from tests.support.chunkstore.child_process import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INSTALL, UNINSTALL = DEPLOY / "install.sh", DEPLOY / "uninstall.sh"
PREINST = DEPLOY / "debian/preinst"
LIB = "/usr/local/lib/lodefs"
DOC = "/usr/share/doc/lodefs"
OF_MANUAL = ["blake3", "click", "fastcdc", "msgspec", "zstandard"]
PROGRAMS = ["bin/lodefs", "lib/lodefs/services.sh", "lib/lodefs/uninstall.sh"]


def files(root: Path) -> set[str]:
    """All files below a directory, as they are below /."""
    return {f"/{(Path(place) / name).relative_to(root)}"
            for place, _, names in os.walk(root) for name in names}  # fmt: skip


def refused(*words: str | Path) -> str:
    """What a script says that does nothing."""
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    return done.stderr


@pytest.fixture
def alone(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """lodefs' wheel, which pip installs with no more than `lodefs man` needs: nothing else runs
    here, and the rest takes the most time. tests/deploy/test_life.py installs the whole."""
    needed = tmp_path / "needed.txt"
    needed.write_text("\n".join(OF_MANUAL))
    for name, value in (("NO_INDEX", "1"), ("NO_DEPS", "1"), ("FIND_LINKS", wheels)):
        monkeypatch.setenv(f"PIP_{name}", str(value))
    monkeypatch.setenv("PIP_REQUIREMENT", str(needed))
    (own,) = wheels.glob("lodefs-*.whl")
    return own


def foreign_modules(place: Path) -> Path:
    """A directory as somebody else may have left it: who imports of it ends."""
    place.mkdir()
    for name in ("ensurepip", "venv", "pip", "compileall", "json", "struct"):
        (place / f"{name}.py").write_text("import os; os.kill(os.getpid(), 9)")
    return place


def test_what_is_said_is_done_and_undone(
    alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run names what an installation then writes, and writes nothing itself; the manifest
    has each file; settings that are there stay; uninstall.sh leaves the settings, nothing else.
    Python imports nothing of the current directory."""
    root = tmp_path / "the root"
    settings = root / "etc/lodefs/lodefs.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("# ours\n")
    words: list[str | Path] = [INSTALL, "--destdir", root, "--wheel", alone]
    with monkeypatch.context() as patched:
        patched.chdir(foreign_modules(tmp_path / "foreign"))
        told = build(*words, "--dry-run")
    assert files(root) == {"/etc/lodefs/lodefs.toml"}
    assert f"  keep {settings}\n" in told
    build(*words, "--yes")
    manifest = (root / "usr/lib/lodefs/manifest").read_text().split()
    assert files(root) == {*manifest, "/etc/lodefs/lodefs.toml", "/etc/default/lodefs"}
    said = {line.removeprefix(f"  write {root}") for line in told.splitlines() if "  write" in line}
    assert {one for one in manifest if not one.startswith(("/usr/lib/lodefs/", DOC))} < said
    documents = sum(one.startswith(f"{DOC}/") for one in manifest)
    assert f"  write {root}{DOC} ({documents} files)\n" in told
    assert f"  make {root}/etc/lodefs/mounts.d, for mounts at boot\n" in told
    assert (root / "etc/lodefs/mounts.d").is_dir()
    assert settings.read_text() == "# ours\n"
    assert "no terminal to ask at" in refused(UNINSTALL, "--destdir", root)
    run([UNINSTALL, "--destdir", root, "--yes"])
    assert files(root) == {"/etc/lodefs/lodefs.toml", "/etc/default/lodefs"}
    (root / "etc/default/lodefs-docker").touch()
    run([UNINSTALL, "--destdir", root, "--yes", "--purge"])
    assert files(root) == set()


def test_scripts_isolate_python() -> None:
    """No script of deploy/ lets Python import what the current directory or a user's home has."""
    calls = [
        (script.name, words)
        for script in DEPLOY.rglob("*.sh")
        for words in re.findall(r'(?<!--python )"\$[^"]*python[^"]*" (-\S+)', script.read_text())
    ]
    assert len(calls) > 10
    assert {words for _, words in calls} <= {"-I", "-Ps"}, calls


def test_another_prefix(tmp_path: Path) -> None:
    """The installed uninstall.sh removes what lies beside it; the checkout's, which knows nothing
    of that, purges nothing under it, and install.sh installs no second one."""
    ours = tmp_path / "usr/local/lib/lodefs"
    settings = tmp_path / "etc/lodefs/lodefs.toml"
    for folder in (ours, settings.parent, tmp_path / "usr/local/bin"):
        folder.mkdir(parents=True)
    installed = shutil.copy(UNINSTALL, ours)
    names = [f"/usr/local/{name}" for name in PROGRAMS]
    for place in (settings, *(tmp_path / name[1:] for name in names)):
        place.touch()
    (ours / "manifest").write_text("".join(f"{name}\n" for name in (*names, f"{LIB}/manifest")))
    before = files(tmp_path)
    words = ("--destdir", tmp_path, "--yes")
    assert "below /usr/local; remove that first" in refused(UNINSTALL, *words, "--purge")
    assert "lodefs is installed below /usr/local" in refused(INSTALL, *words)
    assert "not /" in refused(installed, "--dry-run", "--purge")  # not of this machine
    assert files(tmp_path) == before
    run([installed, *words, "--purge"])
    assert files(tmp_path) == set()


def test_beside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uninstall.sh leaves the Debian package to dpkg, and what that has left behind too; and dpkg
    installs none beside an installation of install.sh."""
    dpkg_query = tmp_path / "dpkg-query"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for status, told in {
        "install ok installed": "apt remove lodefs",
        "deinstall ok config-files": "apt purge lodefs",
    }.items():
        dpkg_query.write_text(f"#!/bin/sh\necho '{status}'\n")
        dpkg_query.chmod(0o755)
        assert told in refused(UNINSTALL, "--dry-run", "--purge")
    monkeypatch.setenv("DPKG_ROOT", str(tmp_path))
    run([PREINST, "install"])
    for prefix in ("usr", "usr/local"):
        manifest = tmp_path / prefix / "lib/lodefs/manifest"
        manifest.parent.mkdir(parents=True)
        manifest.touch()
        assert f"below /{prefix}; remove that first" in refused(PREINST, "install")
        manifest.unlink()


def test_refusals(tmp_path: Path) -> None:
    """What cannot be done is said in one line, before anything is touched."""
    assert "no option --wheels" in refused(INSTALL, "--wheels")
    assert "--prefix must be /usr or /usr/local" in refused(INSTALL, "--prefix", "/opt")
    assert "must be Python 3.11 or newer" in refused(
        INSTALL, "--destdir", tmp_path, "--python", "/bin/false"
    )
    assert "do not go together" in refused(INSTALL, "--destdir", tmp_path, "--enable")
    assert "no terminal to ask at; give --yes" in refused(INSTALL, "--destdir", tmp_path)
    foreign = tmp_path / "usr/lib/lodefs"
    foreign.mkdir(parents=True)
    assert "but not from install.sh" in refused(INSTALL, "--destdir", tmp_path)
    assert "has not installed here" in refused(UNINSTALL, "--destdir", tmp_path, "--purge")
    assert files(tmp_path) == set()


SCRIPTS = sorted(
    script
    for script in DEPLOY.rglob("*.sh")
    if script.relative_to(DEPLOY).parts[0] not in ("enroot", "slurm")  # hooks: no user starts them
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_explains_itself(script: Path) -> None:
    """--help says how a script is used, and does nothing."""
    assert run([script, "--help"]).startswith(f"usage: {script.name}")

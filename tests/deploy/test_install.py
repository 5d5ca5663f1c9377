"""install.sh and uninstall.sh below a directory of their own, and what they refuse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chunkstore.testing.children import run
from tests.deploy.conftest import DEPLOY, build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INSTALL, UNINSTALL = DEPLOY / "install.sh", DEPLOY / "uninstall.sh"


def files(root: Path) -> set[str]:
    """All files below a directory, as they are below /."""
    return {f"/{(Path(place) / name).relative_to(root)}"
            for place, _, names in os.walk(root) for name in names}  # fmt: skip


def refused(*words: str | Path) -> str:
    """What a script says that does nothing."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    return done.stderr


@pytest.fixture
def offline(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """lodefs' wheel; pip finds all others beside it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (own,) = wheels.glob("lodefs-*.whl")
    return own


def test_what_is_said_is_done_and_undone(offline: Path, tmp_path: Path) -> None:
    """A dry run names what an installation then writes, and writes nothing itself; the manifest
    has each file; settings that are there stay; uninstall.sh leaves the settings, nothing else."""
    root = tmp_path / "the root"
    settings = root / "etc/lodefs/lodefs.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("# ours\n")
    words = [INSTALL, "--destdir", root, "--wheel", offline]
    told = build(*words, "--dry-run")
    assert files(root) == {"/etc/lodefs/lodefs.toml"}
    assert f"  keep {settings}\n" in told
    build(*words, "--yes")
    manifest = (root / "usr/lib/lodefs/manifest").read_text().split()
    assert files(root) == {*manifest, "/etc/lodefs/lodefs.toml", "/etc/default/lodefs"}
    said = {line.removeprefix(f"  write {root}") for line in told.splitlines() if "  write" in line}
    assert {one for one in manifest if not one.startswith("/usr/lib/lodefs/")} < said
    assert settings.read_text() == "# ours\n"
    run([UNINSTALL, "--destdir", root, "--yes"])
    assert files(root) == {"/etc/lodefs/lodefs.toml", "/etc/default/lodefs"}
    run([UNINSTALL, "--destdir", root, "--yes", "--purge"])
    assert files(root) == set()


def test_refusals(tmp_path: Path) -> None:
    """What cannot be done is said in one line, before anything is touched."""
    assert "no option --wheels" in refused(INSTALL, "--wheels")
    assert "--prefix must be /usr or /usr/local" in refused(INSTALL, "--prefix", "/opt")
    assert "must be Python 3.11 or newer" in refused(
        INSTALL, "--destdir", tmp_path, "--python", "/bin/false"
    )
    assert "do not go together" in refused(INSTALL, "--destdir", tmp_path, "--enable")
    foreign = tmp_path / "usr/lib/lodefs"
    foreign.mkdir(parents=True)
    assert "but not from install.sh" in refused(INSTALL, "--destdir", tmp_path)
    assert "has not installed here" in refused(UNINSTALL, "--destdir", tmp_path, "--purge")
    assert files(tmp_path) == set()


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_every_script_explains_itself(script: Path) -> None:
    """--help says how a script is used, and does nothing."""
    assert run([script, "--help"]).startswith(f"usage: {script.name}")

"""The generator of mounts' units: one wish for each file with a name that a unit can have."""

from __future__ import annotations

import os
from pathlib import Path

from loadtests.services.machine import ROOT
from tests.support.chunkstore.child_process import run

GENERATOR = ROOT / "deploy/systemd/lodefs-mounts-generator"
GOOD = ["cats", "a-b", "vision.cats_2:x", "-", "x" * 200]
BAD = ["no name", "a@b", "a\\x2db", "ü", "", "x" * 201, "a\nb", "$(id)", "*"]


def generate(tmp_path: Path, mounts: Path) -> tuple[list[str], str]:
    """The units that it has wanted, and what it says."""
    out, log = tmp_path / "out", tmp_path / "log"
    log.touch()
    run(["sh", GENERATOR, out, out, out],
        env={"LODEFS_MOUNTS_DIR": str(mounts), "LODEFS_GENERATOR_LOG": str(log)})  # fmt: skip
    wants = out / "multi-user.target.wants"
    return sorted(os.listdir(wants)) if wants.exists() else [], log.read_text()


def test_a_unit_for_each_file(tmp_path: Path) -> None:
    """Names that a unit can have are used as they are; others are told, and skipped."""
    mounts = tmp_path / "mounts.d"
    mounts.mkdir()
    for name in (*GOOD, *BAD):
        (mounts / f"{name}.toml").touch()
    for name in (".hidden.toml", "cats.toml~", "notes.txt"):
        (mounts / name).touch()
    (mounts / "directory.toml").mkdir()
    units, said = generate(tmp_path, mounts)
    assert units == sorted(f"lodefs-mount@{name}.service" for name in GOOD)
    assert said.count("is skipped") == len(BAD) - 1  # "": a hidden file
    assert said.count("is longer than 200") == 1


def test_no_files(tmp_path: Path) -> None:
    """Without the directory, or with an empty one, there is nothing to want."""
    assert generate(tmp_path, tmp_path / "none") == ([], "")
    (tmp_path / "empty").mkdir()
    assert generate(tmp_path, tmp_path / "empty") == ([], "")


def test_again(tmp_path: Path) -> None:
    """A second run over the first one's links fails nothing."""
    (tmp_path / "cats.toml").touch()
    assert generate(tmp_path, tmp_path) == generate(tmp_path, tmp_path)

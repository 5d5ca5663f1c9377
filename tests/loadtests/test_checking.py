"""The reader that believes nothing: it is content with equal directories, and with no others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chunkstore.testing.directories import random_files
from loadtests.checking import TOLD_MAX, Checked, Reader

OPERATIONS = ("pread", "whole", "sequential", "map", "list", "status", "forget")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    random_files(folder, files=20, size_bytes_max=50_000)
    (folder / "large").write_bytes(bytes(range(256)) * 8192)
    return folder


@pytest.fixture
def copy(source: Path) -> Path:
    folder = source.parent / "copy"
    shutil.copytree(source, folder)
    return folder


def checked(mount: Path, source: Path, rounds: int = 60) -> Checked:
    """Every operation so many times."""
    reader = Reader(str(mount), str(source), seed=1)
    for _ in range(rounds):
        for name in OPERATIONS:
            reader._timed(getattr(reader, f"_{name}"))
    return reader.seen


def test_equal_directories(copy: Path, source: Path) -> None:
    """All operations are done, bytes are compared, nothing is told."""
    seen = checked(copy, source)
    assert (seen.wrong, seen.errors, seen.told) == (0, 0, [])
    assert seen.operations == 60 * len(OPERATIONS)
    assert seen.size_bytes > 1_000_000
    assert set(seen.longest_s) == set(OPERATIONS)


def test_one_other_byte(copy: Path, source: Path) -> None:
    """A byte that differs is found, and told with its file."""
    data = bytearray((copy / "large").read_bytes())
    data[1_000_000] ^= 1
    (copy / "large").write_bytes(data)
    seen = checked(copy, source)
    assert seen.wrong > 0
    assert seen.told[0].startswith("large: ")


@pytest.mark.parametrize("harm", ["shorter", "removed", "another"])
def test_other_names_and_sizes(copy: Path, source: Path, harm: str) -> None:
    """Missing, additional and shorter files are found; what is told has a limit."""
    if harm == "shorter":
        (copy / "large").write_bytes((copy / "large").read_bytes()[:-1])
    elif harm == "removed":
        (copy / "large").unlink()
    else:
        (copy / "another").touch()
    seen = checked(copy, source)
    assert seen.wrong + seen.errors > 0
    assert 0 < len(seen.told) <= TOLD_MAX

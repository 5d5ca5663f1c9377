"""Readers that believe nothing: they are content with equal directories, and with no others."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from loadtests.verifying import MIXES, TOLD_MAX, Reader, Verified, _seen, verifying
from tests.support.chunkstore.child_process import Child
from tests.support.chunkstore.directories import random_files

OPERATIONS = sorted({name for mix in MIXES.values() for name in mix})


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


def checked(mount: Path, source: Path, rounds: int = 60) -> Verified:
    """Every operation so many times."""
    reader = Reader(str(mount), str(source), seed=1)
    for _ in range(rounds):
        for name in OPERATIONS:
            reader.do(name)
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


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_readers_of_their_own(copy: Path, source: Path, mix: str) -> None:
    """Readers in processes do what their mix says, and what they saw is added up."""
    with verifying(mix, copy, source, 2) as seen:
        assert seen == Verified()
    assert (seen.wrong, seen.errors, seen.told) == (0, 0, [])
    assert set(seen.longest_s) <= set(MIXES[mix])


def test_a_reader_that_dies() -> None:
    """A reader that ends badly is an error, which is told."""
    with Child([sys.executable, "-c", "import os; os.kill(os.getpid(), 7)"]) as child:
        seen = _seen(child)
    assert seen.errors == 1
    assert "ended with -7" in seen.told[0]

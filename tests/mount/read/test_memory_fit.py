"""How much memory there is to read ahead into."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.mount.read.memory_fit import (
    NEIGHBOURS_SIZE_BYTES,
    available_bytes,
    fits,
    neighbours_size_bytes,
    total_bytes,
)


def test_the_machine_tells_its_memory() -> None:
    """Linux says how much there is, and how much of it could be given away."""
    assert 0 < available_bytes() < total_bytes()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   123 kB\nBuffers: 7 kB\n", 123 * 1024),
        ("MemTotal: 9 kB\n", 0),
        ("MemAvailable:\n", 0),
        ("MemAvailable: much kB\n", 0),
    ],
)
def test_what_is_not_told_is_nothing(tmp_path: Path, text: str, expected: int) -> None:
    """A file without the line, or with nonsense in it, means that there is no memory to spare."""
    (tmp_path / "meminfo").write_text(text)
    assert available_bytes(tmp_path / "meminfo") == expected
    assert available_bytes(tmp_path / "missing") == total_bytes(tmp_path / "missing") == 0


def test_what_fits_has_a_quarter_of_the_memory_at_most() -> None:
    """Its bytes can be in the page cache twice, and the machine is there for something else."""
    assert fits(25, 100)
    assert not fits(26, 100)
    assert not fits(1, 0)


def test_datasets_that_fit_into_half_of_the_memory_have_neighbours_brought() -> None:
    """Beyond that, neighbours would be gone before they are wanted."""
    assert neighbours_size_bytes(50, 100) == NEIGHBOURS_SIZE_BYTES
    assert neighbours_size_bytes(51, 100) == 0

"""Inode numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino

inos = st.integers(0, 2**63 - 1)


@given(inos, st.binary(min_size=1, max_size=255))
def test_a_number_that_the_kernel_takes(parent: int, name: bytes) -> None:
    """A number fits 63 bits, is not the root's and not 0, and is always the same."""
    ino = child_ino(parent, name)
    assert ROOT_INO < ino < 2**63
    assert ino == child_ino(parent, name)


def test_pinned() -> None:
    """Numbers never change: a worker of another version knows them too."""
    assert child_ino(ROOT_INO, b"a") == 3336289434591362647
    assert child_ino(child_ino(ROOT_INO, b"a"), b"b") != child_ino(ROOT_INO, b"b")

"""The rows of names in a cache's index (test_cachelayout.py pins their bytes)."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from chunkstore import namerows
from chunkstore.errors import Corrupt
from chunkstore.namerows import EntryRow
from chunkstore.names import Digest
from chunkstore.testing.strategies import segments
from chunkstore.tree import Entry, Kind, Segment
from chunkstore.wire import Node

ID = bytes(range(32))
FILE = Entry(b"\xff name", Kind.FILE, executable=True, digest=Digest(ID))


@pytest.mark.parametrize(
    "decode", [namerows.decode_entry_row, namerows.decode_snapshot, namerows.decode_page]
)
@pytest.mark.parametrize("value", [b"", b"\xc1", b"x" * 69, b"\xff" * 70])
def test_damaged_rows_are_corrupt(decode: object, value: bytes) -> None:
    """A value that is no row is Corrupt, never something else."""
    with pytest.raises(Corrupt, match="damaged"):
        decode(value)  # type: ignore[operator]


@given(segments)
def test_segments_come_back(found: tuple[Segment, ...]) -> None:
    """The segments of a row, one or many, have the sizes that they had in the tree."""
    size_bytes = sum(segment.size_bytes for segment in found)
    entry = replace(FILE, size_bytes=size_bytes, segments=found)
    row = namerows.decode_entry_row(namerows.encode_entry_row(1, entry))
    assert namerows.segments_of(row) == found
    assert len(row.segments) == 48 * len(found) - 8


def test_an_empty_file_has_no_segments() -> None:
    """A row without bytes needs none."""
    assert namerows.segments_of(EntryRow(1, b"f", 1, False, 0, ID, b"", b"")) == ()


@pytest.mark.parametrize(
    ("size_bytes", "joined"),
    [
        (1, b"x" * 41),
        (1, b"x" * 48),
        (1, b""),
        (0, b"x" * 40),
        (5, b"x" * 40 + (5).to_bytes(8, "little") + b"x" * 40),
        (5, b"x" * 40 + bytes(8) + b"x" * 40),
    ],
)
def test_segments_that_are_not_those_of_the_row(size_bytes: int, joined: bytes) -> None:
    """Segments come whole, have bytes, and have together those of their entry."""
    row = EntryRow(1, b"f", 1, False, size_bytes, ID, b"", joined)
    with pytest.raises(Corrupt, match="segment"):
        namerows.segments_of(row)


def test_nodes_are_small() -> None:
    """A page of 256 children of usual names stays below 32 KiB: one row of it is one read."""
    node = Node(2**62, 2**62, b"train_000001.jpg", 1, False, 123_456, ID, b"")
    assert len(namerows.encode_page([node] * namerows.PAGE_NODES)) < 32 * 1024

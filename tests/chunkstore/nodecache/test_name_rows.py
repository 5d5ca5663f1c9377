"""The rows of names in a cache's index (test_cachelayout.py pins their bytes)."""

from __future__ import annotations

import pytest
from hypothesis import given
from msgspec.structs import replace

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import Digest
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.wire import PAGE_BYTES_MAX, Entry
from tests.support.chunkstore.strategies import segments

ID = bytes(range(32))
FILE = TreeEntry(b"\xff name", Kind.FILE, executable=True, digest=Digest(ID))


@pytest.mark.parametrize(
    "decode", [name_rows.decode_entry_row, name_rows.decode_snapshot, name_rows.decode_page]
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
    row = name_rows.decode_entry_row(name_rows.encode_entry_row(1, entry))
    assert name_rows.segments_of(row) == found
    assert len(row.segments) == 48 * len(found) - 8


def test_an_empty_file_has_no_segments() -> None:
    """A row without bytes needs none."""
    assert name_rows.segments_of(EntryRow(1, b"f", 1, False, 0, ID, b"", b"")) == ()


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
        name_rows.segments_of(row)


def test_nodes_are_small() -> None:
    """A page of 256 children of usual names stays below 32 KiB: one row of it is one read."""
    node = Entry(2**62, 2**62, b"train_000001.jpg", 1, False, 123_456, ID, b"")
    assert len(name_rows.encode_page([node] * name_rows.PAGE_NODES)) < 32 * 1024


def test_a_page_is_bounded_by_its_bytes() -> None:
    """Long targets make pages shorter, one that alone is too long comes alone, and all come."""
    sizes = [4000] * 200 + [PAGE_BYTES_MAX + 1] + [10] * 200
    nodes = [
        Entry(n, 1, b"%04d" % n, int(Kind.SYMLINK), False, 0, ID, b"x" * size, b"")
        for n, size in enumerate(sizes)
    ]
    rows = [name_rows.encode_page(nodes[first : first + 50]) for first in range(0, 401, 50)]
    found: list[Entry] = []
    more = True
    while more:
        page = name_rows.page_of(rows, found[-1].name if found else b"", 4096)
        text_bytes = sum(len(node.name) + len(node.target) for node in page.nodes)
        assert len(page.nodes) == 1 or text_bytes <= PAGE_BYTES_MAX
        assert page.nodes
        found += page.nodes
        more = page.more
    assert found == nodes

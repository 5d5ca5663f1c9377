"""The outline of a directory says of packs and directories what the directory says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Kind, TreeEntry, decode_tree, encode_tree
from lodefs.chunkstore.repo.tree_outline import outline
from tests.support.chunkstore.strategies import directories

OWN = PackId(b"own pack".ljust(32, b"."))


@settings(max_examples=60)
@given(directories)
def test_outline_and_tree_agree(entries: list[TreeEntry]) -> None:
    """It names the packs of all segments and the same directories as the whole tree does."""
    data = encode_tree(entries)
    found = outline(data, OWN)
    decoded = decode_tree(data, OWN)
    assert found.packs | {OWN} == {s.pack for entry in decoded for s in entry.segments} | {OWN}
    assert found.directories == [entry for entry in decoded if entry.kind is Kind.DIRECTORY]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Corrupt),
        (b"\x02", UnknownFormat),
        (b"\x01", Corrupt),
        (b"\x01\x01\xc1\x00", Corrupt),
        (b"\x01\x05\x92\x00", Corrupt),
    ],
)
def test_damage(data: bytes, error: type[Exception]) -> None:
    """What is no stored form of a directory is refused."""
    with pytest.raises(error):
        outline(data, OWN)

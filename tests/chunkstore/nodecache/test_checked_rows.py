"""Rows of checks: byte for byte, since other versions read them."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.nodecache import layout as layout


def test_the_bytes_of_a_row() -> None:
    """Key and value as they have been since the first version of these rows."""
    assert layout.checked_key(0x01020304) == b"v\x01\x02\x03\x04"
    assert layout.encode_checked(0x65A1B2C3) == bytes.fromhex("c3b2a16500000000")
    assert layout.number_of_key(layout.checked_key(77)) == 77
    assert layout.decode_checked(layout.encode_checked(2**40)) == 2**40


def test_a_damaged_row() -> None:
    """A row of another size is Corrupt."""
    with pytest.raises(Corrupt, match="damaged"):
        layout.decode_checked(b"short")

"""What comes from outside is a structure, or one error that says why not."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json, from_msgpack

DEEP = 200_000


class Thing(msgspec.Struct):
    number: int


def test_structures() -> None:
    """What is right comes out, whatever else it holds."""
    assert from_json(b'{"number":7,"more":[1]}', Thing) == Thing(7)
    assert from_msgpack(msgspec.msgpack.encode({"number": 7}), Thing) == Thing(7)


@pytest.mark.parametrize(
    ("decode", "data", "words"),
    [
        (from_json, b"", "truncated"),
        (from_json, b"{}", "number"),
        (from_json, b'{"number":"7"}', r"\$\.number"),
        (from_json, b"[" * DEEP, "array"),
        (from_json, b'{"more":' + b"[" * DEEP, "nested too deeply"),
        (from_msgpack, b"", "truncated"),
        (from_msgpack, b"\xc1", "invalid"),
        (from_msgpack, b"\x81\xa4more" + b"\x91" * DEEP, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_told(
    decode: Callable[[bytes, type[Thing]], Thing], data: bytes, words: str
) -> None:
    """InvalidInput names the place or the reason, also for what is nested without end."""
    with pytest.raises(InvalidInput, match=words):
        decode(data, Thing)

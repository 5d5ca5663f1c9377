"""What comes from outside is a structure, or one error that says why not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format import decoding
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


@pytest.mark.parametrize("library", [msgspec.json, msgspec.msgpack])
def test_one_thread_at_a_time_makes_decoders(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """msgspec crashes when two look at a new class, or one in a child that was forked meanwhile."""

    class Other(Thing):
        pass

    held = []
    make = library.Decoder

    def watched(kind: object) -> object:
        held.append(decoding._making.locked())
        return make(kind)

    monkeypatch.setattr(library, "Decoder", watched)
    decode = from_json if library is msgspec.json else from_msgpack
    data = library.encode({"number": 7})
    assert [decode(data, Other), decode(data, Other)] == [Other(7)] * 2
    assert held == [True]
    pid = os.fork()
    if not pid:
        os._exit(decoding._making.locked())
    assert os.waitpid(pid, 0)[1] == 0
    assert not decoding._making.locked()

"""Sealed documents: canonical, and damage is noticed."""

from __future__ import annotations

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format.envelope import seal, unseal

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
bodies = st.dictionaries(st.text(max_size=8), values, max_size=4)


@pytest.mark.slow
@given(bodies)
def test_round_trip(body: dict[str, object]) -> None:
    """What was sealed comes back, and the order of a dictionary plays no part."""
    document = seal("thing", 1, body)
    assert unseal("thing", {1: dict}, document, "it") == body
    assert seal("thing", 1, dict(reversed(body.items()))) == document


@pytest.mark.slow
@given(bodies, st.data())
def test_damage_is_noticed(body: dict[str, object], data: st.DataObject) -> None:
    """No bit changes, and no byte is lost or added, unseen."""
    document = seal("thing", 1, body)
    size = data.draw(st.integers(0, len(document) - 1))
    spoiled = bytearray(document)
    spoiled[size] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (spoiled, document[:size], document + b"\n", document[:size] + document):
        if bytes(bad) != document:
            with pytest.raises(Corrupt, match="the thing of the test"):
                unseal("thing", {1: dict}, bytes(bad), "the thing of the test")


def test_newer_version() -> None:
    """A version that is not known is named, with the way out."""
    with pytest.raises(UnknownFormat, match=r"it is of format version 2.*newer lodefs is needed"):
        unseal("thing", {1: dict}, seal("thing", 2, {"new": 1}), "it")


def test_another_kind() -> None:
    """A document of another kind is Corrupt: somebody put it in the wrong place."""
    with pytest.raises(Corrupt, match="is a 'ref', not a commit"):
        unseal("commit", {1: dict}, seal("ref", 1, {}), "it")


class Body(msgspec.Struct, forbid_unknown_fields=True):
    number: int


@pytest.mark.parametrize("body", [{}, {"number": "1"}, {"number": 1, "more": 2}, [1]])
def test_another_body(body: object) -> None:
    """Fields that are missing, more, or of another type are Corrupt."""
    with pytest.raises(Corrupt, match="it is not a thing"):
        unseal("thing", {1: Body}, seal("thing", 1, body), "it")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"[]",
        b"{}",
        b'{"lodefs":"thing","version":1',
        b"\xff{",
        b'{"lodefs":"thing","version":1,"body":' + b"[" * 200_000,
    ],
)
def test_a_right_checksum_is_not_enough(head: bytes) -> None:
    """Bytes that are no document are Corrupt even with a right checksum."""
    document = head + b',"blake3":"' + blake3(head).hexdigest().encode() + b'"}\n'
    with pytest.raises(Corrupt):
        unseal("thing", {1: dict}, document, "it")

"""What may be asked on the peer door: targets, taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.protocol import wire
from lodefs.proxy.peers.server import ChunkRequest, parse_request

PACK = "ab" * 32
IDS = st.binary(min_size=32, max_size=32)
NUMBERS = st.integers(0, 10**9 - 1)


@given(IDS, NUMBERS, st.integers(1, 10**9 - 1))
def test_targets_of_wire_are_understood(pack: bytes, first: int, count: int) -> None:
    """What this side asks for is what the other side understands."""
    asked = parse_request(wire.peer_chunks(pack.hex(), first, count))
    assert asked == ChunkRequest(PackId(pack), cached=False, first=first, count=count)
    waits = parse_request(wire.peer_chunks(pack.hex(), first, count) + "&cached=1&wait=1")
    assert waits == replace(asked, cached=True, waits=True)
    index = ChunkRequest(PackId(pack), cached=False, is_index=True)
    assert parse_request(wire.peer_index(pack.hex())) == index
    assert parse_request(wire.peer_index(pack.hex()) + "?cached=1").cached
    announced = parse_request(wire.peer_index(pack.hex(), range(first, first + count)))
    assert announced == replace(index, first=first, count=count)


@given(
    st.lists(
        st.none() | st.from_regex(r"[a-z0-9.]{1,40}:[0-9]{1,5}", fullmatch=True),
        min_size=1,
        max_size=16,
    )
)
def test_parents_are_understood(addresses: list[str | None]) -> None:
    """The client asks the nodes that the server names."""
    assert wire.parse_parents(wire.parents_value(addresses)) == addresses


@given(st.text())
def test_no_text_names_too_many_parents(value: str) -> None:
    """Any text of the header gives at most PARENTS_MAX."""
    assert len(wire.parse_parents(value)) <= wire.PARENTS_MAX


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("/", NotFound),
        ("/status", NotFound),
        ("/files/demo@main/x", NotFound),
        (f"/peers/packs/{PACK}", NotFound),
        (f"/peers/packs/{PACK}/", NotFound),
        (f"/peers/packs/{PACK.upper()}/index", NotFound),
        (f"/peers/packs/{PACK[:-2]}/index", NotFound),
        (f"/peers/packs/../{PACK}/index", NotFound),
        (f"/peers/packs/{PACK}/index?first=0&count=0", InvalidInput),
        (f"/peers/packs/{PACK}/index?first=-1&count=1", InvalidInput),
        (f"/peers/packs/{PACK}/index?count=1", InvalidInput),
        (f"/peers/packs/{PACK}/chunks", InvalidInput),
        (f"/peers/packs/{PACK}/chunks?first=0", InvalidInput),
        (f"/peers/packs/{PACK}/chunks?first=0&count=0", InvalidInput),
        (f"/peers/packs/{PACK}/chunks?first=-1&count=1", InvalidInput),
        (f"/peers/packs/{PACK}/chunks?first=1e3&count=1", InvalidInput),
        (f"/peers/packs/{PACK}/chunks?first=1&first=2&count=1", InvalidInput),
        (f"/peers/packs/{PACK}/chunks?first=9999999999&count=1", InvalidInput),
    ],
)
def test_other_targets_are_refused(target: str, error: type[Exception]) -> None:
    """What is no question is NotFound or InvalidInput."""
    with pytest.raises(error):
        parse_request(target)


@given(st.text(max_size=200))
def test_no_text_breaks_the_peer_server(text: str) -> None:
    """Any target is a question or refused."""
    try:
        parse_request(text)
    except (NotFound, InvalidInput):
        return
    assert text.startswith(wire.PEER_PACKS)

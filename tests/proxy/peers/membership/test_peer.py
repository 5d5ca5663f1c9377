"""Peer: how the text of a node is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.peers.membership.peer import Peer, parse_peer


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("10.0.0.1:7000", Peer("10.0.0.1:7000")),
        ("10.0.0.1", Peer("10.0.0.1:7441")),
        (" Node-1.Site.example. ", Peer("node-1.site.example:7441")),
        ("[::1]", Peer("[::1]:7441")),
        ("[FD00:0:0::0:1]:9", Peer("[fd00::1]:9")),
        ("a:1;weight=2", Peer("a:1", 2.0)),
        ("a:1; weight = 0.5", Peer("a:1", 0.5)),
        ("_x.a_b:1", Peer("_x.a_b:1")),
    ],
)
def test_one_node_has_one_spelling(text: str, peer: Peer) -> None:
    """Case, dots, zeros and default ports do not make another node of it."""
    assert parse_peer(text) == peer


@pytest.mark.parametrize(
    "text",
    [
        "", ":7441", "a:0", "a:65536", "a:x", "a:", "::1", "::1:7441", "[::1", "[x]:1",
        "[1.2.3.4]", "1.2.3:1", "1.2.3.256", "a b", "a/b", "http://a:1", "-a:1", "a..b", "a" * 64,
        "a:1;weight=0", "a:1;weight=-1", "a:1;weight=nan", "a:1;weight=inf", "a:1;weight=",
        "a:1;w=1", "a:1;", "ä:1", "a\n:1",
    ],
)  # fmt: skip
def test_what_is_no_node_is_named(text: str) -> None:
    """An error names the text."""
    with pytest.raises(InvalidInput) as caught:
        parse_peer(text)
    assert repr(text.partition(";")[0].strip())[1:-1] in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_node_or_bad_input(text: str) -> None:
    """No text leads to another error, and what is read is read the same again."""
    try:
        peer = parse_peer(text)
    except InvalidInput:
        return
    assert parse_peer(f"{peer.address};weight={peer.weight!r}") == peer

"""Recipients: the nodes that an owner names as sources, and as parents."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.proxy.peers.recipients import CHILDREN, SOURCE_S, STRIPES, Recipients, parent_of

P, Q = b"p" * 32, b"q" * 32


def test_only_those_that_have_it_are_named() -> None:
    """A source has all the chunks that are asked for, and is not the one that asks."""
    sources = Recipients()
    sources.sent(P, "a", 0.0, range(8))
    sources.sent(P, "a", 0.0, range(8, 12))
    sources.sent(P, "b", 0.0, range(4))
    assert sources.others(P, "a", 9, 1.0, range(4)) == ["b"]
    assert sources.others(P, "c", 9, 1.0, range(6, 10)) == ["a"]
    assert sources.others(P, "d", 9, 1.0, range(10, 20)) == []
    assert sources.others(Q, "d", 9, 1.0, range(1)) == []


def test_all_sources_are_named_as_often() -> None:
    """Ten sources share what a hundred nodes are told."""
    sources = Recipients()
    for n in range(10):
        sources.sent(P, f"n{n}", 0.0)
    named = Counter(name for n in range(100) for name in sources.others(P, f"n{n % 10}", 2, 1.0))
    assert max(named.values()) - min(named.values()) <= 4


def test_old_sources_are_forgotten() -> None:
    """Chunks that were sent long ago may be gone."""
    sources = Recipients()
    sources.sent(P, "a", 0.0)
    assert sources.others(P, "b", 9, SOURCE_S) == ["a"]
    assert "a" not in sources.others(P, "c", 9, SOURCE_S + 1)


@given(st.lists(st.tuples(st.sampled_from([P, Q, b"r" * 32]), st.integers(0, 20))))
def test_memory_is_bounded(history: list[tuple[bytes, int]]) -> None:
    """However much is sent, two packs and five sources of each are remembered."""
    sources = Recipients(packs_max=2, sources_max=5)
    for now_s, (pack, number) in enumerate(history):
        sources.sent(pack, f"n{number}", now_s)
    named = [sources.others(pack, "x", 99, len(history)) for pack in (P, Q, b"r" * 32)]
    assert all(len(names) <= 5 for names in named)
    assert sum(map(bool, named)) <= 2


def test_a_source_of_all_chunks_has_the_last_one() -> None:
    """Also of a pack with as many chunks as a pack may have."""
    sources = Recipients()
    sources.sent(b"pack", "a:1", 0.0)
    last = range(PACK_CHUNKS_LIMIT - 1, PACK_CHUNKS_LIMIT)
    assert sources.others(b"pack", "b:1", 5, 1.0, last) == ["a:1"]


def anybody(_address: str) -> bool:
    return True


@given(st.integers(0, 100_000), st.integers(0, STRIPES - 1))
def test_parents_asked_earlier(position: int, stripe: int) -> None:
    """So there is no cycle, and the first asks the owner."""
    parent = parent_of(position, stripe)
    assert (parent is None) == (position == 0)
    assert parent is None or 0 <= parent < position


def test_no_reader_is_far_from_the_owner() -> None:
    """10,000 readers: each sends at most a quarter more than it receives, the owner its pack once,
    and bytes come to the last by way of fewer than 50."""
    children = Counter(parent_of(n, stripe) for n in range(10_000) for stripe in range(STRIPES))
    assert children.pop(None) == STRIPES
    assert max(children.values()) == CHILDREN
    depths: list[int] = []
    for n in range(10_000):
        parents = [parent_of(n, stripe) for stripe in range(STRIPES)]
        depths.append(max(0 if one is None else depths[one] + 1 for one in parents))
    assert max(depths) < 50


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=60))
def test_any_order_of_arrivals_and_losses_is_a_tree(history: list[tuple[int, bool]]) -> None:
    """Nodes come, again too, and are lost: no lost node is named, each way leads to the owner, and
    no node has more children than it may, besides those of lost nodes."""
    recipients, lost = Recipients(), set[str]()
    joined: list[str] = []
    named: dict[str, list[str | None]] = {}
    for now_s, (number, is_lost) in enumerate(history):
        node = f"n{number}"
        if is_lost:
            lost.add(node)
            continue
        lost.discard(node)
        named[node] = list(recipients.parents(P, node, float(now_s), lambda one: one not in lost))
        assert not lost & set(named[node])
        joined += [node] * (node not in joined)
        before = joined[: joined.index(node)]
        assert all(one is None or one in before for one in named[node])
    if not any(is_lost for _, is_lost in history):
        children = Counter(one for parents in named.values() for one in parents)
        assert all(count <= CHILDREN for count in children.values())


def test_a_reader_that_asks_again_has_the_same_parents() -> None:
    """It keeps its place in the tree of a pack; it has another place in that of another pack."""
    recipients = Recipients()
    first = [recipients.parents(P, node, 0.0, anybody) for node in "abc"]
    assert first[0] == [None] * STRIPES
    assert [recipients.parents(P, node, 1.0, anybody) for node in "abc"] == first
    assert recipients.parents(Q, "c", 1.0, anybody) == first[0]


def test_readers_of_long_ago_are_no_parents() -> None:
    """A node that asked long ago may have nothing of the pack any more."""
    recipients = Recipients()
    recipients.parents(P, "a", 0.0, anybody)
    assert recipients.parents(P, "b", SOURCE_S, anybody) == ["a"] * STRIPES
    assert recipients.parents(P, "c", 2 * SOURCE_S + 1, anybody) == [None] * STRIPES


@given(st.lists(st.tuples(st.sampled_from([P, Q, b"r" * 32]), st.integers(0, 20))))
@example([(P, number) for number in range(20)])
def test_readers_are_bounded(history: list[tuple[bytes, int]]) -> None:
    """However many nodes announce however many packs, few are remembered, and the one that asks
    always gets an answer."""
    recipients = Recipients(packs_max=2, readers_max=5)
    for pack, number in history:
        node = f"n{number}"
        parents = recipients.parents(pack, node, 0.0, anybody)
        assert len(parents) == STRIPES and node not in parents
        found = recipients._packs.values()
        assert sum(len(one.readers) for one in found) <= 5
        assert len(found) <= 2

"""Who owns a pack: shares, what moves when members change, and vectors that pin it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.rendezvous import Owners, rank

GOLDEN = Path(__file__).parents[3] / "golden" / "owners.json"
PACKS = [hashlib.blake2b(b"%d" % number, digest_size=32).digest() for number in range(4000)]

members = st.dictionaries(st.integers(0, 999), st.floats(0.1, 10.0), max_size=12).map(
    lambda weights: [Peer(f"node-{number}:7441", weight) for number, weight in weights.items()]
)
packs = st.binary(min_size=32, max_size=32)


def nodes(count: int) -> list[Peer]:
    return [Peer(f"node-{number}:7441") for number in range(count)]


@given(members, packs, st.randoms())
def test_order_of_members_does_not_matter(peers: list[Peer], pack: bytes, random: object) -> None:
    """Nodes that list the same members in other orders agree on the owners."""
    shuffled = list(peers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rank(peers, pack) == rank(shuffled, pack)


@given(members, packs, st.data())
def test_leaving_moves_only_what_was_owned(
    peers: list[Peer], pack: bytes, data: st.DataObject
) -> None:
    """The ranks of the others stay when a member leaves, and so joining takes only what is won."""
    if peers:
        gone = data.draw(st.sampled_from(peers))
        before = rank(peers, pack, len(peers))
        after = rank([peer for peer in peers if peer != gone], pack, len(peers))
        assert after == [peer for peer in before if peer != gone]


@given(members, packs, st.data(), st.floats(1.0, 10.0))
def test_more_weight_never_loses_a_pack(
    peers: list[Peer], pack: bytes, data: st.DataObject, factor: float
) -> None:
    """A member whose weight grows keeps what it owned, and the others' order stays."""
    if peers:
        one = data.draw(st.sampled_from(peers))
        heavier = Peer(one.address, one.weight * factor)
        before = rank(peers, pack, len(peers))
        after = rank([heavier if peer == one else peer for peer in peers], pack, len(peers))
        assert after.index(heavier) <= before.index(one)
        assert [p for p in after if p != heavier] == [p for p in before if p != one]


def test_a_tenth_joins_and_a_tenth_moves() -> None:
    """One node more among nine takes its share from all of them, and nothing else moves."""
    before = {pack: rank(nodes(9), pack, 1)[0] for pack in PACKS}
    after = {pack: rank(nodes(10), pack, 1)[0] for pack in PACKS}
    moved = [pack for pack in PACKS if before[pack] != after[pack]]
    assert {after[pack] for pack in moved} == {nodes(10)[9]}
    assert 0.08 < len(moved) / len(PACKS) < 0.12
    assert len({before[pack] for pack in moved}) == 9


def test_shares_are_proportional_to_weights() -> None:
    """Weights of 1, 2 and 5 give an eighth, a quarter and five eighths."""
    peers = [Peer("a:1", 1.0), Peer("b:1", 2.0), Peer("c:1", 5.0)]
    owned = Counter(rank(peers, pack, 1)[0].weight for pack in PACKS)
    assert all(abs(owned[weight] / len(PACKS) - weight / 8) < 0.03 for weight in (1, 2, 5))


def test_second_owners_are_spread() -> None:
    """What a lost node owned falls to all others, not to one neighbour."""
    seconds = Counter(
        second.address for first, second in (rank(nodes(10), pack, 2) for pack in PACKS)
        if first == nodes(10)[0]
    )  # fmt: skip
    assert len(seconds) == 9
    assert max(seconds.values()) < 2 * min(seconds.values())


def test_few_members() -> None:
    """Nobody owns a pack of an empty cluster; fewer members than owners are all of them."""
    assert rank([], PACKS[0]) == []
    assert sorted(rank(nodes(3), PACKS[0])) == sorted(nodes(3))


def test_golden_owners() -> None:
    """The owners are those of every earlier version: a cluster is updated node by node."""
    golden = json.loads(GOLDEN.read_text())
    peers = [Peer(address, weight) for address, weight in golden["members"]]
    for pack, owners in golden["owners"].items():
        assert [peer.address for peer in rank(peers, bytes.fromhex(pack), 3)] == owners


def test_owners_are_remembered_until_members_change() -> None:
    """A remembered rank is the rank of the members of now, and memory is bounded."""
    owners, few, more = Owners(packs_max=2), tuple(nodes(5)), tuple(nodes(50))
    for peers in (few, more, few):
        for pack in PACKS[:5] + PACKS[:5]:
            assert owners.of(peers, pack) == rank(peers, pack)
    assert owners.of(few, PACKS[4]) is owners.of(few, PACKS[4])
    assert owners.of(few, PACKS[0]) is not owners.of(few, PACKS[4])

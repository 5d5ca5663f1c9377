"""Plan: events in, actions out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.protocol import wire
from lodefs.proxy.peers.client.phases import LIMIT_S, Phase
from lodefs.proxy.peers.client.request_plan import (
    DEADLINE_S_MAX,
    LEAST_BYTES_PER_S,
    Action,
    AskPeer,
    AskStore,
    GiveUp,
    Wait,
)
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import OUTRUN, PeerHealth
from lodefs.proxy.peers.membership.peer_standing import Fault
from tests.support.proxy.request_plans import ME, MIB, STORE, UNIT, A, B, C, Way, X, Y


@pytest.mark.parametrize(
    "owners", [(), (ME,), (ME, A, B)], ids=["nobody", "alone", "first owner"]
)  # fmt: skip
def test_what_is_ones_own_comes_from_the_store(owners: Sequence[Peer]) -> None:
    """The first owner asks nobody, not even those that are known to have it."""
    assert Way(owners, known=[X]).next(0.0) == STORE


def test_the_first_owner_is_asked() -> None:
    """A miss elsewhere asks the first owner, once, and waits."""
    way = Way()
    assert way.next(0.0) == AskPeer(A, cached=False)
    assert way.waits(0.0) > 0.2
    way.plan.began(A.address, 0.1)
    way.plan.received(A.address, MIB, 0.1)
    assert way.waits(0.1) > 0.2


def test_refused_goes_to_the_next_owner_at_once() -> None:
    """First owner gone: the second and the third for what they have, then to fetch it, then S3."""
    way = Way()
    assert way.next(0.0) == AskPeer(A, cached=False)
    way.fails(A, 0.0)
    for owner in (B, C):
        assert way.next(0.0) == AskPeer(owner, cached=True)
        way.plan.lacking(owner.address, 0.0)
    for owner in (B, C):
        assert way.next(0.0) == AskPeer(owner, cached=False)
        way.fails(owner, 0.0)
    assert way.next(0.0) == STORE


def test_all_gone_is_the_store_at_once() -> None:
    """Nobody is asked twice who refused."""
    way = Way()
    for owner, cached in ((A, False), (B, True), (C, True)):
        assert way.next(0.0) == AskPeer(owner, cached=cached)
        way.fails(owner, 0.0)
    assert way.next(0.0) == STORE


def test_a_dead_first_owner_makes_the_second_fetch() -> None:
    """Other units of the same pack go to the second owner at once; the second owner itself goes
    to S3."""
    way = Way()
    way.next(0.0)
    way.fails(A, 0.0)
    assert Way(health=way.health).next(0.1) == AskPeer(B, cached=True)
    second = Way((A, ME, B), health=way.health)
    assert second.next(0.1) == AskPeer(B, cached=True)
    second.plan.lacking(B.address, 0.1)
    assert second.next(0.1) == STORE


def test_all_owners_avoided_is_the_store() -> None:
    """Where nobody may be asked, S3 is."""
    health = PeerHealth()
    for owner in (A, B, C):
        health.wrong(owner.address, 0.0)
    assert Way(health=health).next(1.0) == STORE


def test_the_parent_comes_first() -> None:
    """It is asked to wait for what it will have; then others are asked, who need not wait."""
    way = Way(known=[X], parent=Y)
    assert way.next(0.0) == AskPeer(Y, cached=True, waits=True)
    way.plan.lacking(Y.address, 0.1)
    assert way.next(0.1) == AskPeer(X, cached=True)
    way.fails(X, 0.1)
    assert way.next(0.1) == AskPeer(A, cached=False)


def test_a_parent_that_is_avoided_is_not_asked() -> None:
    """It failed a moment ago, so the owner is asked at once."""
    health = PeerHealth()
    health.failed(Y.address, 0.0)
    assert Way(parent=Y, health=health).next(0.0) == AskPeer(A, cached=False)


def test_a_parent_may_wait_before_it_answers() -> None:
    """It waited as long as it may, and then had nothing: that is not late, however often."""
    health = PeerHealth()
    for n in range(OUTRUN + 1):
        way = Way(parent=Y, health=health, begin_s=float(n))
        assert way.next(n) == AskPeer(Y, cached=True, waits=True)
        way.plan.lacking(Y.address, n + wire.PARENT_WAIT_S + 0.1)
        assert way.plan._late == 0
    assert health.usable(Y.address, OUTRUN + 1.0)


def test_known_sources_come_first() -> None:
    """Who sent another part of the pack is asked for this one, and the owner where it lacks it."""
    way = Way(known=[X, Y])
    assert way.next(0.0) == AskPeer(X, cached=True)
    way.plan.lacking(X.address, 0.0)
    assert way.next(0.0) == AskPeer(Y, cached=True)
    way.fails(Y, 0.0)
    assert way.next(0.0) == AskPeer(A, cached=False)


def test_slow_is_hedged_to_the_second_owners_cache() -> None:
    """In a large cluster the second owner is asked only for what it has."""
    way = Way()
    way.next(0.0)
    now_s = way.waits(0.0)
    assert now_s == pytest.approx(0.871, abs=0.01)  # twice what peer and store are thought to take
    assert way.next(now_s) == AskPeer(B, cached=True)
    way.plan.lacking(B.address, now_s)
    assert way.waits(now_s) > now_s


def beaten(health: PeerHealth, begin_s: float, told_bytes: int = 0) -> None:
    """A unit of which the first owner sends so much, and a hedge everything."""
    way = Way(health=health, begin_s=begin_s)
    assert way.next(begin_s) == AskPeer(A, cached=False)
    if told_bytes:
        way.plan.received(A.address, told_bytes, begin_s + 0.5)
        health.began(A.address, 0.5)
    now_s = way.waits(begin_s)
    assert isinstance(way.next(now_s), AskPeer)
    way.plan.won(B.address, now_s + 0.05)


def test_who_hangs_and_is_hedged_is_asked_later() -> None:
    """An owner that never says a word, and is beaten each time before it is given up, is avoided
    after a few units; one that began is not, and neither is a hedge that had no time yet."""
    health = PeerHealth()
    for n in range(OUTRUN - 1):
        beaten(health, 10.0 * n)
    beaten(health, 100.0, told_bytes=1)
    for n in range(OUTRUN):
        beaten(health, 200.0 + 10.0 * n)
    over_s = 200.0 + 10.0 * OUTRUN - 9.0
    assert not health.usable(A.address, over_s)
    assert Way(health=health, begin_s=over_s).next(over_s) == AskPeer(B, cached=True)
    way = Way()
    way.next(0.0)
    now_s = way.waits(0.0)
    assert way.next(now_s) == AskPeer(B, cached=True)
    for n in range(OUTRUN):
        way.plan.won(A.address, now_s + 0.1 * n)
    assert way.health.usable(B.address, now_s + 1)


def test_slow_is_hedged_to_the_second_owner() -> None:
    """In a small cluster that exchanged much the second owner may be made to fetch it."""
    way = Way(nodes=2, got_bytes=1 << 40)
    way.next(0.0)
    assert way.next(way.waits(0.0)) == AskPeer(B, cached=False)


def test_what_is_nearly_there_is_not_hedged() -> None:
    """An attempt that will end before another could is left alone, once."""
    way = Way()
    way.next(0.0)
    now_s = way.waits(0.0)
    way.plan.received(A.address, UNIT * 9 // 10, now_s)
    later_s = way.waits(now_s)
    assert isinstance(way.next(later_s), AskPeer)


def run(way: Way, told: dict[str, float], *, begin_s: float = 0.0) -> list[tuple[float, Action]]:
    """All actions to the end, where nobody ever answers; ``told``: bytes a second of each."""
    now_s, actions = begin_s, []
    asked_s: dict[str, float] = {}
    while now_s < begin_s + 100.0:
        for address, at_s in asked_s.items():
            if rate := told.get(address):
                way.plan.received(address, max(1, int((now_s - at_s) * rate)), now_s)
        action = way.next(now_s)
        actions.append((now_s, action))
        match action:
            case AskPeer(peer, _):
                asked_s[peer.address] = now_s
            case GiveUp(address, _):
                del asked_s[address]
            case Wait(until):
                now_s = until
            case AskStore():
                return actions
    raise AssertionError(f"no end: {actions}")


def given_up(actions: list[tuple[float, Action]]) -> dict[str, float]:
    return {action.address: at_s for at_s, action in actions if isinstance(action, GiveUp)}


def test_who_accepts_and_never_answers_is_given_up() -> None:
    """A second after S3 would have been done, or two while nothing is known; then the next units go
    to the second owner."""
    way = Way()
    gone = given_up(run(way, {}))
    assert 1.5 < gone[A.address] < 2.0
    assert Way(health=way.health).next(gone[A.address]) != AskPeer(A, cached=False)


def test_one_byte_a_second_is_given_up() -> None:
    """It began, and will not end in time."""
    way = Way()
    gone = given_up(run(way, {A.address: 1.0}))
    assert 1.5 < gone[A.address] < 2.0


def known_well() -> PeerHealth:
    """Of a node that exchanged much: peers of 1 ms and 1 GB/s, a store of 50 ms and 100 MB/s."""
    health = PeerHealth()
    for _ in range(100):
        health.began(A.address, 0.001)
        health.served(A.address, UNIT, 0.001 + UNIT / 1e9, 0.0)
        health.store_served(1000, 0.05)
        health.store_served(UNIT, 0.05 + UNIT / 1e8)
    return health


@pytest.mark.parametrize("told", [{}, {A.address: 1.0}, {A.address: LEAST_BYTES_PER_S / 2}])
def test_what_a_hostile_peer_costs(told: dict[str, float]) -> None:
    """Silence, a drip and a trickle cost about a second more than the store, where that is known,
    and for small questions also before."""
    for way in (Way(health=known_well()), Way(size_bytes=64 * 1024)):
        gone = given_up(run(way, told))
        assert gone[A.address] <= 1.1 + way.health.store_expected_s(way.size_bytes)


def test_less_than_the_least_rate_is_given_up() -> None:
    """Who sends half of it is given up as soon as one that sends a byte; who sends twice as much
    is not, but after the time for all of it is over a few times it counts as failed."""
    gone = given_up(run(Way(), {A.address: LEAST_BYTES_PER_S / 2}))
    assert gone[A.address] < 2.0
    health = PeerHealth()
    for n in range(OUTRUN):
        way = Way((A,), health=health, begin_s=100.0 * n)
        assert health.usable(A.address, 100.0 * n)
        assert A.address not in given_up(
            run(way, {A.address: LEAST_BYTES_PER_S * 1.1}, begin_s=100.0 * n)
        )
    assert not health.usable(A.address, 100.0 * n + 15.5)


def test_a_slow_peer_that_gets_on_is_kept() -> None:
    """A tenth of the usual speed is hedged, and not given up."""
    actions = run(Way(), {A.address: 1e6})
    assert A.address not in given_up(actions)
    assert AskPeer(B, cached=True) in [action for _, action in actions]


def test_a_source_that_stalls_is_not_blamed() -> None:
    """It may itself be waiting for the one that is to blame."""
    way = Way(known=[X])
    way.next(0.0)
    way.plan.received(X.address, MIB, 0.1)
    now_s = 0.1
    while not isinstance(action := way.next(now_s), GiveUp):
        if isinstance(action, AskPeer):
            way.plan.lacking(action.peer.address, now_s)
        else:
            assert isinstance(action, Wait)
            now_s = action.until_s
    assert action == GiveUp(X.address, to_blame=False)


def test_a_small_cluster_turns_to_the_store_early() -> None:
    """A node waits no longer than S3 would have taken, a few times over, if the budget allows."""
    way = Way((A,), nodes=2, got_bytes=1 << 40)
    assert run(way, {})[-1] == (1.0, STORE)


def test_a_large_cluster_waits_for_the_deadline() -> None:
    """Peers that are slow, but there, are waited for up to the deadline."""
    actions = run(Way((A,)), {A.address: UNIT / 16})
    assert actions[-1] == (15.0, STORE)


def lacks(health: PeerHealth, begin_s: float, after_s: float, *, busy: bool = False) -> None:
    """The first owner of a small unit says after so long that it has nothing to give."""
    way = Way(size_bytes=1000, health=health, begin_s=begin_s)
    assert way.next(begin_s) == AskPeer(A, cached=False)
    if busy:
        way.plan.busy(A.address, [], 0.1, begin_s + after_s)
    else:
        way.plan.lacking(A.address, begin_s + after_s)


@pytest.mark.parametrize("busy", [False, True], ids=["404", "503"])
def test_an_answer_without_data_that_is_late_is_blamed(busy: bool) -> None:
    """Half a second over what S3 takes: late at once, for longer each time; a quarter: late
    after a few times; in time: nothing is thought of it."""
    health, now_s = PeerHealth(), 0.0
    for backoff_s in (1.0, 2.0, 4.0):
        lacks(health, now_s, 0.7, busy=busy)
        assert health.standing(A.address, now_s + 0.7).state == Fault.LATE
        assert not health.usable(A.address, now_s + 0.65 + backoff_s)
        assert health.usable(A.address, now_s + 0.75 + backoff_s)
        now_s += 0.75 + backoff_s
    health = PeerHealth()
    for n in range(OUTRUN):
        assert health.usable(A.address, 10.0 * n)
        lacks(health, 10.0 * n, 0.3, busy=busy)
    assert not health.usable(A.address, 10.0 * n + 1.0)
    health = PeerHealth()
    for n in range(10):
        lacks(health, 10.0 * n, 0.2, busy=busy)
        assert health.usable(A.address, 10.0 * n + 0.2)


def test_a_slow_peer_earns_no_patience() -> None:
    """One that answers later each time, up to a minute, is then given up after seconds."""
    health = PeerHealth()
    for n in range(200):
        health.began(A.address, min(60.0, 0.3 * 1.12**n))
        health.served(A.address, 1000, 60.0, 0.0)
        health.served(A.address, UNIT, 1000.0, 0.0)
    gone = given_up(run(Way((A,), size_bytes=1000, health=health), {}))
    assert gone[A.address] < 2.0
    later = Way((A,), health=health, begin_s=100.0)
    assert given_up(run(later, {}, begin_s=100.0))[A.address] < 106.0


CONNECT_S = LIMIT_S[Phase.CONNECT]
MANY = [Peer(f"dead{n}:1") for n in range(20)]


def all_dead(health: PeerHealth, connect_s: float, known: Sequence[Peer] = ()) -> float:
    """How long a small unit waits, if no owner answers and a driver ends each after so long."""
    way = Way(MANY, known=known, size_bytes=64 * 1024, health=health)
    now_s, asked_s = 0.0, dict[str, float]()
    while (action := way.next(now_s)) != STORE:
        match action:
            case AskPeer(peer, _):
                asked_s[peer.address] = now_s
            case GiveUp(address, _):
                del asked_s[address]
            case Wait(until_s):
                now_s = min([until_s, *(at_s + connect_s for at_s in asked_s.values())])
                for address in [one for one, at_s in asked_s.items() if now_s >= at_s + connect_s]:
                    del asked_s[address]
                    way.fails(Peer(address), now_s)
    return now_s


@pytest.mark.parametrize("connect_s", [CONNECT_S, 100.0], ids=["unreachable", "silent"])
@pytest.mark.parametrize("known", [(), MANY[:4]], ids=["owners", "sources"])
def test_dead_nodes_cost_a_moment_together(connect_s: float, known: Sequence[Peer]) -> None:
    """Of twenty owners that show nothing two are waited for, and the second one shortly."""
    assert all_dead(PeerHealth(), connect_s, known) < 1.5


def test_after_one_that_was_late_others_get_on() -> None:
    """The first owner is dead: the second is asked for what it has, has as long as S3 to fetch it,
    and what it is sending is waited for, also after a third one was late."""
    way = Way(size_bytes=UNIT)
    way.next(0.0)
    way.fails(A, CONNECT_S)
    for owner in (B, C):
        assert way.next(CONNECT_S) == AskPeer(owner, cached=True)
        way.plan.lacking(owner.address, CONNECT_S + 0.01)
    begin_s = CONNECT_S + 0.01
    assert way.next(begin_s) == AskPeer(B, cached=False)
    began_s = begin_s + 2 * way.health.store_expected_s(UNIT)
    for now_s in (way.waits(begin_s), began_s):
        assert not isinstance(way.next(now_s), GiveUp | AskStore)
    way.plan.received(B.address, UNIT // 2, began_s)
    way.fails(C, began_s + 1)
    assert way.next(began_s + 0.1) != STORE


replies = st.sampled_from(["failed", "lacking", "busy", "began", "silent", "some"])


@given(
    st.lists(st.sampled_from([A, B, C, ME, X]), unique=True, max_size=4),
    st.lists(st.sampled_from([A, B, X, Y]), unique=True, max_size=3),
    st.sampled_from([1, 8, 10_000]),
    st.integers(1, 64 * MIB),
    st.data(),
)
def test_every_plan_ends(
    owners: list[Peer], known: list[Peer], nodes: int, size_bytes: int, data: st.DataObject
) -> None:
    """Whatever peers answer: the plan ends in S3 within its deadline after a bounded number of
    actions, asks at most two peers at once, none of them twice at once, and never itself."""
    way = Way(owners, nodes=nodes, known=known, size_bytes=size_bytes)
    plan, now_s = way.plan, 0.0
    running: set[str] = set()
    answers = data.draw(st.lists(replies, min_size=1, max_size=20))
    for count in range(2000):
        assert now_s <= DEADLINE_S_MAX
        action = way.next(now_s)
        match action:
            case AskStore():
                assert way.next(now_s) == STORE
                return
            case GiveUp(address, _):
                running.remove(address)
                continue
            case AskPeer(peer, _):
                assert peer != ME and peer.address not in running
                running.add(peer.address)
                assert len(running) <= 2
            case Wait(until_s):
                assert until_s > now_s
                now_s = until_s
        for address in sorted(running):
            answer = answers[count % len(answers)]
            if answer == "began":
                plan.began(address, now_s)
            elif answer == "some":
                plan.received(address, size_bytes // 2, now_s)
            elif answer != "silent":
                running.remove(address)
                if answer == "failed":
                    way.fails(Peer(address), now_s)
                elif answer == "lacking":
                    plan.lacking(address, now_s)
                else:
                    plan.busy(address, [X, Y, ME, A], 0.3, now_s)
    raise AssertionError("it never ends")


def busy_cluster(latency_s: float, *peers: Peer) -> PeerHealth:
    """The record of a node whose peers have just shown that latency."""
    health = PeerHealth()
    for peer in peers:
        health.silent(peer.address, latency_s, 0.0)
    return health


def waited_s(health: PeerHealth, begin_s: float = 0.0) -> float:
    """How long a plan waits for its first owner, which sends nothing."""
    way = Way((A,), size_bytes=64 * 1024, health=health, begin_s=begin_s)
    return given_up(run(way, {}, begin_s=begin_s))[A.address] - begin_s


def test_if_all_peers_are_late_each_has_more_time() -> None:
    """Nodes that are busy together are not taken for ones that fail. One that hangs gains little by
    it, and nothing if the others are quick."""
    alone_s = waited_s(PeerHealth())
    assert waited_s(busy_cluster(0.01, B, C, X)) < alone_s + 0.1
    assert alone_s + 1.5 < waited_s(busy_cluster(0.8, B, C, X, Y)) < alone_s + 3
    few_hang = busy_cluster(0.01, B, C, ME, Y)
    few_hang.silent(A.address, 5.0, 0.0)
    few_hang.silent(X.address, 5.0, 0.0)
    assert waited_s(few_hang) < alone_s + 0.1
    assert waited_s(busy_cluster(1000.0, B, C, X, Y)) < DEADLINE_S_MAX / 2


def test_a_peer_gets_time_if_others_show_meanwhile_that_they_are_busy() -> None:
    """What they answer while it is waited for counts."""
    way = Way((A,), size_bytes=64 * 1024)
    assert way.next(0.0) == AskPeer(A, cached=False)
    for peer in (B, C, X):
        way.health.silent(peer.address, 0.9, 0.5)
    at_s = way.waits(0.5)
    while not isinstance(action := way.next(at_s), GiveUp):
        assert isinstance(action, Wait)
        at_s = action.until_s
    assert at_s > waited_s(PeerHealth()) + 1.5


def test_a_peer_that_does_other_things_meanwhile_gets_time() -> None:
    """It asks this node for something, so it neither hangs nor is cut off."""
    health = PeerHealth()
    health.asks(A.address, 0.1)
    alone_s = waited_s(PeerHealth())
    assert alone_s + 1 < waited_s(health) < alone_s + 3

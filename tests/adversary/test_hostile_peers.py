"""Hostile peers: what one of them can cost a reader whose data the store has."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.peers.security.tls import PeerTls
from tests.adversary import hostile_peer as hostile
from tests.adversary.hostile_peer import End, HalfOwner, Reply
from tests.proxy.peers.certificates import Authority
from tests.support.proxy.cluster import Member, cluster_of, slow_clock_s
from tests.support.proxy.rig import MIB, Rig, read_path, until

FILES = {b"first": random.Random(1).randbytes(5 * MIB), b"then": random.Random(2).randbytes(MIB)}
LIMIT_S = 60.0  # a hostile peer would take for ever; 2 s are asked, of a machine that is idle

F = Fault
ATTACKS: list[tuple[Callable[[Rig], Reply | None], Fault]] = [
    (lambda _: hostile.drips_head, F.LATE),
    (lambda _: hostile.drips_body, F.LATE),
    (lambda _: hostile.drips_interim, F.WRONG),
    (lambda _: hostile.floods_garbage, F.WRONG),
    (lambda _: hostile.floods_head, F.WRONG),
    (lambda _: hostile.floods_lines, F.WRONG),
    (lambda _: hostile.floods_body, F.WRONG),
    (lambda _: hostile.hangs, F.LATE),
    (lambda _: hostile.hangs_after_head, F.LATE),
    (lambda _: None, F.LATE),
    (lambda _: hostile.resets, F.UNREACHABLE),
    (lambda _: hostile.resets_body, F.UNREACHABLE),
    (lambda _: hostile.refuses, F.REFUSING),
    (lambda _: hostile.wrong_length, F.WRONG),
    (lambda _: hostile.lacks_late, F.LATE),
    (hostile.liar, F.WRONG),
    (hostile.lies_later, F.WRONG),
]
NAMES = [
    *("drips-head", "drips-body", "drips-interim"),
    *("floods-garbage", "floods-head", "floods-lines", "floods-body"),
    *("hangs", "hangs-after-head", "never-accepts", "resets", "resets-body"),
    *("refuses", "wrong-length", "lacks-late", "lies", "lies-later"),
]
LONG = random.Random(3).randbytes(4 * MIB)
LATE_ENDS = (hostile.hangs_midway, hostile.drips_midway)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=64 * 1024, pack_chunks=200)


@pytest.mark.parametrize(("attack", "fault"), ATTACKS, ids=NAMES)
def test_a_hostile_peer_costs_a_moment_once(
    rig: Rig,
    attack: Callable[[Rig], Reply | None],
    fault: Fault,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    """The other member of a cluster of two owns every pack and drips, floods, hangs, resets,
    refuses, lies or lacks it late: a read of 5 MB is right and soon there, and then the peer is
    left alone; the log (not once for each request) and the status say why."""
    # who is not late by nature is told by what it sends: a machine that stalls is given time to see
    clock_s = time.monotonic if fault is F.LATE else slow_clock_s

    async def run(bad: Peer) -> None:
        async with cluster_of(rig, 1, others=[bad], clock_s=clock_s) as (member,):
            begin_s = time.monotonic()
            assert await read_path(member.node, b"first") == FILES[b"first"]
            first_s = time.monotonic() - begin_s
            assert await read_path(member.node, b"then") == FILES[b"then"]
            then_s = time.monotonic() - begin_s - first_s
            record_property("seconds", (round(first_s, 2), round(then_s, 2)))
            print(f"seconds: {first_s:.2f}, then {then_s:.2f}")
            assert first_s < LIMIT_S
            assert then_s < LIMIT_S
            assert member.count(Counter.PEER_REQUESTS) > 0
            standing = member.peering.context.health.standing(bad.address, clock_s())
            assert standing.state == fault
            assert standing.reason

    caplog.set_level(logging.WARNING, "lodefs.peers")
    with hostile.hostile_peer(attack(rig)) as peer:
        asyncio.run(run(Peer(peer.address, weight=1e6)))
        told = [one for one in caplog.messages if peer.address in one]
    assert 1 <= len(told) <= 2, told


def test_dead_nodes_cost_a_moment_together(
    rig: Rig, record_property: Callable[[str, object], None]
) -> None:
    """Twelve members that swallow every attempt to connect own every pack: no request waits for
    more than two of them, one after the other, and what is read is right."""

    async def run(dead: list[Peer]) -> None:
        async with cluster_of(rig, 1, others=dead) as (member,):
            begin_s = time.monotonic()
            assert await read_path(member.node, b"first") == FILES[b"first"]
            record_property("seconds", round(time.monotonic() - begin_s, 2))
            requests = member.count(Counter.PEER_REQUESTS)
            assert 0 < requests <= 3 * member.count(Counter.PEER_FALLBACKS)  # one more as a hedge
            states = [
                member.peering.context.health.standing(one.address, 0.0).state for one in dead
            ]
            assert F.LATE in states

    with hostile.dead_peers(12) as addresses:
        asyncio.run(run([Peer(address, weight=1e6) for address in addresses]))


def test_a_handshake_that_hangs_costs_a_moment(rig: Rig, tmp_path: Path) -> None:
    """A peer that takes the connection and never answers the TLS handshake: the read is right and
    soon there, and the peer is known as late."""
    tls = [PeerTls(Authority().files(tmp_path / "tls"))]

    async def run(bad: Peer) -> None:
        async with cluster_of(rig, 1, others=[bad], tls=tls) as (member,):
            begin_s = time.monotonic()
            assert await read_path(member.node, b"first") == FILES[b"first"]
            assert time.monotonic() - begin_s < LIMIT_S
            assert (
                member.peering.context.health.standing(bad.address, time.monotonic()).state
                == F.LATE
            )

    with hostile.hostile_peer(None) as peer:
        asyncio.run(run(Peer(peer.address, weight=1e6)))


@pytest.mark.parametrize(
    "end",
    [hostile.resets_midway, hostile.lies_midway, hostile.hangs_midway, hostile.drips_midway],
)
def test_an_owner_that_fails_in_the_middle_of_what_is_passed_on(tmp_path: Path, end: End) -> None:
    """One node gets most of a unit from it, and another one the same chunks from that node, before
    the owner resets, lies, hangs or drips: both get the right bytes from elsewhere, and keep
    them."""
    rig = Rig(tmp_path, {b"first": LONG}, chunk_size_bytes=64 * 1024, pack_chunks=500)
    # a clock by which nodes that wait for each other would do so for a minute
    clock_s = time.monotonic if end in LATE_ENDS else slow_clock_s

    async def run(bad: Peer, owner: HalfOwner) -> None:
        async with cluster_of(rig, 2, others=[bad], clock_s=clock_s) as members:
            owner.members += [one.address for one in members]
            one, other = members
            reads = [asyncio.create_task(read_path(one.node, b"first"))]
            await until(partial(gets_half, one))
            reads.append(asyncio.create_task(read_path(other.node, b"first")))
            await until(lambda: one.count(Counter.PEER_SENT_BYTES) > 0)
            owner.passed_on.set()
            async with asyncio.timeout(LIMIT_S):
                for read in reads:
                    assert await read == LONG
            for member in members:
                assert await read_path(member.node, b"first") == LONG

    owner = HalfOwner(rig, end)
    with hostile.hostile_peer(owner.reply) as peer:
        try:
            asyncio.run(run(Peer(peer.address, weight=1e6), owner))
        finally:
            owner.passed_on.set()


def gets_half(member: Member) -> bool:
    """Whether a part of a unit has come, and can be passed on."""
    flights = chain.from_iterable(member.node._fetcher._flights.values())
    return any(flight.first < flight._came_end < flight.end for flight in flights)


def test_a_chain_of_nodes_whose_owner_fails(tmp_path: Path) -> None:
    """One passes to another, and that to a third, when the owner resets: the first asks the third,
    so that each waits for another one. This ends as if one node were silent: one of them turns to
    the store, and passes that on."""
    rig = Rig(tmp_path, {b"first": LONG}, chunk_size_bytes=64 * 1024, pack_chunks=500)
    begin_s = time.monotonic()
    owner = HalfOwner(rig, hostile.resets_midway)

    def clock_s() -> float:
        """It stands still until the chain is there, so that no node loses patience before."""
        return time.monotonic() if owner.passed_on.is_set() else begin_s

    async def run(bad: Peer) -> None:
        async with cluster_of(rig, 3, others=[bad], clock_s=clock_s) as members:
            reads: list[asyncio.Task[bytes]] = []
            for member in members:
                reads.append(asyncio.create_task(read_path(member.node, b"first")))
                await until(partial(gets_half, member))
                owner.members[:] = [member.address]
            owner.passed_on.set()
            async with asyncio.timeout(LIMIT_S):
                assert await asyncio.gather(*reads) == [LONG] * 3

    with hostile.hostile_peer(owner.reply) as peer:
        try:
            asyncio.run(run(Peer(peer.address, weight=1e6)))
        finally:
            owner.passed_on.set()

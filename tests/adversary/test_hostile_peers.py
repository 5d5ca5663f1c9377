"""Hostile peers: what one of them can cost a reader whose data the store has."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.peers.security.tls import PeerTls
from lodefs.proxy.runtime.counters import Counter
from tests.adversary import hostile_peer as hostile
from tests.adversary.hostile_peer import Reply
from tests.proxy.peers.certificates import Authority
from tests.support.proxy.cluster import cluster_of, slow_clock_s
from tests.support.proxy.rig import MIB, Rig, read_path

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

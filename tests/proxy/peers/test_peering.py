"""Nodes that fetch from each other: real sockets, real caches, one store that counts."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
from msgspec import structs

from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.protocol.wire import Origin
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.proxy.fetch import chunk_reader
from lodefs.proxy.fetch.flight import Follower
from lodefs.proxy.metrics.counters import Counter
from lodefs.proxy.peers import server as peer_server
from lodefs.proxy.peers.client.rate_limit import BURST_S
from lodefs.proxy.peers.client.request_plan import RequestPlan
from lodefs.proxy.peers.membership.addresses import Addresses
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_standing import DOWN, REFUSED, WELL, Fault
from lodefs.proxy.peers.membership.readiness import probe
from lodefs.proxy.peers.membership.rendezvous import rank
from lodefs.proxy.peers.security.request_signing import HmacAuthenticator
from lodefs.proxy.peers.security.tls import PeerTls
from lodefs.proxy.peers.sending_load import SendingLoad
from tests.proxy.peers.certificates import Authority
from tests.support.proxy.cluster import (
    SECRET,
    Member,
    cluster_of,
    first_owns_all,
    read_bytes,
    slow_clock_s,
    stored_bytes,
)
from tests.support.proxy.rig import MIB, Rig, file_of, read_file, read_path, until

BIG = random.Random(1).randbytes(6 * MIB + 123)
SMALL = {b"small/%03d" % n: random.Random(n).randbytes(500 + n * 37) for n in range(200)}
FILES = {b"big": BIG, **SMALL}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=20_000, pack_chunks=50)


async def read_all(member: Member) -> None:
    for path, content in FILES.items():
        assert await read_path(member.node, path) == content


def last_owns_none(members: tuple[Peer, ...]) -> Callable[[], tuple[Peer, ...]]:
    """The last node by address never has what another one has read through it."""
    last = max(one.address for one in members if one.weight == 1)
    seen = tuple(replace(one, weight=1e-6) if one.address == last else one for one in members)
    return lambda: seen


def test_all_nodes_together_read_the_store_once(rig: Rig) -> None:
    """Four nodes that read everything at once: right bytes, and the store sends each chunk once."""

    async def run() -> None:
        async with cluster_of(rig, 4, clock_s=slow_clock_s) as members:
            await asyncio.gather(*map(read_all, members))
            assert read_bytes(rig) <= 1.05 * stored_bytes(rig)
            assert sum(member.count(Counter.PEER_FETCHED_BYTES) for member in members) > len(BIG)
            assert sum(member.count(Counter.PEER_CORRUPT) for member in members) == 0

    asyncio.run(run())


def test_one_node_after_the_other(rig: Rig) -> None:
    """What the first node fetched, the others get without the store."""

    async def run() -> None:
        async with cluster_of(rig, 3, clock_s=slow_clock_s) as members:
            await read_all(members[0])
            sent = read_bytes(rig)
            for member in members[1:]:
                await read_all(member)
            assert read_bytes(rig) == sent

    asyncio.run(run())


def test_plans_hear_who_won(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each right answer of a peer ends its plan, which then judges those that were asked too."""
    won: list[str] = []
    monkeypatch.setattr(RequestPlan, "won", lambda _plan, address, _now_s: won.append(address))

    async def run() -> None:
        async with cluster_of(rig, 2, clock_s=slow_clock_s) as members:
            await read_all(members[0])
            assert set(won) == {members[1].address}

    asyncio.run(run())


def test_a_node_that_is_gone_costs_nothing_but_speed(rig: Rig) -> None:
    """The doors of two of four nodes close in the middle: every read is right."""

    async def run() -> None:
        async with cluster_of(rig, 4, clock_s=slow_clock_s) as members:
            reading = [asyncio.create_task(read_all(member)) for member in members]
            await read_path(members[0].node, b"small/000")
            await members[1].stop()
            await members[2].stop()
            await asyncio.gather(*reading)
            assert read_bytes(rig) <= 3 * stored_bytes(rig)

    asyncio.run(run())


@contextmanager
def bad_peer(answer: bytes | None) -> Iterator[str]:
    """The address of a peer that answers every request with these bytes, or never."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                # none waits for another one, whose request may be late on a busy machine
                threading.Thread(target=reply, args=[connection], daemon=True).start()

        def reply(connection: socket.socket) -> None:
            if answer is not None:
                with suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield address
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                connection.close()
            thread.join(60)


NESTED = (
    b"HTTP/1.1 503 Busy\r\nContent-Type: application/msgpack\r\nContent-Length: 10003\r\n\r\n"
    b"\x93\x01\x90" + b"\x91" * 10_000  # a right answer, and more than is known
)


def lie(size_bytes: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size_bytes + bytes(size_bytes)


@pytest.mark.parametrize(
    "answer",
    [
        lie(20_000),
        lie(0),
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nContent-Length: 3\r\n\r\n\xff\xff\xff",
        NESTED,
        b"\x00" * 70_000,
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        None,
    ],
)
def test_a_bad_peer_harms_nobody(rig: Rig, answer: bytes | None) -> None:
    """A peer that owns everything and lies, answers rubbish, refuses or never answers: it is asked,
    and every read is right."""

    # who answers is not to be overtaken by a hedge while this machine is busy
    clock_s = time.monotonic if answer is None else slow_clock_s

    async def run(bad: Peer) -> None:
        async with cluster_of(
            rig, 2, others=[bad], seen=last_owns_none, clock_s=clock_s
        ) as members:
            for member in sorted(members, key=lambda one: one.address):
                assert await read_path(member.node, b"big") == BIG
                failures = member.count(Counter.PEER_FAILED) + member.count(Counter.PEER_CORRUPT)
                # a hedge may be there before it is given up
                assert failures > 0 or answer is None, [one.node.counts.values for one in members]
                assert member.count(Counter.PEER_REQUESTS) > 0

    with bad_peer(answer) as address:
        asyncio.run(run(Peer(address, weight=1e6)))


def test_a_stranger_gets_nothing(rig: Rig) -> None:
    """The peer door answers nobody who does not hold the secret, and knows no client's paths."""

    async def run() -> list[bytes]:
        async with cluster_of(rig, 1) as members:
            pack = rig.objects.list("packs/").__next__().key.rpartition("/")[2]
            return [
                await asked(members[0].address, target)
                for target in (f"/peers/packs/{pack}/index", "/files/data/set@main/big", "/readyz")
            ]

    async def asked(address: str, target: str) -> bytes:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        return line.split(b" ")[1]

    assert asyncio.run(run()) == [b"403", b"403", b"200"]


def test_wrong_bytes_from_the_store_reach_no_peer(rig: Rig) -> None:
    """An owner whose store lies once reads again; the node that asked it gets right bytes."""

    async def run() -> None:
        async with cluster_of(rig, 2) as members:
            lied: set[str] = set()

            def answer(key: str, part: Part) -> Part:
                if len(part.data) > 20_000 and key not in lied:
                    lied.add(key)
                    return structs.replace(part, data=bytes(len(part.data)))
                return part

            rig.objects.answer = answer
            for member in members:
                assert await read_path(member.node, b"big") == BIG
            assert lied
            assert sum(member.count(Counter.PEER_CORRUPT) for member in members) == 0

    asyncio.run(run())


def test_owners_share_the_packs(rig: Rig) -> None:
    """Both of two nodes read from the store what they own, and only that."""

    async def run() -> None:
        async with cluster_of(rig, 2, clock_s=slow_clock_s) as members:
            await asyncio.gather(*map(read_all, members))
            owed = dict.fromkeys((member.address for member in members), 0)
            peers = members[0].peering.context.members()
            for key, _, size_bytes in rig.objects.ranges:
                pack = bytes.fromhex(key.rpartition("/")[2])
                owed[rank(peers, pack, 1)[0].address] += size_bytes
            for member in members:
                assert member.count(Counter.PEER_FAILED) == 0
                assert member.count(Counter.FETCHED_BYTES) == owed[member.address]

    asyncio.run(run())


def test_nodes_meet_over_tls(rig: Rig, tmp_path: Path) -> None:
    """With certificates of one authority everything comes through TLS; a node with a certificate
    of another one gets nothing from the others, and its reads are right all the same."""
    authority, other = Authority(), Authority("other")

    async def run() -> None:
        makers = (authority, authority, other)
        tls = [PeerTls(maker.files(tmp_path / f"tls-{n}")) for n, maker in enumerate(makers)]
        async with cluster_of(rig, 3, tls=tls, clock_s=slow_clock_s) as members:
            for member in members[:2]:
                await read_all(member)
            assert members[1].count(Counter.PEER_FETCHED_BYTES) > 0
            await read_all(members[2])
            assert members[2].count(Counter.PEER_FETCHED_BYTES) == 0
            assert members[2].count(Counter.PEER_FAILED) > 0

    asyncio.run(run())


def test_an_upload_limit_holds(rig: Rig) -> None:
    """What a node sends to others takes as long as its limit says."""
    rate = 4 * MIB

    async def run() -> None:
        made = cluster_of(
            rig, 2, seen=first_owns_all, upload_bytes_per_s_max=rate, clock_s=slow_clock_s
        )
        async with made as found:
            members = sorted(found, key=lambda member: member.address)
            await read_all(members[0])
            loop = asyncio.get_running_loop()
            begin_s, before = loop.time(), members[0].count(Counter.PEER_SENT_BYTES)
            await read_all(members[1])
            sent = members[0].count(Counter.PEER_SENT_BYTES) - before
            assert sent > MIB
            assert sent <= rate * (loop.time() - begin_s + BURST_S) + MIB

    asyncio.run(run())


def test_an_overloaded_owner_names_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that sends as much as it wants names who was sent the pack: the reads are right, the
    store is not read again, and the bytes came from those."""
    monkeypatch.setattr(peer_server, "SendingLoad", partial(SendingLoad, soft_bytes_max=0))

    async def run() -> None:
        async with cluster_of(rig, 4, clock_s=slow_clock_s) as members:
            await read_all(members[0])
            await read_all(members[1])
            sent = read_bytes(rig)
            await read_all(members[2])
            await read_all(members[3])
            assert read_bytes(rig) == sent
            assert sum(member.count(Counter.PEER_REFUSED) for member in members) > 0

    asyncio.run(run())


def test_a_member_of_another_store_harms_nobody(rig: Rig, tmp_path: Path) -> None:
    """A node whose store lacks the packs says so, and the reads of the others are right."""
    other = Rig(tmp_path / "other", {b"x": b"other"}, chunk_size_bytes=20_000, pack_chunks=50)

    async def run() -> None:
        async with cluster_of(other, 1) as strangers:
            stranger = Peer(strangers[0].address, weight=1e6)
            async with cluster_of(rig, 2, others=[stranger], clock_s=slow_clock_s) as members:
                for member in members:
                    await read_all(member)
                assert sum(member.count(Counter.PEER_FAILED) for member in members) > 0

    asyncio.run(run())


def test_members_that_come_and_go(rig: Rig) -> None:
    """Reads are right while every look at the members sees others than the one before."""

    async def run() -> None:
        async with cluster_of(rig, 3, seen=flapping) as members:
            await asyncio.gather(*map(read_all, members))
            assert members[0].peering.context.members() != members[0].peering.context.members()

    def flapping(known: tuple[Peer, ...]) -> Callable[[], tuple[Peer, ...]]:
        return partial(next, cycle([known, known[:1], (), known[1:]]))

    asyncio.run(run())


def test_small_caches_still_serve(rig: Rig) -> None:
    """Nodes whose caches hold a fraction of the dataset read it right, and serve each other."""

    async def run() -> None:
        async with cluster_of(rig, 3, cache_size_bytes_max=MIB, clock_s=slow_clock_s) as members:
            await asyncio.gather(*map(read_all, members))
            await asyncio.gather(*map(read_all, members))
            assert all(member.count(Counter.PEER_FETCHED_BYTES) for member in members)

    asyncio.run(run())


def test_an_owner_without_space_serves_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an owner finds no space for it sends without keeping it, however many fetches one answer
    takes."""
    monkeypatch.setattr(chunk_reader, "UNIT_SIZE_BYTES", 40_000)

    async def run() -> None:
        async with cluster_of(rig, 1, cache_size_bytes_max=1000) as owners:
            owner = owners[0]
            segment = rig.maker.entry(b"big", BIG).segments[0]
            found = owner.node.packs
            pack_index = await found.index(segment.pack, cached=False, from_origin=True)
            chunks = found.chunks(
                pack_index, segment.first, segment.count, Follower("another", cached=False)
            )
            pieces = [bytes(piece) async for piece in chunks]
            assert b"".join(pieces) == BIG[: segment.size_bytes]
            # The node gets chunks before the owner has tried to keep them
            await until(lambda: owner.count(Counter.UNCACHED_BYTES) >= segment.size_bytes)

    asyncio.run(run())


@pytest.mark.parametrize("etag", ["a\r\nX-Evil: 1", "a b", "\u00e9", "x" * 300])
def test_an_etag_that_is_none_is_not_taken(rig: Rig, etag: str) -> None:
    """An index whose ETag could not stand in a header is wrong, whatever else it says."""
    segment = rig.maker.entry(b"big", BIG).segments[0]
    right = read_index(rig.objects, segment.pack)
    row = layout.encode_pack_row(etag, right.index.encode())

    async def run(bad: Peer) -> None:
        async with cluster_of(rig, 1, others=[bad], clock_s=slow_clock_s) as members:
            found = await members[0].node.packs.index(segment.pack, cached=False, from_origin=False)
            assert found.etag == right.etag
            assert members[0].count(Counter.PEER_CORRUPT) == 1

    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(row)
    with bad_peer(head + row) as address:
        asyncio.run(run(Peer(address, weight=1e6)))


def test_where_bytes_came_from(rig: Rig) -> None:
    """A read notes whether it waited for the store, for other nodes, or for nothing."""

    async def run() -> None:
        async with cluster_of(rig, 2, seen=first_owns_all, clock_s=slow_clock_s) as members:
            owner, other = sorted(members, key=lambda member: member.address)
            noted: list[set[Origin | None]] = []
            for member in (owner, other, other):
                noted.append(set())
                for path, content in FILES.items():
                    file = await file_of(member.node, path)
                    data, origin = await read_file(member.node, file)
                    assert data == content
                    noted[-1].add(origin)
            assert noted == [{Origin.STORE, None}, {Origin.PEERS, None}, {None}]

    asyncio.run(run())


def states(member: Member) -> dict[str, tuple[object, object]]:
    """State and reason of the others, as /status shows them."""
    peers = member.node.status()["peers"]
    assert isinstance(peers, list)
    return {one["address"]: (one["state"], one["reason"]) for one in peers if not one["self"]}


def test_a_wrong_secret_is_seen_on_both_sides(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A node with another secret: status, metrics and one line of the log say that the others
    refuse it, and the others say so of it, although nobody read anything."""
    caplog.set_level(logging.WARNING, "lodefs.peers")

    async def run() -> None:
        secrets = [SECRET, SECRET, b"another secret, of another cluster"]
        async with cluster_of(rig, 3, secrets=secrets) as members:
            one, other, stranger = members

            def is_seen() -> bool:
                """A busy machine may be late for a look, and then another one tells."""
                known = [fault for member in members for fault, _ in states(member).values()]
                return known.count(Fault.REFUSING) == 4 and known.count(WELL) == 2

            async with asyncio.timeout(60):
                while not is_seen():
                    await asyncio.gather(*(member.node.look() for member in members))
            for member in (one, other):
                state, reason = states(member)[stranger.address]
                assert state == Fault.REFUSING
                assert "peer_secret_file" in str(reason)
                well = other if member is one else one
                assert states(member)[well.address] == (WELL, "")
                assert member.node.status()["peers_refusing_nodes"] == 1
            assert {state for state, _ in states(stranger).values()} == {Fault.REFUSING}
            assert stranger.node.status()["peers_refusing_nodes"] == 2
            assert one.count(Counter.PEER_UNTRUSTED) > 0
            told = [line for line in caplog.messages if "do not trust each other" in line]
            assert len(told) == 4  # each of two sides of each of two pairs, once

    asyncio.run(run())


def test_who_is_refused_here_is_named(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A member whose requests are refused is shown with the reason, also where it answers well;
    strangers are told of once, however often they ask."""
    caplog.set_level(logging.WARNING, "lodefs.peers")

    async def run() -> None:
        async with cluster_of(rig, 2) as (one, other):
            late = HmacAuthenticator(
                lambda: [SECRET], lambda: [other.address], clock_s=lambda: time.time() - 100
            )
            nobody = HmacAuthenticator(lambda: [b"guessed"], lambda: ["10.0.0.9:7441"])
            for asking in (late, late, nobody, nobody):
                found = await probe(one.address, Addresses(time.monotonic).of, asking)
                assert found.fault is Fault.REFUSING
            state, reason = states(one)[other.address]
            assert state == REFUSED
            assert "clock" in str(reason)
            assert one.node.status()["peers_refused_nodes"] == 1
            told = [line for line in caplog.messages if "refused" in line]
            assert [other.address in line for line in told] == [True, False]
            await other.node.look()
            assert states(one)[other.address] == (WELL, "")

    asyncio.run(run())


@asynccontextmanager
async def passing_on_to(address: str) -> AsyncIterator[str]:
    """The address of a machine without the secret that passes requests on, and reads answers."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*address.split(":"))
        await asyncio.gather(pump(reader, back), pump(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_who_passes_requests_on_gets_no_data(rig: Rig) -> None:
    """A machine that the members' list names and that has no secret gets 403 for what it passes on,
    also from a node that does not know which member it is."""

    async def run() -> None:
        async with cluster_of(rig, 2, knows_itself=False) as (one, other):
            signing = other.peering.context.authenticator
            async with passing_on_to(one.address) as relay:
                found = await probe(relay, Addresses(time.monotonic).of, signing)
            assert found.fault is Fault.REFUSING
            assert f"was signed for {relay}; this node is at {one.address}" in found.why
            assert one.count(Counter.PEER_UNTRUSTED) == 1
            direct = await probe(one.address, Addresses(time.monotonic).of, signing)
            assert direct.fault is None

    asyncio.run(run())


def test_a_node_that_died_a_moment_ago_is_seen(rig: Rig) -> None:
    """Status looks before it answers: a node that was well and is gone is down, with a reason, and
    what it sent is still told."""

    async def run() -> None:
        async with cluster_of(rig, 2, clock_s=slow_clock_s) as (one, other):
            await read_all(one)
            assert states(one)[other.address] == (WELL, "")
            await other.stop()
            one.peering.context.health._record(
                other.address
            ).seen_s = None  # it was not heard of lately
            await one.node.look()
            assert states(one)[other.address][0] == DOWN
            (seen,) = (peer for peer in one.peering.status()["peers"] if not peer["self"])  # type: ignore[attr-defined]
            assert not seen["usable"]
            assert seen["received_bytes"] > 0

    asyncio.run(run())

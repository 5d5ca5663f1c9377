"""Nodes that read the same at the same moment, and announce it: real sockets, one store."""

from __future__ import annotations

import asyncio
import random
import socket
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.system.sockets import listen_tcp
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.fetch import single_flight
from lodefs.proxy.fetch.flight import Follower
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_source import StorePacks
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.peers import server as peer_server
from lodefs.proxy.peers.client.peer_packs import PeerPacks
from lodefs.proxy.peers.membership.peer import Peer, split_address
from lodefs.proxy.peers.security.request_signing import HmacAuthenticator
from lodefs.proxy.peers.sending_load import SOFT_BYTES_MAX, SendingLoad
from lodefs.proxy.peers.server import ChunkRequest, PeerServer
from tests.support.proxy.cluster import (
    SECRET,
    Member,
    cluster_of,
    first_owns_all,
    read_bytes,
    slow_clock_s,
    stored_bytes,
)
from tests.support.proxy.rig import MIB, Rig, file_of, read_path, until

BIG = random.Random(1).randbytes(6 * MIB + 123)
SMALL = {b"small/%03d" % n: random.Random(n).randbytes(500 + n * 37) for n in range(60)}
FILES = {b"big": BIG, **SMALL}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=20_000, pack_chunks=50)


async def announce(rig: Rig, member: Member, pack: PackId, ahead: range) -> None:
    """Has a node ask for a pack's index, as one does that will read these chunks."""
    counts = Counts()
    packs = member.peering.packs(StorePacks(rig.objects, counts, DamagedChunks()), counts)
    await asyncio.to_thread(packs.index, pack, ahead)


def test_an_owner_fetches_what_is_announced_once(rig: Rig) -> None:
    """However many nodes announce it, only those chunks, and before anybody reads them. A node
    that does not own the pack fetches nothing."""

    async def run() -> None:
        async with cluster_of(rig, 4, seen=first_owns_all, clock_s=slow_clock_s) as members:
            big = await file_of(members[0].node, b"big")
            pack = name_rows.segments_of(big.row)[1].pack
            members.sort(key=lambda one: not one.peering.context.reads_for_peers(pack))
            owner, *others = members
            await asyncio.gather(*(announce(rig, one, pack, range(10, 30)) for one in others))
            await announce(rig, others[0], pack, range(45, 1000))  # as far as there are chunks
            loaded = read_index(rig.objects, pack)
            sizes, asks = loaded.index.stored_sizes, Follower("", cached=True)
            for first, count, expected in ((10, 20, True), (45, 5, True), (9, 1, False)):
                assert await owner.node.packs.is_here(loaded, first, count, asks) == expected
            await until(lambda: not owner.node.status()["in_flight_bytes"])
            ends = [offset + size for _, offset, size in rig.objects.ranges]
            assert len(ends) == len(set(ends))
            fetched = sum(size for key, _, size in rig.objects.ranges if pack.hex() in key)
            assert fetched == sum([*sizes[10:30], *sizes[45:50]])

    asyncio.run(run())


def test_a_flood_of_announcements_has_limits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that announces all parts of a pack, overlapping and again, gets the index each time;
    the owner reads no chunk twice, and no more than it has room for."""
    monkeypatch.setattr(single_flight, "ANNOUNCED_SIZE_BYTES_MAX", 400_000)

    async def run() -> None:
        async with cluster_of(rig, 2, seen=first_owns_all, clock_s=slow_clock_s) as members:
            big = await file_of(members[0].node, b"big")
            pack = name_rows.segments_of(big.row)[1].pack
            members.sort(key=lambda one: not one.peering.context.reads_for_peers(pack))
            owner, member = members
            ranges = [range(first, first + count) for count in (50, 7) for first in range(50)]
            await asyncio.gather(*(announce(rig, member, pack, ahead) for ahead in ranges))
            await until(lambda: not owner.node.status()["in_flight_bytes"])
            assert owner.count(Counter.AHEAD_REFUSED) > 0
            ends = [(key, at + size) for key, at, size in rig.objects.ranges if pack.hex() in key]
            assert len(ends) == len(set(ends))

    asyncio.run(run())


def test_two_herds_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs of nodes read the same in opposite orders, from owners that send to one and refer
    the others to it, and one reader stops in the middle: right bytes, and the store sends each
    chunk once."""
    monkeypatch.setattr(peer_server, "SendingLoad", partial(SendingLoad, soft_bytes_max=1))

    async def read(member: Member, paths: list[bytes]) -> None:
        for path in paths:
            assert await read_path(member.node, path) == FILES[path]

    async def run() -> None:
        async with cluster_of(rig, 5, clock_s=slow_clock_s) as members:
            orders = [list(FILES), list(FILES)[::-1]] * 2
            reads = [
                asyncio.create_task(read(*one))
                for one in zip(members, [*orders, [b"big"]], strict=True)
            ]
            await until(lambda: members[4].count(Counter.PEER_FETCHED_BYTES) > 0)
            reads.pop().cancel()
            await asyncio.gather(*reads)
            assert read_bytes(rig) <= 1.05 * stored_bytes(rig)
            assert sum(member.count(Counter.PEER_CORRUPT) for member in members) == 0

    asyncio.run(run())


def test_announcements_go_to_the_owner(rig: Rig) -> None:
    """A node that got a part of a pack from another one still announces the pack to its owner,
    which names parents; the other node, which has the index too, would name none."""

    async def run() -> None:
        async with cluster_of(rig, 4, seen=first_owns_all, clock_s=slow_clock_s) as members:
            big = await file_of(members[0].node, b"big")
            pack = name_rows.segments_of(big.row)[1].pack
            ranked = [one.address for one in members[0].peering.context.owners_of(pack)]
            _, _, *readers = sorted(members, key=lambda one: ranked.index(one.address))
            counts, parents = Counts(), []
            for reader in readers:
                origin = StorePacks(rig.objects, counts, DamagedChunks())
                packs = reader.peering.packs(origin, counts)
                assert isinstance(packs, PeerPacks)
                packs._senders.put(pack, Peer(readers[0].address))
                await asyncio.to_thread(packs.index, pack, range(50))
                await reader.node.packs.index(pack, cached=False, from_origin=True)
                parents.append(packs._parent(pack, 0))
            assert parents == [None, Peer(readers[0].address, weight=1e-3)]

    asyncio.run(run())


def test_readers_of_a_pack_ask_each_other(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes announce a pack one after the other and read it: the first one asks the owner,
    and the others ask a node that announced it before them, which has it or waits for it."""
    asked: list[tuple[PackId, str, str]] = []
    chunks_of = PeerServer._chunks

    async def chunks(server: PeerServer, request: ChunkRequest, peer: str) -> Answer:
        asked.append((request.pack, peer, server._context.own_addresses()[0]))
        return await chunks_of(server, request, peer)

    monkeypatch.setattr(PeerServer, "_chunks", chunks)

    async def run() -> None:
        async with cluster_of(rig, 4, seen=first_owns_all, clock_s=slow_clock_s) as members:
            big = await file_of(members[0].node, b"big")
            pack, first, count = name_rows.segments_of(big.row)[1][:3]
            members.sort(key=lambda one: not one.peering.context.reads_for_peers(pack))
            owner, *readers = members
            for reader in readers:
                await reader.node.packs._indexes.announce(pack, range(first, first + count))
            for reader in readers:
                assert await read_path(reader.node, b"big") == BIG
            way = {(peer, at) for one, peer, at in asked if one == pack}
            a, b, c = (one.address for one in readers)
            assert way == {(a, owner.address), (b, a), (c, a)}

    asyncio.run(run())


def test_a_member_that_does_not_read_sends_nobody_away(tmp_path: Path) -> None:
    """A member asks an owner for all that it may have at once, and reads nothing: the owner sends
    the pack to three readers all the same, and refers nobody to that member."""
    data = random.Random(2).randbytes(8 * MIB)
    rig = Rig(tmp_path, {b"big": data}, chunk_size_bytes=20_000, pack_chunks=500)
    listener = listen_tcp("127.0.0.1", 0)
    greedy = f"127.0.0.1:{listener.getsockname()[1]}"
    listener.close()  # it does not answer either
    signer = HmacAuthenticator(lambda: [SECRET], lambda: [greedy])

    async def run() -> None:
        made = cluster_of(rig, 4, others=[Peer(greedy)], seen=first_owns_all, clock_s=slow_clock_s)
        async with made as members:
            big = await file_of(members[0].node, b"big")
            pack, first, count = name_rows.segments_of(big.row)[0][:3]
            members.sort(key=lambda one: not one.peering.context.reads_for_peers(pack))
            owner, *readers = members
            target = wire.peer_chunks(pack.hex(), first, count)
            requests = SOFT_BYTES_MAX // len(data)
            for _ in range(requests):
                headers = [("Host", "owner"), *signer.sign("GET", target, to=owner.address)]
                sock = stack.enter_context(socket.create_connection(split_address(owner.address)))
                sock.sendall(encode_request("GET", target, headers))
            load = owner.node.peer_server._load  # type: ignore[union-attr]
            await until(lambda: load.sending_bytes == requests * len(data))
            reads = await asyncio.gather(*(read_path(one.node, b"big") for one in readers))
            assert reads == [data] * 3
            assert owner.count(Counter.PEER_REFUSED) == 0
            assert load.sending_bytes == requests * len(data)

    with ExitStack() as stack:
        asyncio.run(run())

"""Nodes of one cluster in one event loop, over one store, for tests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from chunkstore.sockets import listen_tcp
from proxy.cache import Cache, CacheSettings
from proxy.doors import Door
from proxy.meter import Counter, Counts
from proxy.peers.addresses import Addresses
from proxy.peers.auth import HmacAuthenticator
from proxy.peers.connections import Connections
from proxy.peers.membership import StaticMembers
from proxy.peers.peer import Peer
from proxy.peers.peering import Limits, Peering
from proxy.peers.tls import PeerTls
from proxy.server import ProxyServer
from proxy.storenode import NodeSettings, StoreNode
from proxy.testing_rig import MIB, Rig

SECRET = b"the secret of the tests"


def slow_clock_s() -> float:
    """A clock by which a machine that stalls for half a minute has not stalled at all."""
    return time.monotonic() / 20


@dataclass(slots=True)
class Member:
    """One node and the server of its peer door."""

    address: str
    node: StoreNode
    server: ProxyServer
    peering: Peering

    def count(self, counter: Counter) -> int:
        """One of the node's figures."""
        return self.node.counts.values[counter]

    async def stop(self) -> None:
        """Ends the peer door; the node itself goes on."""
        await self.server.stop(0)


@asynccontextmanager
async def cluster_of(
    rig: Rig,
    count: int,
    *,
    others: Sequence[Peer] = (),
    limits: Limits | None = None,
    tls: Sequence[PeerTls] = (),
    seen: Callable[[tuple[Peer, ...]], Callable[[], tuple[Peer, ...]]] | None = None,
    cache_size_bytes_max: int = 64 * MIB,
    clock_s: Callable[[], float] = time.monotonic,
) -> AsyncIterator[list[Member]]:
    """So many nodes over the rig's store, all of them members of one cluster; ``others`` are
    members that the test runs itself. ``tls``: of each node, if any. ``seen``: makes
    of the members what nodes see of them. ``clock_s``: by which they lose patience."""
    async with AsyncExitStack() as stack:
        listeners = [listen_tcp("127.0.0.1", 0) for _ in range(count)]
        addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in listeners]
        membership = StaticMembers([*map(Peer, addresses), *others])
        members_now = seen(membership.members()) if seen else membership.members
        addresses_of = Addresses(time.monotonic)
        stack.push_async_callback(addresses_of.close)
        members: list[Member] = []
        for number, (listener, address) in enumerate(zip(listeners, addresses, strict=True)):
            own_tls = tls[number] if tls else None
            connections = Connections(addresses_of.of, own_tls.client if own_tls else lambda: None)
            own = partial(tuple[str, ...], (address,))
            authenticator = HmacAuthenticator(lambda: [SECRET], own)
            peering = Peering(
                members_now, own, authenticator, connections, limits or Limits(), clock_s=clock_s
            )
            settings = NodeSettings(
                CacheSettings(rig.directory / f"cache-{number}", cache_size_bytes_max)
            )
            counts = Counts()
            cache = Cache(settings.cache, counts)
            node = StoreNode(rig.store, settings, counts, cache=cache, peering=peering)
            stack.push_async_callback(node.close)
            stack.callback(peering.close)
            server = ProxyServer(node, version="test")
            context = own_tls.server() if own_tls else None
            await server.start([Door(listener, desk=node.peer_desk, tls=context)])
            stack.push_async_callback(server.stop, 0)
            members.append(Member(address, node, server, peering))
        yield members

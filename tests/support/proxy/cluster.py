"""Nodes of one cluster in one event loop, over one store, for tests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from lodefs.chunkstore.system.sockets import listen_tcp
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.http.endpoint import Endpoint
from lodefs.proxy.http.server import ProxyServer
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.metrics.server_metrics import MetricInputs
from lodefs.proxy.peers.client.connection_pool import ConnectionPool
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.rate_limit import RateLimiter
from lodefs.proxy.peers.membership.addresses import Addresses
from lodefs.proxy.peers.membership.members import StaticMembers
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.prober import Prober
from lodefs.proxy.peers.membership.readiness import probe
from lodefs.proxy.peers.peering import Peering
from lodefs.proxy.peers.security.request_signing import HmacAuthenticator
from lodefs.proxy.peers.security.tls import PeerTls
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from lodefs.proxy.tracing.spans import NO_TRACER, Tracer
from tests.support.proxy.rig import MIB, Rig

SECRET = b"the secret of the tests"


def slow_clock_s() -> float:
    """A clock by which a machine that stalls for half a minute has not stalled at all."""
    return time.monotonic() / 20


def first_owns_all(members: tuple[Peer, ...]) -> Callable[[], tuple[Peer, ...]]:
    """All packs are the first one's, whatever ports the members have."""
    owner, *others = members
    heavy = (replace(owner, weight=1e6), *(replace(one, weight=1e-3) for one in others))
    return lambda: heavy


def stored_bytes(rig: Rig) -> int:
    """The bytes of all packs' chunks, data and trees, as they lie in the store."""
    return sum(info.size_bytes for info in rig.objects.list("packs/"))


def read_bytes(rig: Rig) -> int:
    return sum(size for _, _, size in rig.objects.ranges)


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
    upload_bytes_per_s_max: float | None = None,
    tls: Sequence[PeerTls] = (),
    seen: Callable[[tuple[Peer, ...]], Callable[[], tuple[Peer, ...]]] | None = None,
    cache_size_bytes_max: int = 64 * MIB,
    secrets: Sequence[bytes] = (),
    clock_s: Callable[[], float] = time.monotonic,
    tracer: Tracer = NO_TRACER,
    knows_itself: bool = True,
) -> AsyncIterator[list[Member]]:
    """So many nodes over the rig's store, all of them members of one cluster; ``others`` are
    members that the test runs itself. ``tls``, ``secrets``: of each node, if any. ``seen``: makes
    of the members what nodes see of them. ``clock_s``: by which they lose patience. ``tracer``:
    who records their requests. ``knows_itself``: each node knows which member it is."""
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
            connections = ConnectionPool(
                addresses_of.of, own_tls.client if own_tls else lambda: None
            )
            own = partial(tuple[str, ...], (address,) if knows_itself else ())
            secret = secrets[number] if secrets else SECRET
            authenticator = HmacAuthenticator(partial(list[bytes], (secret,)), own)
            context = PeerContext(
                members_now,
                own,
                authenticator,
                connections,
                upload=RateLimiter(upload_bytes_per_s_max),
                clock_s=clock_s,
            )
            prober = prober_of(context, addresses_of, own_tls)
            stack.push_async_callback(prober.close)
            peering = Peering(context, prober)
            settings = NodeSettings(
                CacheSettings(rig.directory / f"cache-{number}", cache_size_bytes_max)
            )
            counts = Counts()
            node = StoreNode(rig.store, settings, counts, peering=peering)
            stack.push_async_callback(node.close)
            stack.callback(peering.close)
            server = ProxyServer(node, version="test", metric_inputs=MetricInputs(tracer=tracer))
            server_tls = own_tls.server() if own_tls else None
            endpoint = Endpoint(listener, peer_server=node.peer_server, tls=server_tls)
            await server.start([endpoint])
            stack.push_async_callback(server.stop, 0)
            members.append(Member(address, node, server, peering))
        yield members


def prober_of(context: PeerContext, addresses: Addresses, tls: PeerTls | None) -> Prober:
    """What looks how the others are when somebody asks; nobody else has it probe."""
    return Prober(
        context.others,
        context.health,
        lambda address: probe(
            address, addresses.of, context.authenticator, tls.client if tls else None
        ),
    )

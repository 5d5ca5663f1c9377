"""A node's part in its cluster, as the settings define it: opened, kept up to date, closed."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from lodefs.proxy.config import Config
from lodefs.proxy.fetch.chunk_reader import ChunkReader
from lodefs.proxy.fetch.pack_source import PackSource
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.node import Upstream
from lodefs.proxy.peers.client.connection_pool import IDLE_MAX, ConnectionPool
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.job_client import PeerJobClient
from lodefs.proxy.peers.client.peer_packs import PeerPacks
from lodefs.proxy.peers.client.rate_limit import RateLimiter
from lodefs.proxy.peers.membership.addresses import Addresses, is_ip, place_of
from lodefs.proxy.peers.membership.cluster import Cluster, SelfDetector, membership
from lodefs.proxy.peers.membership.members import follow
from lodefs.proxy.peers.membership.peer import split_address
from lodefs.proxy.peers.membership.peer_standing import REFUSED, WELL, Fault
from lodefs.proxy.peers.membership.prober import CONCURRENCY, LOOK_MAX, Prober
from lodefs.proxy.peers.membership.readiness import probe
from lodefs.proxy.peers.security.credentials import Credentials
from lodefs.proxy.peers.security.tls import TlsFiles
from lodefs.proxy.peers.server import PeerJobServer, PeerServer
from lodefs.proxy.runtime.thread_pools import Pool
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer

DISK_THREADS = 2  # for calls that block briefly: watched files


class Sockets(NamedTuple):
    """The limit on open sockets to other nodes, besides those for fetches."""

    idle: int  # kept between requests
    looks: int  # probes for one /status
    probes: int  # scheduled probes


def sockets_of(count: int) -> Sockets:
    """Splits ``count`` sockets. If they are few, fewer members are probed at once."""
    probes = min(CONCURRENCY, count // 4)
    looks = min(LOOK_MAX, count // 3)
    return Sockets(min(IDLE_MAX, count - looks - probes), looks, probes)


class ClusterPart(NamedTuple):
    """A node's part in a cluster: its exchange of packs, and TLS for its peer endpoint."""

    peering: Peering
    tls: ssl.SSLContext | None


@asynccontextmanager
async def join_cluster(config: Config, sockets_max: int) -> AsyncIterator[ClusterPart | None]:
    """Yields the part that ``config`` defines; None if this node is alone. ``sockets_max`` limits
    sockets to other nodes, besides those for fetches. Raises: InvalidInput."""
    if not config.in_cluster:
        yield None
        return
    disk = Pool("peers", threads=DISK_THREADS)
    try:
        async with _opened(config, disk, sockets_of(sockets_max)) as part:
            yield part
    finally:
        await disk.close()


@asynccontextmanager
async def _opened(config: Config, disk: Pool, sockets: Sockets) -> AsyncIterator[ClusterPart]:
    host, port = config.peer_listen or ("", None)
    cluster = Cluster(
        membership(
            disk, peers=config.peers, peers_file=config.peers_file, peers_dns=config.peers_dns
        ),
        Addresses(time.monotonic),
        SelfDetector(port, config.peer_address, host=host),
        disk,
    )
    trust = Credentials(
        cluster.own_addresses,
        disk,
        secret_file=config.peer_secret_file,
        tls_files=tls_files(config),
        allow_anonymous=config.peer_allow_anonymous,
        reached_at=_reached_at(config.peer_address),
    )
    tls = trust.tls
    context = PeerContext(
        cluster.members,
        cluster.own_addresses,
        trust.authenticator,
        ConnectionPool(
            cluster.endpoints, lambda: tls.client() if tls else None, idle_max=sockets.idle
        ),
        upload=RateLimiter(config.peer_upload_bytes_per_s_max),
        download=RateLimiter(config.peer_download_bytes_per_s_max),
    )
    prober = Prober(
        context.others,
        context.health,
        lambda address: probe(
            address, cluster.endpoints, trust.authenticator, tls.client if tls else None
        ),
        probes_max=sockets.probes,
        looks_max=sockets.looks,
    )
    peering = Peering(context, prober)
    await cluster.start()
    tasks = [asyncio.create_task(follow(look)) for look in (trust.refresh, prober.refresh)]
    try:
        yield ClusterPart(peering, tls.server() if tls else None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await prober.close()
        await cluster.close()
        peering.close()


def _reached_at(peer_address: str | None) -> str:
    """Returns the address that others connect to, if the settings give it as an IP address."""
    host, port = split_address(peer_address) if peer_address else ("", 0)
    return place_of(host, port) if is_ip(host) else ""


def tls_files(config: Config) -> TlsFiles | None:
    """Returns the files of mutual TLS, if the settings name them: all, or none."""
    cert, key, ca = (
        config.peer_tls_cert_file,
        config.peer_tls_key_file,
        config.peer_tls_ca_file,
    )
    return TlsFiles(cert, key, ca) if cert and key and ca else None


class Peering:
    """A node's requests to the other nodes, and its answers to theirs."""

    def __init__(self, context: PeerContext, prober: Prober) -> None:
        self.context = context
        self._prober = prober

    def packs(self, origin: PackSource, counts: Counts) -> PackSource:
        return PeerPacks(origin, self.context, counts)

    def server(
        self,
        packs: ChunkReader,
        warmer: ClusterWarmer,
        counts: Counts,
        upstream: Upstream | None = None,
    ) -> PeerServer:
        return PeerServer(self.context, packs, PeerJobServer(warmer), counts, upstream)

    def jobs(self, pool: Pool) -> PeerJobClient:
        return PeerJobClient(self.context, pool)

    async def look(self) -> None:
        """Probes the members without recent news; takes at most about a second."""
        await self._prober.look()

    def status(self) -> dict[str, object]:
        """Returns the part of /status: every member, whether it is this node, and its state."""
        context = self.context
        own, now_s = context.own_addresses(), context.clock_s()
        members = context.members()
        others = [peer.address for peer in members if peer.address not in own]
        standings = {one: context.health.standing(one, now_s) for one in others}
        states = Counter(one.state for one in standings.values())
        views = [
            {
                "address": peer.address,
                "self": peer.address in own,
                "usable": True,
                "weight": peer.weight,
                **(standings[peer.address].view() if peer.address in standings else {}),
            }
            for peer in members
        ]
        return {
            "peers": views,
            "peers_nodes": len(others),
            "peers_unwell_nodes": len(others) - states[WELL],
            "peers_refusing_nodes": states[Fault.REFUSING],
            "peers_refused_nodes": states[REFUSED],
            "peers_wrong_nodes": states[Fault.WRONG],
        }

    def close(self) -> None:
        self.context.connections.close()

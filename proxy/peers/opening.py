"""A node's part in its cluster as the settings want it: opened, kept up to date, ended."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from proxy.config import Config
from proxy.offload import Pool
from proxy.peers.addresses import Addresses
from proxy.peers.cluster import Cluster, membership
from proxy.peers.connections import Connections
from proxy.peers.membership import follow
from proxy.peers.oneself import Oneself
from proxy.peers.peering import Limits, Peering
from proxy.peers.probing import Prober
from proxy.peers.readiness import is_ready
from proxy.peers.tls import TlsFiles
from proxy.peers.trust import Trust

DISK_THREADS = 2  # for what blocks a little: files that are watched


class Part(NamedTuple):
    """A node's part in a cluster: its exchange of packs, and TLS for its peer door."""

    peering: Peering
    tls: ssl.SSLContext | None


@asynccontextmanager
async def open_part(config: Config) -> AsyncIterator[Part | None]:
    """The part that ``config`` names; None where this node is alone. InvalidInput."""
    if not config.in_cluster:
        yield None
        return
    disk = Pool("peers", threads=DISK_THREADS)
    try:
        async with _opened(config, disk) as part:
            yield part
    finally:
        await disk.close()


@asynccontextmanager
async def _opened(config: Config, disk: Pool) -> AsyncIterator[Part]:
    port = config.peer_listen[1] if config.peer_listen is not None else None
    cluster = Cluster(
        membership(
            disk, peers=config.peers, peers_file=config.peers_file, peers_dns=config.peers_dns
        ),
        Addresses(time.monotonic),
        Oneself(port, config.peer_address),
        disk,
    )
    trust = Trust(
        cluster.own_addresses,
        disk,
        secret_file=config.peer_secret_file,
        tls_files=tls_files(config),
        allow_anonymous=config.peer_allow_anonymous,
    )
    tls = trust.tls
    limits = Limits(config.peer_upload_bytes_per_s_max, config.peer_download_bytes_per_s_max)
    connections = Connections(cluster.endpoints, lambda: tls.client() if tls else None)
    peering = Peering(
        cluster.members, cluster.own_addresses, trust.authenticator, connections, limits
    )
    prober = Prober(
        cluster.members,
        cluster.own_addresses,
        peering.health,
        lambda address: is_ready(address, cluster.endpoints, tls.client if tls else None),
    )
    await cluster.start()
    tasks = [asyncio.create_task(follow(look)) for look in (trust.refresh, prober.refresh)]
    try:
        yield Part(peering, tls.server() if tls else None)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await cluster.close()
        peering.close()


def tls_files(config: Config) -> TlsFiles | None:
    """The files of mutual TLS, where the settings name them: all, or none."""
    cert, key, ca = (
        config.peer_tls_cert_file,
        config.peer_tls_key_file,
        config.peer_tls_ca_file,
    )
    return TlsFiles(cert, key, ca) if cert and key and ca else None

"""How a node exchanges packs with the others: what asking them and answering them shares."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lodefs.proxy.fetch.pack_chunks import Packs
from lodefs.proxy.fetch.pack_source import PackSource
from lodefs.proxy.peers.client.connection_pool import Connections
from lodefs.proxy.peers.client.hedge_budget import Budgets
from lodefs.proxy.peers.client.hedged_request import Means
from lodefs.proxy.peers.client.job_client import HttpPeerJobs
from lodefs.proxy.peers.client.peer_health import Health
from lodefs.proxy.peers.client.peer_packs import PeerPacks
from lodefs.proxy.peers.client.rate_limit import Bandwidth
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_standing import REFUSED, WELL, Fault, log_change
from lodefs.proxy.peers.membership.prober import Prober
from lodefs.proxy.peers.security.request_signing import Authenticator
from lodefs.proxy.peers.server.peer_server import PeerDesk
from lodefs.proxy.peers.server.recipients import Load, Sources
from lodefs.proxy.runtime.counters import Meter
from lodefs.proxy.runtime.thread_pools import Pool


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes a second to peers and from them; None: no limit."""

    upload_bytes_per_s_max: int | None = None
    download_bytes_per_s_max: int | None = None


class Peering:
    """What a node knows of the others, and its ways to them."""

    def __init__(
        self,
        members: Callable[[], Sequence[Peer]],
        own_addresses: Callable[[], Sequence[str]],
        authenticator: Authenticator,
        connections: Connections,
        limits: Limits,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``members`` and ``own_addresses``: as of Cluster."""
        self.members = members
        self.own_addresses = own_addresses
        self.health = Health(on_change=log_change)
        self.prober: Prober | None = None  # who looks how the others are
        self._authenticator = authenticator
        self._connections = connections
        self._budgets = Budgets()
        self._upload = Bandwidth(limits.upload_bytes_per_s_max)
        self._download = Bandwidth(limits.download_bytes_per_s_max)
        self._clock_s = clock_s

    def packs(self, origin: PackSource, meter: Meter) -> PackSource:
        """The packs of a store, asked of the cluster first."""
        means = Means(
            self.health,
            self._connections,
            self._authenticator,
            self._download,
            meter,
            self.members,
            self._clock_s,
        )
        return PeerPacks(origin, means, self._budgets, self.own_addresses)

    def desk(self, packs: Packs, meter: Meter) -> PeerDesk:
        """What answers the others."""
        return PeerDesk(
            packs,
            self._authenticator,
            Load(),
            Sources(),
            self._upload,
            meter,
            self.members,
            self.health,
            clock_s=self._clock_s,
        )

    def jobs(self, pool: Pool) -> HttpPeerJobs:
        """The warm jobs of the others. ``pool`` runs what waits for them."""
        return HttpPeerJobs(self._others, self._connections, self._authenticator, pool)

    def _others(self) -> list[str]:
        own = self.own_addresses()
        return [peer.address for peer in self.members() if peer.address not in own]

    async def look(self) -> None:
        """Asks the others how they are, those not heard of lately; takes about a second at most."""
        if self.prober is not None:
            await self.prober.look()

    def status(self) -> dict[str, object]:
        """For /status: every member, whether it is this node, and how things are with it."""
        own, now_s = self.own_addresses(), self._clock_s()
        members = self.members()
        others = [peer.address for peer in members if peer.address not in own]
        standings = {one: self.health.standing(one, now_s) for one in others}
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
        """Ends the connections to the others."""
        self._connections.close()

"""How a node exchanges packs with the others: what asking them and answering them shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy.meter import Meter
from proxy.offload import Pool
from proxy.packs import Packs
from proxy.packsource import PackSource
from proxy.peers.auth import Authenticator
from proxy.peers.bandwidth import Bandwidth
from proxy.peers.budgets import Budgets
from proxy.peers.connections import Connections
from proxy.peers.desk import PeerDesk
from proxy.peers.health import Health
from proxy.peers.peer import Peer
from proxy.peers.peerjobs import HttpPeerJobs
from proxy.peers.peerpacks import PeerPacks
from proxy.peers.race import Means
from proxy.peers.sources import Load, Sources


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
        self.health = Health()
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
            clock_s=self._clock_s,
        )

    def jobs(self, pool: Pool) -> HttpPeerJobs:
        """The warm jobs of the others. ``pool`` runs what waits for them."""
        return HttpPeerJobs(self._others, self._connections, self._authenticator, pool)

    def _others(self) -> list[str]:
        own = self.own_addresses()
        return [peer.address for peer in self.members() if peer.address not in own]

    def status(self) -> list[dict[str, object]]:
        """For /status: every member, whether it is this node, whether it is asked."""
        own, now_s = self.own_addresses(), self._clock_s()
        return [
            {
                "address": peer.address,
                "self": peer.address in own,
                "usable": self.health.usable(peer.address, now_s),
                "weight": peer.weight,
            }
            for peer in self.members()
        ]

    def close(self) -> None:
        """Ends the connections to the others."""
        self._connections.close()

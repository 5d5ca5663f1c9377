"""How a node exchanges packs and warm jobs with the others, and what it shows of them."""

from __future__ import annotations

from collections import Counter

from lodefs.proxy.fetch.pack_chunks import Packs
from lodefs.proxy.fetch.pack_source import PackSource
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.job_client import PeerJobClient
from lodefs.proxy.peers.client.peer_packs import PeerPacks
from lodefs.proxy.peers.membership.peer_standing import REFUSED, WELL, Fault
from lodefs.proxy.peers.membership.prober import Prober
from lodefs.proxy.peers.server.job_server import PeerJobServer
from lodefs.proxy.peers.server.peer_server import PeerServer
from lodefs.proxy.runtime.counters import Counts
from lodefs.proxy.runtime.thread_pools import Pool
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer


class Peering:
    """A node's ways to the other nodes, and their ways to it."""

    def __init__(self, context: PeerContext, prober: Prober) -> None:
        self.context = context
        self._prober = prober

    def packs(self, origin: PackSource, counts: Counts) -> PackSource:
        """The packs of a store, asked of the cluster first."""
        return PeerPacks(origin, self.context, counts)

    def server(self, packs: Packs, warmer: ClusterWarmer, counts: Counts) -> PeerServer:
        """What answers the others."""
        return PeerServer(self.context, packs, PeerJobServer(warmer), counts)

    def jobs(self, pool: Pool) -> PeerJobClient:
        """The warm jobs of the others. ``pool`` runs what waits for them."""
        return PeerJobClient(self.context, pool)

    async def look(self) -> None:
        """Probes the others without news lately; takes about a second at most."""
        await self._prober.look()

    def status(self) -> dict[str, object]:
        """For /status: every member, whether it is this node, and how things are with it."""
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
        """Ends the connections to the others."""
        self.context.connections.close()

"""The state that requests to other nodes and answers to them share, made once for a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lodefs.proxy.peers.client.connection_pool import ConnectionPool
from lodefs.proxy.peers.client.rate_limit import RateLimiter
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import PeerHealth
from lodefs.proxy.peers.membership.peer_standing import log_change
from lodefs.proxy.peers.membership.rendezvous import Owners
from lodefs.proxy.peers.security.request_signing import Authenticator
from lodefs.proxy.runtime.processor_wait import ProcessorWait


def _logged_health() -> PeerHealth:
    return PeerHealth(on_change=log_change)


@dataclass(frozen=True, slots=True)
class PeerContext:
    """The state that requests to peers share, for any thread. ``members`` and ``own_addresses`` are
    those of Cluster. ``upload`` and ``download`` limit the bytes to and from peers."""

    members: Callable[[], Sequence[Peer]]
    own_addresses: Callable[[], Sequence[str]]
    authenticator: Authenticator
    connections: ConnectionPool
    health: PeerHealth = field(default_factory=_logged_health)
    upload: RateLimiter = field(default_factory=RateLimiter)
    download: RateLimiter = field(default_factory=RateLimiter)
    clock_s: Callable[[], float] = time.monotonic
    begin_wait: Callable[[], ProcessorWait] = ProcessorWait.begin
    _owners: Owners = field(default_factory=Owners)

    def owners_of(self, pack: bytes) -> list[Peer]:
        """Returns the owners of a pack, best first; this node by its first name, whichever is
        ranked."""
        own = self.own_addresses()
        return [
            replace(peer, address=own[0]) if peer.address in own else peer
            for peer in self._owners.of(self.members(), pack)
        ]

    def reads_for_peers(self, pack: bytes) -> bool:
        """Whether this node is the first of a pack's owners that can be asked now."""
        own, now_s = self.own_addresses(), self.clock_s()
        for peer in self.owners_of(pack):
            if peer.address in own or self.health.usable(peer.address, now_s):
                return peer.address in own
        return False

    def others(self) -> list[str]:
        """Returns the addresses of all members except this node."""
        own = self.own_addresses()
        return [peer.address for peer in self.members() if peer.address not in own]

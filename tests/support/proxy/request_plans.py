"""Plans of requests that tests drive: events in, actions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.client.request_plan import (
    Action,
    AskStore,
    GiveUp,
    PlanContext,
    RequestPlan,
    Wait,
)
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import PeerHealth

MIB = 1 << 20
UNIT = 8 * MIB
A, B, C, ME, X, Y = (Peer(f"{name}:1") for name in ("a", "b", "c", "me", "x", "y"))
STORE = AskStore()


@dataclass
class Way:
    """A plan of a node among a thousand, so that turning to S3 early is out of the question."""

    owners: Sequence[Peer] = (A, B, C)
    nodes: int = 1000
    known: Sequence[Peer] = ()
    parent: Peer | None = None
    size_bytes: int = UNIT
    health: PeerHealth = field(default_factory=PeerHealth)
    got_bytes: int = 0  # from peers, before
    begin_s: float = 0.0

    def __post_init__(self) -> None:
        self.budgets = HedgeBudget(nodes=self.nodes)
        self.budgets.got(self.got_bytes)
        self.plan = RequestPlan(
            PlanContext(self.health, self.budgets, jitter=lambda: 0.0),
            self.owners,
            self_address=ME.address,
            size_bytes=self.size_bytes,
            now_s=self.begin_s,
            known=self.known,
            parent=self.parent,
        )

    def next(self, now_s: float) -> Action:
        """The plan's action, told to Health as a driver does."""
        action = self.plan.next(now_s)
        if isinstance(action, GiveUp) and action.to_blame:
            self.health.failed(action.address, now_s)
        return action

    def waits(self, now_s: float) -> float:
        """Until when it waits."""
        action = self.next(now_s)
        assert isinstance(action, Wait)
        assert action.until_s > now_s
        return action.until_s

    def fails(self, peer: Peer, now_s: float) -> None:
        """The peer refuses."""
        self.health.failed(peer.address, now_s)
        self.plan.failed(peer.address, now_s)

"""The clock of a request to peers: what a busy machine takes from the asking thread is no peer's
delay."""

from __future__ import annotations

import socket
from functools import partial

from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.peers.client.connection_pool import ConnectionPool
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.client.hedged_request import HedgedRequest, PeerRequest, WholeBody
from lodefs.proxy.peers.client.request_plan import (
    Action,
    AskPeer,
    AskStore,
    PlanContext,
    RequestPlan,
    Wait,
)
from lodefs.proxy.peers.membership.addresses import SocketAddress
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.security.request_signing import HmacAuthenticator
from tests.support.proxy.stalled_thread import Stalled

NOW_S = 100.0
EVENTS_MAX = 20  # of a connection that begins, and of three polls


class Waits(RequestPlan):
    """Asks one peer, waits for it until nothing changes any more, and notes the times."""

    def __init__(self, peer: Peer, context: PeerContext) -> None:
        plans = PlanContext(context.health, HedgeBudget())
        super().__init__(plans, (peer,), self_address="", size_bytes=1, now_s=NOW_S)
        self._peer = peer
        self.seen_s: list[float] = []

    def next(self, now_s: float) -> Action:
        """Implements RequestPlan."""
        self.seen_s.append(now_s)
        if len(self.seen_s) == 1:
            return AskPeer(self._peer, cached=False)
        ends = self.seen_s.count(NOW_S - 2.0) == 2 or len(self.seen_s) == EVENTS_MAX
        return AskStore() if ends else Wait(now_s + 0.01)


def test_time_without_a_processor_does_not_count_against_a_peer() -> None:
    """Polls that end at their deadline say for how long the thread had no processor; of that, two
    seconds of a request do not count."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peer = Peer(f"127.0.0.1:{silent.getsockname()[1]}")
        endpoint = SocketAddress(socket.AF_INET, *silent.getsockname())
        connections = ConnectionPool(lambda _address: [endpoint])
        context = PeerContext(
            members=lambda: (peer,),
            own_addresses=tuple,
            authenticator=HmacAuthenticator(lambda: [b"a secret"], tuple),
            connections=connections,
            clock_s=lambda: NOW_S,
            begin_wait=partial(Stalled, 1, 0.0),
        )
        plan = Waits(peer, context)
        request = PeerRequest("/", 1, 1, partial(WholeBody[None], lambda _body: None))
        assert HedgedRequest(plan, request, context, Counts()).run() is None
        connections.close()
    assert list(dict.fromkeys(plan.seen_s)) == [NOW_S, NOW_S - 1.5, NOW_S - 2.0]

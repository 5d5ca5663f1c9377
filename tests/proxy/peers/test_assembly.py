"""A node's part in its cluster: how many sockets to the others it may have."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.system.fd_limit import PEER_SOCKETS_MAX, shares
from lodefs.proxy.peers.client.connection_pool import IDLE_MAX
from lodefs.proxy.peers.membership.prober import CONCURRENCY, LOOK_MAX
from lodefs.proxy.peers.peering import Sockets, sockets_of


@pytest.mark.parametrize("limit", [256, 512, 1024, 1200, 4096])
def test_sockets_to_peers_fit_into_their_share(limit: int) -> None:
    """Whatever may be open: kept connections and probes stay within the peers' share, and there
    are some of each."""
    count = shares(limit, fetches_max=32, in_cluster=True).peer_sockets
    found = sockets_of(count)
    assert sum(found) <= count
    assert min(found) >= 8


def test_all_of_the_share_is_what_is_set() -> None:
    """With many descriptors everything is as set."""
    assert sockets_of(PEER_SOCKETS_MAX) == Sockets(IDLE_MAX, LOOK_MAX, CONCURRENCY)

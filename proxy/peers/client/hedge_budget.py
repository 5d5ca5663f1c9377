"""The budget of a node for not waiting for its peers.

Peers that answer fill it: a share of every byte from a peer goes to two token buckets. A hedge to
another peer costs the cluster only bandwidth. A read from S3 costs egress, and every node could do
it for the same bytes, so that share and burst are for the whole cluster, divided by its nodes.
"""

from __future__ import annotations

import threading

MIB = 1024 * 1024
HEDGE_SHARE = 0.05  # of the bytes from peers
HEDGE_BURST_BYTES = 128 * MIB
STORE_SHARE = 0.02  # of the bytes from peers, for all nodes together
STORE_BURST_BYTES = 128 * MIB  # for all nodes together; it must be earned first


class HedgeBudget:
    """Two token buckets, in bytes. For any thread. ``nodes`` is the size of the cluster with this
    node."""

    def __init__(self, *, nodes: int = 1) -> None:
        self._lock = threading.Lock()
        self._nodes = max(1, nodes)
        self._hedge = float(HEDGE_BURST_BYTES)
        self._store = 0.0  # empty, since a cold start is slow for all nodes at once

    def resize(self, nodes: int) -> None:
        """Sets the number of nodes in the cluster."""
        with self._lock:
            self._nodes = max(1, nodes)
            self._store = min(self._store, STORE_BURST_BYTES / self._nodes)

    def got(self, size_bytes: int) -> None:
        """Adds the share of right bytes from a peer."""
        with self._lock:
            self._hedge = min(self._hedge + size_bytes * HEDGE_SHARE, HEDGE_BURST_BYTES)
            earned = size_bytes * STORE_SHARE / self._nodes
            self._store = min(self._store + earned, STORE_BURST_BYTES / self._nodes)

    def hedge(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` may be requested from a second peer; if so, spends them."""
        with self._lock:
            allowed = self._hedge >= size_bytes
            if allowed:
                self._hedge -= size_bytes
            return allowed

    def hedge_refused(self, size_bytes: int) -> None:
        """Refunds bytes that the second peer will not send."""
        with self._lock:
            self._hedge = min(self._hedge + size_bytes, HEDGE_BURST_BYTES)

    def store(self, size_bytes: int) -> bool:
        """Whether ``size_bytes`` may cost S3 egress that waiting would save; if so, spends them."""
        with self._lock:
            allowed = self._store >= size_bytes
            if allowed:
                self._store -= size_bytes
            return allowed

"""What a node may spend on not waiting for its peers.

Peers that answer earn it: every byte from a peer pays a share into two token buckets. Hedges to
peers cost the cluster only bandwidth. A turn to S3 costs egress, and every node could do it for
the same bytes: its share and its burst are those of the whole cluster, divided by its nodes.
"""

from __future__ import annotations

import threading

MIB = 1024 * 1024
HEDGE_SHARE = 0.05  # of the bytes that came from peers
HEDGE_BURST_BYTES = 128 * MIB
STORE_SHARE = 0.02  # of the bytes that came from peers, all nodes together
STORE_BURST_BYTES = 128 * MIB  # all nodes together; it is earned first


class HedgeBudget:
    """Two token buckets, in bytes. For any thread. ``nodes``: of the cluster, this one too."""

    def __init__(self, *, nodes: int = 1) -> None:
        self._lock = threading.Lock()
        self._nodes = max(1, nodes)
        self._hedge = float(HEDGE_BURST_BYTES)
        self._store = 0.0  # a cold start is slow for all nodes at once: nothing to spend on then

    def resize(self, nodes: int) -> None:
        """The cluster has so many nodes now."""
        with self._lock:
            self._nodes = max(1, nodes)
            self._store = min(self._store, STORE_BURST_BYTES / self._nodes)

    def got(self, size_bytes: int) -> None:
        """Right bytes came from a peer."""
        with self._lock:
            self._hedge = min(self._hedge + size_bytes * HEDGE_SHARE, HEDGE_BURST_BYTES)
            earned = size_bytes * STORE_SHARE / self._nodes
            self._store = min(self._store + earned, STORE_BURST_BYTES / self._nodes)

    def hedge(self, size_bytes: int) -> bool:
        """Whether so many bytes may be asked of a second peer; if so, they are spent."""
        with self._lock:
            allowed = self._hedge >= size_bytes
            if allowed:
                self._hedge -= size_bytes
            return allowed

    def hedge_refused(self, size_bytes: int) -> None:
        """The second peer sends nothing: what was spent comes back."""
        with self._lock:
            self._hedge = min(self._hedge + size_bytes, HEDGE_BURST_BYTES)

    def store(self, size_bytes: int) -> bool:
        """Whether so many bytes may cost S3 egress that waiting would save; if so, they are
        spent."""
        with self._lock:
            allowed = self._store >= size_bytes
            if allowed:
                self._store -= size_bytes
            return allowed

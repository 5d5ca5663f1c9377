"""Limits the calls under way, so that waiting calls never use all threads of the driver.

A call beyond its limit fails at once, and the kubelet tries again. It is not queued here, where
NodeUnpublishVolume and Probe would wait behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lodefs.chunkstore.errors import Unavailable

CALLS_MAX = {
    "NodePublishVolume": 80,  # waits for mounter, proxy and store
    "CreateVolume": 16,  # waits for the same
    "NodeUnpublishVolume": 16,  # waits for the mounter's disk
    "NodeGetVolumeStats": 8,  # asks mounter and proxy
}
THREADS_MAX = sum(CALLS_MAX.values()) + 8  # 8 more for calls that wait for nothing


class Admission:
    """Counts the calls of one server. ``calls_max``: limits by method; others are never refused."""

    def __init__(self, calls_max: Mapping[str, int] = CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._free = {name: threading.Semaphore(limit) for name, limit in calls_max.items()}

    @contextmanager
    def admitted(self, name: str) -> Iterator[None]:
        """Counts a call of a method during the block. Raises: Unavailable at once if there are too
        many."""
        free = self._free.get(name)
        if free is not None and not free.acquire(blocking=False):
            raise Unavailable(
                f"{self._calls_max[name]} calls of {name} are under way on this node, and wait for "
                "its mounter and proxy; try again"
            )
        try:
            yield
        finally:
            if free is not None:
                free.release()

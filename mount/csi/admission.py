"""How many calls may be under way: those that wait for others never have all threads of the driver.

A call beyond that hears so at once, and the kubelet tries again: it does not queue in here, where
NodeUnpublishVolume and Probe would wait behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lodefs.chunkstore.errors import Unavailable

CALLS_MAX = {
    "NodePublishVolume": 80,  # waits for mounter, proxy and store
    "CreateVolume": 16,  # so does this
    "NodeUnpublishVolume": 16,  # waits for the mounter's disk
    "NodeGetVolumeStats": 8,  # asks mounter and proxy
}
THREADS_MAX = sum(CALLS_MAX.values()) + 8  # these for calls that wait for nothing


class Admission:
    """Counts the calls of one server. ``calls_max``: by method; others are never refused."""

    def __init__(self, calls_max: Mapping[str, int] = CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._free = {name: threading.Semaphore(limit) for name, limit in calls_max.items()}

    @contextmanager
    def admitted(self, name: str) -> Iterator[None]:
        """Inside the block a call of a method is under way. Unavailable at once where too many
        are."""
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

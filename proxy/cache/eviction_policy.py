"""What a node's cache evicts first: the Protocol of policies, and the policy of nodes.

A policy is told of each use of a file, and names the files that go. It is pure: no clock, no input
or output, no locks. ``./run bench small-cache`` shows what a policy is worth.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol, TypeVar

PROTECTED_S = 3600.0  # for this long after the last use, an owner's share protects files


class Use(Enum):
    """Why a file of the cache is touched."""

    WRITTEN = auto()  # chunks were added
    ASKED = auto()  # a reader waits for bytes that were just added, and gets them from memory
    READ = auto()  # the proxy read its bytes
    REPORTED = auto()  # a mount read its bytes
    NEIGHBOUR = auto()  # somebody reads what lies beside its chunks in a pack
    WARMED = auto()  # a warm job found it complete


class EvictableFile(Protocol):
    """What a policy knows of a file. ``last_use_s`` is the policy's to set: the index keeps it over
    restarts. ``owner`` is the last known writer or user, or ""."""

    number: int
    present_bytes: int
    owner: str
    last_use_s: int

    def is_evictable(self, now_s: float) -> bool:
        """Whether it is neither pinned nor in use."""


File = TypeVar("File", bound=EvictableFile)


class EvictionPolicy(Protocol):
    """Decides which files go first. ``touch`` may run in many threads at once, also beside
    ``victims``. Times are Unix times. tests/support/proxy/eviction_policy_suite.py is the
    contract."""

    def touch(self, file: EvictableFile, use: Use, now_s: int) -> None:
        """Notes a use of a file. Each hit calls it: it must be cheap."""

    def victims(self, files: Iterable[File], need_bytes: int, now_s: float) -> list[File]:
        """Returns files that free ``need_bytes`` together, in order; all that are evictable if they
        do not suffice. ``files`` are all files of the cache; some may never have been touched."""


class FairLru:
    """The least recently used files go first, and among these the files of owners that have more
    than an equal share of what owners have used recently. Pinned files count for their owners,
    too. Files that were not used recently have no owner to protect them."""

    def touch(self, file: EvictableFile, _use: Use, now_s: int) -> None:
        file.last_use_s = now_s

    def victims(self, files: Iterable[File], need_bytes: int, now_s: float) -> list[File]:
        heaps: defaultdict[str, list[tuple[int, int, File]]] = defaultdict(list)
        left_bytes: defaultdict[str, int] = defaultdict(int)
        for file in files:
            owner = file.owner if file.last_use_s >= now_s - PROTECTED_S else ""
            if owner:
                left_bytes[owner] += file.present_bytes
            if file.is_evictable(now_s):
                heaps[owner].append((file.last_use_s, file.number, file))
        for heap in heaps.values():
            heapq.heapify(heap)
        share_bytes = sum(left_bytes.values()) / max(len(left_bytes), 1)
        chosen: list[File] = []
        while heaps and need_bytes > 0:
            owner = _next_owner(heaps, left_bytes, share_bytes)
            *_, file = heapq.heappop(heaps[owner])
            if not heaps[owner]:
                del heaps[owner]
            left_bytes[owner] -= file.present_bytes
            need_bytes -= file.present_bytes
            chosen.append(file)
        return chosen


def _next_owner(
    heaps: Mapping[str, Sequence[tuple[int, int, EvictableFile]]],
    left_bytes: Mapping[str, int],
    share_bytes: float,
) -> str:
    """Returns the owner to evict from: files without a recent user first, then the owner that is
    most above its share, then the owner of the oldest file."""
    above = {owner: left_bytes.get(owner, 0) - share_bytes for owner in heaps}
    heaviest = max(above, key=lambda owner: above[owner])
    oldest = min(heaps, key=lambda owner: heaps[owner][0])
    is_protected = oldest != "" and above[heaviest] > 0
    return heaviest if is_protected else oldest

"""Owners of packs by weighted rendezvous hashing. Pure.

Each member's score for a pack is -weight / ln(u), where u in (0, 1) comes from a 64-bit hash of
both; the best scores own it. A member that joins or leaves moves only its own share, and shares
are proportional to weights. After Schindelhauer and Schomaker, "Weighted distributed hash
tables", SPAA 2005; the mixing is the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).

All nodes must agree: a change to a score here moves every pack of a running cluster to another
owner. tests/golden/owners.json pins it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.peers.membership.peer import Peer

OWNERS = 8  # if a tenth of the nodes is gone, one pack in 100 million has no owner left
SEEDS_MAX = 1 << 16
PACKS_MAX = 4096
MASK = (1 << 64) - 1


def rank(peers: Sequence[Peer], pack: bytes, count: int = OWNERS) -> list[Peer]:
    """Returns the best ``count`` owners of a pack, best first, for any order of ``peers``.

    ``pack`` is a digest: its first 8 bytes identify it. Ties are broken by address.
    """
    seed = int.from_bytes(pack[:8], "big")
    scored = [(_score(_seed(peer.address) ^ seed, peer.weight), peer) for peer in peers]
    return [peer for _, peer in heapq.nlargest(count, scored)]


def _score(mixed: int, weight: float) -> float:
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    mixed ^= mixed >> 31
    return -weight / math.log((mixed >> 11) * 2.0**-53 + 2.0**-54)


class Owners:
    """Caches ``rank`` for recently used packs, since it takes 0.8 ms among 1,000 members. For any
    thread."""

    def __init__(self, *, packs_max: int = PACKS_MAX) -> None:
        self._packs_max = packs_max
        self._known: tuple[Sequence[Peer], Lru[bytes, list[Peer]]] = ((), Lru(packs_max))

    def of(self, members: Sequence[Peer], pack: bytes) -> list[Peer]:
        """Returns the owners of a pack, best first; callers must not change the list. ``members``
        must be the same object until they change."""
        of, ranked = self._known
        if of is not members:
            ranked = Lru(self._packs_max)
            self._known = (members, ranked)
        owners = ranked.get(pack)
        if owners is None:
            owners = rank(members, pack)
            ranked.put(pack, owners)
        return owners


@lru_cache(SEEDS_MAX)
def _seed(address: str) -> int:
    return int.from_bytes(blake2b(address.encode(), digest_size=8).digest(), "big")

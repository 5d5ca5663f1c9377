"""Decides what to fetch again of what was evicted: no I/O.

Chunks that nobody has fetched yet are fetched with their neighbours. If these are evicted before
they are read, a miss of an evicted chunk shows that the cache is too small for this pack's reads:
the chunk is fetched without its neighbours, unless the last misses show a sequential reader or many
reads around it. So each pack is fetched in vain at most once, and a dataset that is new to the node
arrives in large units, whatever is evicted for it. Linux treats pages in the same way
(mm/readahead.c: a page that was read ahead and is missing again was "thrashed"; mm/workingset.c:
shadows of evicted pages distinguish a refault from a first read).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from lodefs.proxy.read.readahead_policy import KIB, MIB, UNIT_SIZE_BYTES_MAX, Range

PACKS_MAX = 16 * 1024
MISSES_KEPT = 64  # for all packs: a random reader of a large set has few of them nearby
FOLLOWS_SIZE_BYTES = 128 * KIB  # after the end of what was fetched, where a reader continues
NEAR_SIZE_BYTES = 4 * MIB  # distance between places that belong together
NEAR_MISSES_MIN = 12


class _Brought(NamedTuple):
    """Raw bytes [first, end) of a pack that were fetched for a miss."""

    pack: bytes
    first: int
    end: int


class RefaultTracker:
    """The chunks of packs that were ever fetched, and the last misses of chunks that were fetched
    again. The least recently used packs are dropped."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[bytes, int] = OrderedDict()  # by pack; a bit for each chunk
        self._misses: deque[_Brought] = deque(maxlen=MISSES_KEPT)

    def note(self, pack: bytes, first: int, count: int) -> None:
        """Notes that the chunks [first, first + count) are fetched."""
        chunks = self._chunks.pop(pack, 0)
        self._chunks[pack] = chunks | ((1 << count) - 1) << first
        if len(self._chunks) > PACKS_MAX:
            self._chunks.popitem(last=False)

    def was_fetched(self, pack: bytes, chunk: int) -> bool:
        """Whether a chunk was fetched before."""
        return bool(self._chunks.get(pack, 0) >> chunk & 1)

    def new_around(self, pack: bytes, first: int, end: int, own: range) -> range:
        """Returns, of the chunks [first, end), those of ``own`` and on both sides of them the
        chunks that were never fetched, up to the next one that was."""
        chunks = self._chunks.get(pack, 0)
        below = chunks & ((1 << own.start) - 1)
        above = chunks >> own.stop
        low = min(own.start, max(first, below.bit_length()))
        next_known = own.stop + (above & -above).bit_length() - 1 if above else end
        return range(low, max(own.stop, min(end, next_known)))

    def miss(self, pack: bytes, first: int, end: int) -> Range:
        """Returns what to fetch for a miss of the raw bytes [first, end) of a pack (the range may
        begin before the pack): the bytes themselves; twice as much as for the miss that it follows;
        or more around them, the more of the last misses were near."""
        size_bytes, near = end - first, 0
        followed_bytes = 0
        for other in self._misses:
            if other.pack != pack:
                continue
            if other.end <= first <= other.end + FOLLOWS_SIZE_BYTES:
                followed_bytes = max(followed_bytes, other.end - other.first)
            near += abs(first - other.first) <= NEAR_SIZE_BYTES
        fetched_for = Range(first, end)
        if followed_bytes:
            window = min(2 * followed_bytes, UNIT_SIZE_BYTES_MAX)
            fetched_for = Range(first, max(end, first + window))
        elif near >= NEAR_MISSES_MIN:
            around = min((near - 1) * size_bytes, UNIT_SIZE_BYTES_MAX) // 2
            fetched_for = Range(first - around, end + around)
        self._misses.append(_Brought(pack, *fetched_for))
        return fetched_for

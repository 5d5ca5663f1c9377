"""Decides what is worth storing in the kernel's page cache before anybody asks for it.

Used only for datasets that fit into free memory (mount.read.memory_fit): what is stored stays, and
is read sooner or later. Small files are stored together with their siblings, large ones by blocks.
One read says little. A second one in the same part of a directory, or in the same block, means that
more will probably follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum, auto

from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.chunkstore.system.lru import Lru

BLOCK_BYTES = 1 << 20  # size of a block of a large file
SIBLINGS_BYTES_MAX = 4 << 20  # limit for small files stored together
READS_MIN = 2
READ_BYTES_MAX = 64 * 1024  # if the kernel asks for more, it already reads ahead
AGAIN_S = 0.5  # a read this soon after storing was already on its way
REST_S_MAX = 60.0
PLACES_MAX = 16_384  # directories and blocks whose reads are counted
MARKS_MAX = 131_072  # files and blocks with a known state

Spot = tuple[int, int]  # inode number, and number of the block; 0 for a small file


def is_telling(first: int, size_bytes: int) -> bool:
    """Whether a read can be the first of a small file, or one of many random ones in a large
    file."""
    return first == 0 or size_bytes <= READ_BYTES_MAX


def is_small(node: Entry) -> bool:
    """Whether a file is stored as a whole."""
    return node.kind == Kind.FILE and 0 < node.size_bytes < FLAT_SIZE_BYTES_MIN


def together(siblings: Sequence[Entry], ino: int) -> Sequence[Entry]:
    """Returns the small files among ``siblings`` that are stored together with the file ``ino``;
    the result is the same for each of them. They are neighbours, as many as fit into
    SIBLINGS_BYTES_MAX. Empty if ``ino`` is not among them."""
    group: list[Entry] = []
    size_bytes = 0
    for node in filter(is_small, siblings):
        size_bytes += node.size_bytes
        if size_bytes > SIBLINGS_BYTES_MAX:
            if any(one.ino == ino for one in group):
                return group
            group, size_bytes = [], node.size_bytes
        group.append(node)
    return group if any(one.ino == ino for one in group) else []


class Read(Enum):
    """The evidence that a read gives about its surroundings."""

    NOTHING = auto()  # its answer was on its way when it was stored, or storing failed before
    FIRST = auto()  # its surroundings were not seen yet, and may be wanted
    AGAIN = auto()  # the kernel has dropped it, and probably its surroundings, too


class Policy:
    """Decides which reads are followed by storing, and of what."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: Lru[Hashable, int] = Lru(PLACES_MAX)
        self._rests: Lru[Hashable, tuple[float, float]] = Lru(PLACES_MAX)  # until, seconds
        self._marks: dict[
            Spot, tuple[bool, float]
        ] = {}  # whether the kernel has it, and since when

    def look(self, spot: Spot) -> Read:
        """Looks at a read of a small file, or in a block."""
        mark = self._marks.get(spot)
        if mark is None:
            return Read.FIRST
        is_kept, since_s = mark
        if not is_kept:
            self.mark([spot])  # the answer stores it
            return Read.NOTHING
        return Read.AGAIN if self._clock() >= since_s + AGAIN_S else Read.NOTHING

    def wants(self, spot: Spot, read: Read) -> bool:
        """Whether to store the surroundings of a read."""
        mark = self._marks.get(spot)
        return mark is None or (read is Read.AGAIN and self._clock() >= mark[1] + AGAIN_S)

    def is_dense(self, place: Hashable) -> bool:
        """Counts a read in a part of a directory or a block. Returns whether there were enough."""
        reads = (self._reads.get(place) or 0) + 1
        self._reads.put(place, reads)
        return reads >= READS_MIN

    def begin(self, place: Hashable) -> bool:
        """Whether to store a group of files or a block now. Groups that are dropped again and again
        (no room, readers that bypass the page cache) are stored less and less often."""
        now_s = self._clock()
        until_s, rest_s = self._rests.get(place) or (0.0, 0.0)
        if now_s < until_s:
            return False
        is_soon = rest_s > 0 and now_s < until_s + 4 * rest_s
        rest_s = min(2 * rest_s, REST_S_MAX) if is_soon else AGAIN_S
        self._rests.put(place, (now_s + rest_s, rest_s))
        return True

    def mark(self, spots: Iterable[Spot], *, is_kept: bool = True) -> None:
        """Records that the kernel has these now, or did not take them."""
        if len(self._marks) > MARKS_MAX:
            self._marks.clear()  # some will be stored once more than needed
        self._marks.update(dict.fromkeys(spots, (is_kept, self._clock())))

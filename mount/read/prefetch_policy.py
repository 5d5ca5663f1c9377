"""What is worth being stored in the kernel's page cache before somebody asks for it.

Only called for datasets that fit into the memory that is free (mount.read.memory_fit): what is
stored of them stays, and is read sooner or later. Small files are stored together with their
siblings, large ones by blocks. One read says little: of the second one in the same part of a
directory, or in the same block, it is taken that more will follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum, auto

from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.chunkstore.system.lru import Lru

BLOCK_BYTES = 1 << 20  # of a large file
SIBLINGS_BYTES_MAX = 4 << 20  # small files together
READS_MIN = 2
READ_BYTES_MAX = 64 * 1024  # where the kernel asks for more, it reads the file ahead by itself
AGAIN_S = 0.5  # reads of what was just stored were on their way already
REST_S_MAX = 60.0
PLACES_MAX = 16_384  # whose reads are counted
MARKS_MAX = 131_072  # files and blocks of which something is known

Spot = tuple[int, int]  # inode number; number of the block in a large file, 0 of a small one


def is_telling(first: int, size_bytes: int) -> bool:
    """Whether a read can be the first of a small file, or one of many anywhere in a large one."""
    return first == 0 or size_bytes <= READ_BYTES_MAX


def is_small(node: Entry) -> bool:
    """Whether the whole of it is stored at once."""
    return node.kind == Kind.FILE and 0 < node.size_bytes < FLAT_SIZE_BYTES_MIN


def together(siblings: Sequence[Entry], ino: int) -> Sequence[Entry]:
    """The small files among ``siblings`` that are stored together with the one that has the number
    ``ino``, and are the same for each of them: those that follow each other, as many as fit into
    SIBLINGS_BYTES_MAX. Empty where ``ino`` is none of them."""
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
    """What a read says about what lies around it."""

    NOTHING = auto()  # its answer was on its way when it was stored; or it was tried in vain before
    FIRST = auto()  # what lies around it, and was not seen yet, may be wanted
    AGAIN = auto()  # the kernel has dropped it, and probably what lies around it too


class Policy:
    """Which reads are followed by storing, and of what."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: Lru[Hashable, int] = Lru(PLACES_MAX)
        self._rests: Lru[Hashable, tuple[float, float]] = Lru(PLACES_MAX)  # until, seconds
        self._marks: dict[Spot, tuple[bool, float]] = {}  # whether the kernel has it, since

    def look(self, spot: Spot) -> Read:
        """At the read of a small file, or in a block."""
        mark = self._marks.get(spot)
        if mark is None:
            return Read.FIRST
        is_kept, since_s = mark
        if not is_kept:
            self.mark([spot])  # by the answer
            return Read.NOTHING
        return Read.AGAIN if self._clock() >= since_s + AGAIN_S else Read.NOTHING

    def wants(self, spot: Spot, read: Read) -> bool:
        """Whether what lies beside a read is to be stored."""
        mark = self._marks.get(spot)
        return mark is None or (read is Read.AGAIN and self._clock() >= mark[1] + AGAIN_S)

    def is_dense(self, place: Hashable) -> bool:
        """Count a read in a part of a directory or a block: whether there were enough."""
        reads = (self._reads.get(place) or 0) + 1
        self._reads.put(place, reads)
        return reads >= READS_MIN

    def begin(self, place: Hashable) -> bool:
        """Whether a group of files or a block is to be stored now. What is dropped again and again
        (no room, readers that go past the page cache) is stored less and less often."""
        now_s = self._clock()
        until_s, rest_s = self._rests.get(place) or (0.0, 0.0)
        if now_s < until_s:
            return False
        is_soon = rest_s > 0 and now_s < until_s + 4 * rest_s
        rest_s = min(2 * rest_s, REST_S_MAX) if is_soon else AGAIN_S
        self._rests.put(place, (now_s + rest_s, rest_s))
        return True

    def mark(self, spots: Iterable[Spot], *, is_kept: bool = True) -> None:
        """The kernel has them now, or did not take them."""
        if len(self._marks) > MARKS_MAX:
            self._marks.clear()  # some are stored once more than needed
        self._marks.update(dict.fromkeys(spots, (is_kept, self._clock())))

"""Decides what to fetch ahead: no I/O, no clock.

Rules of read-ahead: the first read at a place fetches what was asked for (latency). A sequential
read, or a second read nearby, fetches a window that doubles (throughput). For small files the place
is the pack: files lie in it in path order.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

KIB, MIB = 1024, 1024 * 1024
UNIT_SIZE_BYTES_LEAST = 256 * KIB
UNIT_SIZE_BYTES_MAX = 8 * MIB  # ranged reads of this size get the most out of S3
UNITS_AHEAD = 6
WINDOW_SIZE_BYTES_MAX = UNITS_AHEAD * UNIT_SIZE_BYTES_MAX
# How far from a sequential reader the owners of packs may fetch: a multiple of what it has read
REACH_FACTOR, REACH_SIZE_BYTES_MAX = 3, 512 * MIB
STREAMS_MAX = 64  # readers of one file that are distinguished
STREAMS_DUE_MAX = 4  # of them, those checked for each hit
SLACK_SIZE_BYTES = 128 * KIB  # a gap of this size still counts as sequential

# Used while most prefetched bytes are evicted unread
STREAMS_SURE_MAX = 16  # recently used streams whose next read may begin nearby
STREAM_IDLE_STEPS_MAX = 4 * STREAMS_MAX  # after this many steps a stream counts as accidental

REGION_SIZE_BYTES = MIB
REGIONS_MAX = 1024
NEAR_SIZE_BYTES = 64 * KIB  # doubled with each miss in a region

PACKS_MAX = 16 * 1024
PACK_MEMORY_S = 600.0
PACK_WINDOWS_SIZE_BYTES = (0, 256 * KIB, MIB, 4 * MIB, UNIT_SIZE_BYTES_MAX)
PACK_MISSES_WHOLE = 6  # from this miss on the rest of the pack is fetched, too


class Range(NamedTuple):
    """Bytes [first, end)."""

    first: int
    end: int


@dataclass(slots=True, eq=False)
class Stream:
    """One sequential reader: where it began, where its next read is expected, how far was fetched
    ahead, and how far was announced."""

    begin: int
    next: int
    issued: int
    announced: int = 0
    window: int = 0
    used_step: int = 0  # the file's step when it last continued


class ReadAhead:
    """The readers of one file. ``size_bytes`` is the file's.

    Not every step is visible here, since mounts read the cache's files themselves. So a read
    anywhere in the range that was fetched for a reader counts as that reader's.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._streams: list[Stream] = []  # the most recent one last
        self._steps = 0

    def advance(
        self, first: int, end: int, asked_end: int, *, is_sure: bool = False
    ) -> tuple[Range | None, int]:
        """Handles a step [first, end) of a read that goes to ``asked_end``. Returns what to fetch
        ahead, and the size of the units to fetch it in (0 if the read is not sequential).
        ``is_sure``: a read near a reader's place does not count as that reader's, since most of
        what is fetched is in vain."""
        self._steps += 1
        stream = self._match_surely(first, end) if is_sure else self._match(first)
        if stream is None:
            stream = self._new(first, end, is_sure=is_sure)
            if asked_end <= end:
                return None, 0
        elif end <= stream.next and asked_end <= stream.issued:
            return None, unit_size(stream.window)
        stream.next = max(stream.next, end)
        stream.issued = max(stream.issued, end)
        if stream.next + stream.window // 2 < stream.issued:
            return None, unit_size(stream.window)
        grown = max(UNIT_SIZE_BYTES_LEAST, 2 * stream.window, 2 * (end - first))
        stream.window = min(grown, WINDOW_SIZE_BYTES_MAX)
        ahead = Range(stream.issued, min(stream.next + stream.window, self._size_bytes))
        if ahead.first >= ahead.end:
            return None, unit_size(stream.window)
        stream.issued = ahead.end
        return ahead, unit_size(stream.window)

    def reach(self) -> Range:
        """Returns what the last reader may get to soon, besides what is fetched for it and what was
        returned before; it is to be announced to the owners of packs."""
        stream = self._streams[-1]
        far = min(REACH_FACTOR * (stream.next - stream.begin), REACH_SIZE_BYTES_MAX)
        first = max(stream.issued, stream.announced)
        stream.announced = max(first, min(stream.next + far, self._size_bytes))
        return Range(first, stream.announced)

    def coming_end(self, at: int) -> int:
        """Returns the end of what was fetched ahead for a reader that has come to ``at``; 0 if
        nothing was."""
        for stream in reversed(self._streams):
            if stream.window and stream.begin <= at <= stream.issued:
                return stream.issued
        return 0

    def refused(self, first: int) -> None:
        """Notes that nothing from ``first`` on was fetched: the next step requests it again."""
        if self._streams:
            last = self._streams[-1]
            last.issued = max(last.next, min(last.issued, first))

    def extended(self, end: int, to: int) -> None:
        """Notes that a range up to ``end`` was fetched up to ``to``, the end of a pack."""
        for stream in self._streams:
            if stream.issued == end:
                stream.issued = max(to, end)

    def is_due(self, end: int) -> bool:
        """Whether a reader whose reads do not come here has reached ``end``, and so has used half
        of what was fetched for it."""
        return any(
            stream.next < end <= stream.issued < self._size_bytes
            and end + stream.window // 2 >= stream.issued
            for stream in self._streams[-STREAMS_DUE_MAX:]
        )

    def _match(self, first: int) -> Stream | None:
        """Returns the stream that is expected here, or else one that may pass by."""
        passing: Stream | None = None
        for stream in reversed(self._streams):
            if abs(first - stream.next) <= SLACK_SIZE_BYTES:
                return self._renew(stream)
            slack = stream.window // 2
            if passing is None and stream.next - slack <= first <= stream.issued + slack:
                passing = stream
        return None if passing is None else self._renew(passing)

    def _match_surely(self, first: int, end: int) -> Stream | None:
        """Does what ``_match`` does, but the step must begin where the last one ended, or reach the
        end of what was fetched, which is that of a chunk; for the latest readers almost is
        enough."""
        for stream in reversed(self._streams):
            if first == stream.next or (stream.window and first <= stream.issued <= end):
                return self._renew(stream)
        for stream in reversed(self._streams[-STREAMS_SURE_MAX:]):
            is_next = abs(first - stream.next) <= SLACK_SIZE_BYTES
            if is_next or first - 2 * SLACK_SIZE_BYTES <= stream.issued <= end:
                return self._renew(stream)
        return None

    def _renew(self, stream: Stream) -> Stream:
        """Notes that a stream continues."""
        if stream is not self._streams[-1]:
            self._streams.remove(stream)
            self._streams.append(stream)
        stream.used_step = self._steps
        return stream

    def _new(self, first: int, end: int, *, is_sure: bool) -> Stream:
        """Adds a first read. Streams that did not continue are dropped before others, unless others
        may have continued by accident, and not again for long."""
        streams = self._streams
        if len(streams) >= STREAMS_MAX:
            idle_steps = self._steps - streams[0].used_step
            once = (at for at, stream in enumerate(streams) if not stream.window)
            is_idle = is_sure and idle_steps > STREAM_IDLE_STEPS_MAX
            del streams[0 if is_idle else next(once, 0)]
        streams.append(Stream(first, end, end, used_step=self._steps))
        return streams[-1]


def unit_size(window: int) -> int:
    """Returns the size of fetch units for a window, so that several of them are under way."""
    if not window:
        return 0
    return max(UNIT_SIZE_BYTES_LEAST, min(window // 4, UNIT_SIZE_BYTES_MAX))


class RandomReadWindow:
    """The misses of one large file that is read at random."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._misses: OrderedDict[int, int] = OrderedDict()

    def miss(self, first: int, end: int) -> Range:
        """Returns what to fetch for a missed [first, end): the range itself, and more around it
        with each miss in the same region, but at most about three times the wanted bytes."""
        region = first // REGION_SIZE_BYTES
        misses = self._misses.pop(region, 0) + 1
        self._misses[region] = misses
        if len(self._misses) > REGIONS_MAX:
            self._misses.popitem(last=False)
        if misses == 1:
            return Range(first, end)
        size_bytes = min(NEAR_SIZE_BYTES << (misses - 1), REGION_SIZE_BYTES)
        low = region * REGION_SIZE_BYTES
        high = min(low + REGION_SIZE_BYTES, self._size_bytes)
        start = max(low, min(first - size_bytes // 4, high - size_bytes))
        return Range(min(first, start), max(end, min(start + size_bytes, high)))


@dataclass(slots=True)
class _PackMisses:
    count: int
    last_s: float


class SmallFiles:
    """The misses of small files, by pack."""

    def __init__(self) -> None:
        self._packs: OrderedDict[bytes, _PackMisses] = OrderedDict()

    def miss(self, pack: bytes, now_s: float) -> tuple[int, bool]:
        """Returns the bytes to fetch around a missed chunk (0: only the chunk), and whether the
        rest of the pack is wanted soon. Misses far apart in time count as first ones."""
        known = self._packs.pop(pack, None)
        if known is None or now_s - known.last_s > PACK_MEMORY_S:
            known = _PackMisses(0, now_s)
        known.count += 1
        known.last_s = now_s
        self._packs[pack] = known
        if len(self._packs) > PACKS_MAX:
            self._packs.popitem(last=False)
        step = min(known.count, len(PACK_WINDOWS_SIZE_BYTES)) - 1
        return PACK_WINDOWS_SIZE_BYTES[step], known.count >= PACK_MISSES_WHOLE

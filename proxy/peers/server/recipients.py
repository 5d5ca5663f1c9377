"""On the owner's side: who was sent what lately, and whether to send them elsewhere.

Those that got a part of a pack become sources of it, so that an owner sends it to a few and names
them to the others: filling N nodes takes O(log N) rounds, not O(N).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT

MIB = 1024 * 1024
PACKS_MAX = 4096
SOURCES_MAX = 64  # of one pack
SOURCE_S = 600.0  # "lately"
SOFT_BYTES_MAX = 64 * MIB  # being sent: beyond, a peer that can get it elsewhere is sent there
HARD_BYTES_MAX = 256 * MIB  # beyond, everybody is sent away
STREAMS_MAX = 256  # likewise
UNIT_BYTES = 8 * MIB  # what most requests are for
SMALL_BYTES = 256 * 1024  # sending less than this costs no more than sending elsewhere
SOFT_BACKLOG_S_MAX, HARD_BACKLOG_S_MAX = 0.5, 5.0  # of the upload limit: likewise
RETRY_S_MIN, RETRY_S_MAX = 0.05, 2.0
WEIGHT = 0.1  # of a new observation
ALL = range(PACK_CHUNKS_LIMIT)  # chunks, if the caller does not say which: all a pack may have


@dataclass(slots=True)
class Recipients:
    """Which peers were sent which chunks of which pack. From one thread.

    Bounded: packs in least recently used order, the oldest sources of a pack.
    """

    packs_max: int = PACKS_MAX
    sources_max: int = SOURCES_MAX
    _packs: OrderedDict[bytes, OrderedDict[str, Recipient]] = field(default_factory=OrderedDict)

    def sent(self, pack: bytes, address: str, now_s: float, chunks: range = ALL) -> None:
        """These chunks of the pack have been sent, or are being sent, to this peer."""
        sources = self._packs.get(pack)
        if sources is None:
            sources = self._packs[pack] = OrderedDict()
            if len(self._packs) > self.packs_max:
                self._packs.popitem(last=False)
        self._packs.move_to_end(pack)
        source = sources.get(address)
        if source is None:
            if len(sources) >= self.sources_max:
                sources.popitem(last=False)
            source = sources[address] = Recipient(0, now_s)
        source.chunks |= _bits(chunks)
        source.sent_s = now_s

    def others(
        self, pack: bytes, asking: str, count: int, now_s: float, chunks: range = ALL
    ) -> list[str]:
        """At most ``count`` peers that were sent all these chunks, not ``asking`` itself. Each
        call begins with others, so that all of them are asked as often."""
        sources = self._packs.get(pack)
        if sources is None:
            return []
        bits = _bits(chunks)
        found: list[str] = []
        for address in list(sources):
            source = sources[address]
            if now_s - source.sent_s > SOURCE_S:
                del sources[address]
            elif address != asking and source.chunks & bits == bits:
                found.append(address)
                if len(found) == count:
                    break
        for address in found:
            sources.move_to_end(address)
        return found


@dataclass(slots=True)
class Recipient:
    """One peer's part of one pack: ``chunks`` is a bit for each."""

    chunks: int
    sent_s: float


def _bits(chunks: range) -> int:
    return ((1 << len(chunks)) - 1) << chunks.start


@dataclass(slots=True)
class SendingLoad:
    """How much this node is sending to its peers, and whether it takes on more. From one thread.

    ``soft_bytes_max``: beyond, those who can get it elsewhere are sent there, so that all nodes
    send about as much as they receive. ``hard_bytes_max``, ``streams_max``: beyond, all are.
    """

    soft_bytes_max: int = SOFT_BYTES_MAX
    hard_bytes_max: int = HARD_BYTES_MAX
    streams_max: int = STREAMS_MAX
    streams: int = 0
    sending_bytes: int = 0
    _stream_s: float = RETRY_S_MIN  # how long one takes, a moving average

    def overloaded(
        self, *, alternatives: int, backlog_s: float = 0.0, size_bytes: int = UNIT_BYTES
    ) -> bool:
        """Whether to answer 503 to a request for so many bytes, with so many alternatives named.
        ``backlog_s``: of the upload limit (``Bandwidth.backlog_s``)."""
        if self.streams >= self.streams_max or self.sending_bytes >= self.hard_bytes_max:
            return True
        if alternatives and size_bytes > SMALL_BYTES:
            return backlog_s > SOFT_BACKLOG_S_MAX or self.sending_bytes >= self.soft_bytes_max
        return backlog_s > HARD_BACKLOG_S_MAX

    def began(self, size_bytes: int = UNIT_BYTES) -> None:
        """A request for so many bytes was accepted. Call it at once: others are asking."""
        self.streams += 1
        self.sending_bytes += size_bytes

    def ended(self, seconds: float, size_bytes: int = UNIT_BYTES) -> None:
        """It has been answered, or broken off, after so long."""
        self.streams -= 1
        self.sending_bytes -= size_bytes
        self._stream_s += WEIGHT * (seconds - self._stream_s)

    def retry_after_s(self) -> float:
        """When asking again makes sense: about when one of the streams ends."""
        until_one_ends_s = self._stream_s / max(1, self.streams)
        return min(max(until_one_ends_s, RETRY_S_MIN), RETRY_S_MAX)

"""Decides how much a node sends to its peers at once, and whom it refers to others. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1024 * 1024
SOFT_BYTES_MAX = 64 * MIB  # being sent; above it, peers with another source are referred there
SOFT_PART = 4  # one peer gets a fourth of it, if it can go elsewhere
HARD_BYTES_MAX = 256 * MIB  # above it, everybody is referred elsewhere
STREAMS_MAX = 256  # the same limit for streams
# One peer has at most a third of what is free of both. So one that does not read has a fourth of
# all, as much as a healthy one asks for at once, and several leave some of it.
FREE_PART = 3
STUCK_S = 5.0  # a healthy peer takes something within this time, on any link
UNIT_BYTES = 8 * MIB  # the size of most requests
SMALL_BYTES = 256 * 1024  # sending less than this costs no more than a referral
# The same limits for the backlog of the upload limit
SOFT_BACKLOG_S_MAX, HARD_BACKLOG_S_MAX = 0.5, 5.0
RETRY_S_MIN, RETRY_S_MAX = 0.05, 2.0
WEIGHT = 0.1  # of a new observation


@dataclass(slots=True)
class PeerLoad:
    """The amount that is being sent to one peer."""

    took_s: float  # when it last took something, or its first stream began
    streams: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class SendingLoad:
    """The amount that this node is sending to its peers, and whether it accepts more. For one
    thread.

    Above ``soft_bytes_max``, peers with another source are referred there, so that all nodes send
    about as much as they receive. Each peer counts with at most a part of it, and is referred above
    that part; one that has stopped reading does not count, since it does not use the link. Above
    their parts of ``hard_bytes_max`` and ``streams_max``, all peers are referred. So peers that ask
    and do not read leave room for others. A peer is known by its address; all that are no members
    have the address "" together.
    """

    soft_bytes_max: int = SOFT_BYTES_MAX
    hard_bytes_max: int = HARD_BYTES_MAX
    streams_max: int = STREAMS_MAX
    streams: int = 0
    sending_bytes: int = 0
    _stream_s: float = RETRY_S_MIN  # how long a stream takes, a moving average
    _of_peers: dict[str, PeerLoad] = field(default_factory=dict)  # those with streams

    def overloaded(
        self,
        peer: str,
        now_s: float,
        *,
        alternatives: int,
        backlog_s: float = 0.0,
        size_bytes: int = UNIT_BYTES,
    ) -> bool:
        """Whether to answer 503 to a request for ``size_bytes``, naming this many alternatives.
        ``backlog_s`` is that of the upload limit (``Bandwidth.backlog_s``)."""
        own = self._of_peers.get(peer) or PeerLoad(now_s)
        free_streams = self.streams_max - self.streams
        free_bytes = self.hard_bytes_max - self.sending_bytes
        if FREE_PART * own.streams >= free_streams or FREE_PART * own.size_bytes >= free_bytes:
            return True
        if alternatives and size_bytes > SMALL_BYTES:
            return backlog_s > SOFT_BACKLOG_S_MAX or self._is_above_soft(own, now_s)
        return backlog_s > HARD_BACKLOG_S_MAX

    def is_stuck(self, peer: str, now_s: float) -> bool:
        """Whether a peer has not taken anything of what is being sent to it for a while."""
        own = self._of_peers.get(peer)
        return own is not None and now_s - own.took_s >= STUCK_S

    def began(self, peer: str, now_s: float, size_bytes: int = UNIT_BYTES) -> None:
        """Notes an accepted request for ``size_bytes``. Call it at once, before other requests."""
        self._add(self._of_peers.setdefault(peer, PeerLoad(now_s)), 1, size_bytes)

    def took(self, peer: str, now_s: float) -> None:
        """Notes that a peer has taken something of a stream."""
        self._of_peers[peer].took_s = now_s

    def ended(self, peer: str, seconds: float, size_bytes: int = UNIT_BYTES) -> None:
        """Notes the end of a request after ``seconds``, complete or not."""
        own = self._of_peers[peer]
        self._add(own, -1, -size_bytes)
        if not own.streams:
            del self._of_peers[peer]
        self._stream_s += WEIGHT * (seconds - self._stream_s)

    def _add(self, own: PeerLoad, streams: int, size_bytes: int) -> None:
        self.streams += streams
        self.sending_bytes += size_bytes
        own.streams += streams
        own.size_bytes += size_bytes

    def _is_above_soft(self, own: PeerLoad, now_s: float) -> bool:
        """Whether a peer with another source is referred there."""
        part_bytes = max(self.soft_bytes_max // SOFT_PART, 1)
        if own.size_bytes >= part_bytes:
            return True
        if self.sending_bytes < self.soft_bytes_max:
            return False
        reading = (one for peer, one in self._of_peers.items() if not self.is_stuck(peer, now_s))
        return sum(min(one.size_bytes, part_bytes) for one in reading) >= self.soft_bytes_max

    def retry_after_s(self) -> float:
        """Returns when to ask again: about when one of the streams ends."""
        until_one_ends_s = self._stream_s / max(1, self.streams)
        return min(max(until_one_ends_s, RETRY_S_MIN), RETRY_S_MAX)

"""What a node knows of its peers and of the store by using them: how fast, and how reliable.

Each node judges for itself. Nothing here reads a clock: times are passed in, in seconds of any
clock that does not jump.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lodefs.chunkstore.system.retry_policy import steady
from lodefs.proxy.peers.membership.peer_standing import (
    DOWN,
    REFUSED,
    REFUSED_S,
    WELL,
    Fault,
    PeerStatus,
)

PEERS_MAX = 16 * 1024  # of whom something is remembered
BACKOFF = steady(1.0, 64.0)
TRIAL_S = 5.0  # one attempt is let through after a backoff; the next after this, if it says nothing
QUARANTINE = steady(300.0, 3600.0)  # after wrong bytes
PROBES_FAILED = 2  # in a row, and the peer is down
OUTRUN = 3  # times in a row, without a word from it, are a failure

LATENCY_S = 0.05  # before anything is known
BYTES_PER_S = 50e6
SMALL_SIZE_BYTES = 256 * 1024  # what is smaller tells of latency, what is larger of throughput
WEIGHT = 0.1  # of a new observation


@dataclass(slots=True)
class Speed:
    """How long fetches take: seconds, and seconds for each byte; moving averages."""

    latency_s: float = LATENCY_S
    byte_s: float = 1 / BYTES_PER_S

    def began(self, seconds: float) -> None:
        """The first byte came after so long."""
        self.latency_s += WEIGHT * (seconds - self.latency_s)

    def served(self, size_bytes: int, seconds: float) -> None:
        """So many bytes took so long, from asking to the last of them."""
        if size_bytes < SMALL_SIZE_BYTES:
            self.latency_s += WEIGHT * (seconds - self.latency_s)
        else:
            byte_s = max(0.0, seconds - self.latency_s) / size_bytes
            self.byte_s += WEIGHT * (byte_s - self.byte_s)

    def expected_s(self, size_bytes: int) -> float:
        """How long so many bytes will take."""
        return self.latency_s + size_bytes * self.byte_s


@dataclass(slots=True)
class PeerRecord:
    """What is known of one peer."""

    speed: Speed
    failures: int = 0  # in a row, those of one backoff counted once
    wrongs: int = 0
    avoided_until_s: float = 0.0
    quarantined_until_s: float = 0.0
    on_trial: bool = False  # the backoff is over, and one attempt is to show whether it was enough
    probes_failed: int = 0
    outrun: int = 0  # times in a row, those of one moment counted once
    outrun_s: float = 0.0  # the last time
    fault: Fault | None = None  # what is the matter, until it shows that it is well
    error: str = ""  # the last one
    error_s: float | None = None
    refused: str = ""  # why this node refused its last request
    refused_s: float = 0.0
    seen_s: float | None = None
    received_bytes: int = 0
    sent_bytes: int = 0

    @property
    def down(self) -> bool:
        return self.probes_failed >= PROBES_FAILED

    @property
    def avoided(self) -> float:
        """Until when it is not asked."""
        return max(self.avoided_until_s, self.quarantined_until_s)

    def blame(self, fault: Fault, why: str, now_s: float) -> None:
        """Something is the matter with it. In quarantine that stays the wrong bytes."""
        if fault is Fault.WRONG or now_s >= self.quarantined_until_s:
            self.fault, self.error, self.error_s = fault, why, now_s

    def clear(self, now_s: float) -> None:
        """It shows that it is well: in quarantine nothing does."""
        if now_s >= self.quarantined_until_s:
            self.fault = None

    def excuse(self, now_s: float) -> None:
        """What it did shows that it may be asked again at once, but for a quarantine."""
        self.avoided_until_s = now_s
        self.on_trial = False
        self.probes_failed = 0

    def log_state(self) -> tuple[str, str]:
        """State and reason as they are logged, without what changes often."""
        state = self.fault or (REFUSED if self.refused else WELL)
        return state, self.error if self.fault else self.refused


def _ignore_change(_address: str, _state: str, _why: str) -> None:
    """The default of ``on_change``."""


@dataclass(slots=True)
class PeerHealth:
    """For any thread. Remembers ``peers_max`` peers; those without news for longest are forgotten
    (and thus assumed well). ``on_change`` is called with an address whenever its state changes,
    with the reason; it is called by whichever thread learnt that."""

    peers_max: int = PEERS_MAX
    on_change: Callable[[str, str, str], None] = _ignore_change
    _peers: OrderedDict[str, PeerRecord] = field(default_factory=OrderedDict)
    _peer: Speed = field(default_factory=Speed)  # of all peers: what a new one is thought to do
    _store: Speed = field(default_factory=Speed)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def usable(self, address: str, now_s: float) -> bool:
        with self._lock:
            record = self._peers.get(address)
            if record is None:
                return True
            return now_s >= record.avoided and not record.down

    def asked(self, address: str, now_s: float) -> None:
        """It is being asked. If it failed before, nobody else asks it until that has shown
        something, or for a while."""
        with self._lock:
            record = self._peers.get(address)
            if record is not None and record.failures:
                record.avoided_until_s = max(record.avoided_until_s, now_s + TRIAL_S)
                record.on_trial = True

    def began(self, address: str, seconds: float) -> None:
        """Its first byte came so long after it was asked."""
        with self._lock:
            record = self._record(address)
            record.speed.began(seconds)
            record.outrun = 0
            self._peer.began(seconds)

    def served(self, address: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """It sent right bytes, all of them so long after it was asked."""
        with self._changing(address) as record:
            record.seen_s = now_s
            record.received_bytes += size_bytes
            record.clear(now_s)
            record.excuse(now_s)
            record.speed.served(size_bytes, seconds)
            record.failures //= 2  # who fails every other time is avoided for longer
            record.outrun = 0
            self._peer.served(size_bytes, seconds)

    def answered(self, address: str, now_s: float) -> None:
        """It gave an answer without bytes, as one that is well does: that ends its trial, though a
        failure after it counts as one more."""
        with self._changing(address) as record:
            record.seen_s = now_s
            is_refuted = record.fault in (Fault.REFUSING, Fault.UNREACHABLE)
            if is_refuted:
                record.clear(now_s)
            if is_refuted or record.on_trial:
                record.excuse(now_s)

    def asks(self, address: str, now_s: float) -> None:
        """It asked for something, and may."""
        with self._changing(address) as record:
            record.seen_s, record.refused = now_s, ""

    def sent(self, address: str, size_bytes: int) -> None:
        """It was sent so many bytes."""
        with self._lock:
            self._record(address).sent_bytes += size_bytes

    def refused(self, address: str, why: str, now_s: float) -> None:
        """A request in its name was refused. Anybody who can reach this node can fetch that about,
        so that it changes nothing but what is shown."""
        with self._changing(address) as record:
            record.refused, record.refused_s = why, now_s

    def failed(
        self, address: str, now_s: float, fault: Fault = Fault.FAILING, why: str = ""
    ) -> None:
        """It refused, reset, sent nothing or too little in time: avoided for a while that
        doubles. What fails together counts once."""
        with self._changing(address) as record:
            record.blame(fault, why, now_s)
            self._failed(record, now_s)

    def was_outrun(self, address: str, asked_s: float, now_s: float) -> None:
        """Another one gave the answer, and this one, asked at ``asked_s``, sent nothing in the time
        that it was thought to take. A few times in a row, or once on trial: it failed. Of those
        asked before it was outrun last nothing is known, so they do not count."""
        with self._changing(address) as record:
            if asked_s < record.outrun_s:
                return
            record.outrun, record.outrun_s = record.outrun + 1, now_s
            if record.outrun >= OUTRUN or record.on_trial:
                record.outrun = 0
                record.blame(Fault.LATE, "it was late a few times in a row", now_s)
                self._failed(record, now_s)

    def wrong(self, address: str, now_s: float, why: str = "") -> None:
        """It sent bytes that do not match, or no HTTP: not asked for minutes, longer each time."""
        with self._changing(address) as record:
            record.blame(Fault.WRONG, why, now_s)
            if now_s >= record.quarantined_until_s:
                record.wrongs += 1
                record.quarantined_until_s = now_s + QUARANTINE.pause_s(record.wrongs)

    def probed(
        self,
        address: str,
        ok: bool,  # noqa: FBT001
        now_s: float,
        fault: Fault = Fault.UNREACHABLE,
        why: str = "",
    ) -> None:
        """It answered a probe, or did not, and why. One that was down and answers has a clean
        slate, but for wrong bytes; one that refused and answers, trusts this node now; one that
        answers probes and fails in use stays avoided, and its fault is shown as long."""
        with self._changing(address) as record:
            if not ok:
                record.probes_failed += 1
                record.blame(fault, why, now_s)
                return
            record.seen_s = now_s
            if record.probes_failed:
                record.failures = 0
            if record.probes_failed or record.fault is Fault.REFUSING:
                record.excuse(now_s)
            if now_s >= record.avoided:
                record.clear(now_s)

    def seen_s(self, address: str) -> float:
        """When it last answered or asked; -inf for never."""
        with self._lock:
            record = self._peers.get(address)
            return float("-inf") if record is None or record.seen_s is None else record.seen_s

    def standing(self, address: str, now_s: float) -> PeerStatus:
        """How things are between it and this node."""
        with self._lock:
            record = self._peers.get(address) or PeerRecord(self._peer)
            is_refused = record.refused and now_s - record.refused_s < REFUSED_S
            state, reason = WELL, ""
            if record.fault is not None:
                is_down = record.down and record.fault is Fault.UNREACHABLE
                state, reason = DOWN if is_down else record.fault, record.error
            elif is_refused:
                ago_s = now_s - record.refused_s
                state = REFUSED
                reason = f"{ago_s:.0f} s ago (shown for {REFUSED_S:.0f} s): {record.refused}"
            return PeerStatus(
                state=state,
                reason=reason,
                usable=now_s >= record.avoided and not record.down,
                latency_s=record.speed.latency_s,
                seen_ago_s=None if record.seen_s is None else now_s - record.seen_s,
                received_bytes=record.received_bytes,
                sent_bytes=record.sent_bytes,
                error=record.error or record.refused,
                error_ago_s=None if record.error_s is None else now_s - record.error_s,
            )

    def expected_s(self, address: str, size_bytes: int) -> float:
        """How long the peer is thought to take for so many bytes that it has."""
        with self._lock:
            record = self._peers.get(address)
            return (self._peer if record is None else record.speed).expected_s(size_bytes)

    def store_served(self, size_bytes: int, seconds: float) -> None:
        """The store sent so many bytes in so long."""
        with self._lock:
            self._store.served(size_bytes, seconds)

    def store_expected_s(self, size_bytes: int) -> float:
        """How long the store is thought to take for so many bytes."""
        with self._lock:
            return self._store.expected_s(size_bytes)

    def _failed(self, record: PeerRecord, now_s: float) -> None:
        if now_s >= record.avoided_until_s or record.on_trial:
            record.on_trial = False
            record.failures += 1
            record.avoided_until_s = now_s + BACKOFF.pause_s(record.failures)

    @contextmanager
    def _changing(self, address: str) -> Iterator[PeerRecord]:
        """A record whose state may change; ``on_change`` is called afterwards."""
        with self._lock:
            record = self._record(address)
            before = record.log_state()
            yield record
            after = record.log_state()
        if after[0] != before[0]:
            self.on_change(address, *after)

    def _record(self, address: str) -> PeerRecord:
        record = self._peers.get(address)
        if record is None:
            speed = Speed(self._peer.latency_s, self._peer.byte_s)
            record = self._peers[address] = PeerRecord(speed)
            if len(self._peers) > self.peers_max:
                self._peers.popitem(last=False)
        self._peers.move_to_end(address)
        return record

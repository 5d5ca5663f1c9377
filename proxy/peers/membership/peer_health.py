"""The speed and reliability of peers and of the store, as a node learns them by using them.

Each node judges for itself. Nothing here reads a clock: callers pass times, in seconds of any clock
that does not jump.
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

PEERS_MAX = 16 * 1024  # peers with a record
BACKOFF = steady(1.0, 64.0)
# After a backoff one attempt is allowed; without a result, the next one after this time
TRIAL_S = 5.0
QUARANTINE = steady(300.0, 3600.0)  # after wrong bytes
PROBES_FAILED = 2  # in a row before the peer counts as down
BUSY_S = 60.0  # a peer that stayed busy is asked once for each unit, and not waited for
OUTRUN = 3  # times in a row without an answer count as a failure

PRESENT_S = 30.0  # an earlier answer says nothing about the present
PRESENT_PEERS_MIN, PRESENT_PEERS_MAX = 3, 32
LATENCY_S = 0.05  # assumed before anything is known
BYTES_PER_S = 50e6
SMALL_SIZE_BYTES = 256 * 1024  # smaller answers measure latency, larger ones throughput
WEIGHT = 0.1  # of a new observation


@dataclass(slots=True)
class Speed:
    """The speed of fetches: seconds for latency and seconds for each byte, as moving averages."""

    latency_s: float = LATENCY_S
    byte_s: float = 1 / BYTES_PER_S

    def began(self, seconds: float) -> None:
        """Adds the time to the first byte."""
        self.latency_s += WEIGHT * (seconds - self.latency_s)

    def served(self, size_bytes: int, seconds: float) -> None:
        """Adds the time from the request to the last byte."""
        if size_bytes < SMALL_SIZE_BYTES:
            self.latency_s += WEIGHT * (seconds - self.latency_s)
        else:
            byte_s = max(0.0, seconds - self.latency_s) / size_bytes
            self.byte_s += WEIGHT * (byte_s - self.byte_s)

    def expected_s(self, size_bytes: int) -> float:
        """Returns how long ``size_bytes`` will take."""
        return self.latency_s + size_bytes * self.byte_s


@dataclass(slots=True)
class PeerRecord:
    """The record of one peer's speed and failures."""

    speed: Speed
    failures: int = 0  # in a row; several within one backoff count once
    wrongs: int = 0
    avoided_until_s: float = 0.0
    quarantined_until_s: float = 0.0
    on_trial: bool = False  # the backoff is over, and one attempt tests the peer
    probes_failed: int = 0
    outrun: int = 0  # times in a row; several at one moment count once
    outrun_s: float = 0.0  # the last time that it was outrun
    busy_until_s: float = 0.0  # until when it is not waited for if it says that it is busy
    fault: Fault | None = None  # its fault, until it proves to be healthy
    error: str = ""  # the last error
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
        """Returns until when it is not asked."""
        return max(self.avoided_until_s, self.quarantined_until_s)

    def blame(self, fault: Fault, why: str, now_s: float) -> None:
        """Records a fault. During quarantine the fault stays wrong bytes."""
        if fault is Fault.WRONG or now_s >= self.quarantined_until_s:
            self.fault, self.error, self.error_s = fault, why, now_s

    def clear(self, now_s: float) -> None:
        """Clears the fault after a sign of health, except during quarantine."""
        if now_s >= self.quarantined_until_s:
            self.fault = None

    def excuse(self, now_s: float) -> None:
        """Allows requests again at once after a sign of health, except during quarantine."""
        self.avoided_until_s = now_s
        self.on_trial = False
        self.probes_failed = 0

    def log_state(self) -> tuple[str, str]:
        """Returns state and reason for the log, without details that change often."""
        state = self.fault or (REFUSED if self.refused else WELL)
        return state, self.error if self.fault else self.refused


def _ignore_change(_address: str, _state: str, _why: str) -> None:
    """Ignores the change: the default of ``on_change``."""


@dataclass(slots=True)
class PeerHealth:
    """The records of at most ``peers_max`` peers. For any thread. Peers without news for longest
    are dropped (and then count as healthy). ``on_change`` is called with an address and the reason
    whenever its state changes, by the thread that learns of it."""

    peers_max: int = PEERS_MAX
    on_change: Callable[[str, str, str], None] = _ignore_change
    _peers: OrderedDict[str, PeerRecord] = field(default_factory=OrderedDict)
    _silent: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    _peer: Speed = field(default_factory=Speed)  # over all peers: the expectation for a new one
    _store: Speed = field(default_factory=Speed)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def usable(self, address: str, now_s: float) -> bool:
        with self._lock:
            record = self._peers.get(address)
            if record is None:
                return True
            return now_s >= record.avoided and not record.down

    def asked(self, address: str, now_s: float) -> None:
        """The peer is being asked. If it failed before, nobody else asks it until that attempt has
        a result, or for a while."""
        with self._lock:
            record = self._peers.get(address)
            if record is not None and record.failures:
                record.avoided_until_s = max(record.avoided_until_s, now_s + TRIAL_S)
                record.on_trial = True

    def began(self, address: str, seconds: float) -> None:
        """Adds the time from the request to its first byte."""
        with self._lock:
            record = self._record(address)
            record.speed.began(seconds)
            record.outrun = 0
            self._peer.began(seconds)

    def silent(self, address: str, silence_s: float, now_s: float) -> None:
        """Notes how long the peer sent nothing, up to now, beyond the time of the store."""
        with self._lock:
            self._silent[address] = (max(silence_s, 0.0), now_s)
            self._silent.move_to_end(address)
            if len(self._silent) > PRESENT_PEERS_MAX:
                self._silent.popitem(last=False)

    def present_latency_s(self, now_s: float) -> float:
        """Returns a latency that most peers reach or exceed now, by the last answer of each. If all
        nodes are busy, it is long; if some hang, it is not. 0 if too few peers have answered."""
        with self._lock:
            recent = sorted(s for s, at_s in self._silent.values() if now_s - at_s < PRESENT_S)
        return recent[len(recent) // 3] if len(recent) >= PRESENT_PEERS_MIN else 0.0

    def served(self, address: str, size_bytes: int, seconds: float, now_s: float) -> None:
        """The peer sent all the right bytes, after this time."""
        with self._changing(address) as record:
            record.seen_s = now_s
            record.received_bytes += size_bytes
            record.clear(now_s)
            record.excuse(now_s)
            record.speed.served(size_bytes, seconds)
            record.busy_until_s = 0.0
            record.failures //= 2  # a peer that fails every other time is avoided for longer
            record.outrun = 0
            self._peer.served(size_bytes, seconds)

    def answered(self, address: str, now_s: float) -> None:
        """The peer answered without bytes, as a healthy one does. That ends its trial, but a
        failure after it counts as one more."""
        with self._changing(address) as record:
            record.seen_s = now_s
            is_refuted = record.fault in (Fault.REFUSING, Fault.UNREACHABLE)
            if is_refuted:
                record.clear(now_s)
            if is_refuted or record.on_trial:
                record.excuse(now_s)

    def asks(self, address: str, now_s: float) -> None:
        """The peer sent an authorized request."""
        with self._changing(address) as record:
            record.seen_s, record.refused = now_s, ""

    def sent(self, address: str, size_bytes: int) -> None:
        """The peer was sent ``size_bytes``."""
        with self._lock:
            self._record(address).sent_bytes += size_bytes

    def refused(self, address: str, why: str, now_s: float) -> None:
        """A request in its name was refused. Anybody who can reach this node can cause that, so it
        changes only what is shown."""
        with self._changing(address) as record:
            record.refused, record.refused_s = why, now_s

    def failed(
        self, address: str, now_s: float, fault: Fault = Fault.FAILING, why: str = ""
    ) -> None:
        """The peer refused, reset, or sent nothing or too little in time. It is avoided for a time
        that doubles. Simultaneous failures count once."""
        with self._changing(address) as record:
            record.blame(fault, why, now_s)
            self._failed(record, now_s)

    def was_outrun(self, address: str, asked_s: float, now_s: float) -> None:
        """Another peer gave the answer, and this one, asked at ``asked_s``, sent nothing in its
        expected time. A few times in a row, or once on trial, count as a failure. Attempts from
        before the last time it was outrun say nothing new, so they do not count."""
        with self._changing(address) as record:
            if asked_s < record.outrun_s:
                return
            record.outrun, record.outrun_s = record.outrun + 1, now_s
            if record.outrun >= OUTRUN or record.on_trial:
                record.outrun = 0
                record.blame(Fault.LATE, "it was late several times in a row", now_s)
                self._failed(record, now_s)

    def stayed_busy(self, address: str, now_s: float) -> None:
        """A reader waited in vain for the peer, which said again and again that it was busy."""
        with self._lock:
            self._record(address).busy_until_s = now_s + BUSY_S

    def stays_busy(self, address: str, now_s: float) -> bool:
        """Whether the peer stayed busy lately, and has sent nothing since then."""
        with self._lock:
            record = self._peers.get(address)
            return record is not None and now_s < record.busy_until_s

    def wrong(self, address: str, now_s: float, why: str = "") -> None:
        """The peer sent bytes that do not match, or no HTTP: it is not asked for minutes, longer
        each time."""
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
        """The result of a probe. A peer that was down and answers gets a clean slate, except for
        wrong bytes. One that refused and answers trusts this node now. One that answers probes and
        fails in use stays avoided, and its fault is shown as long."""
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
        """Returns when it last answered or sent a request; -inf for never."""
        with self._lock:
            record = self._peers.get(address)
            return float("-inf") if record is None or record.seen_s is None else record.seen_s

    def standing(self, address: str, now_s: float) -> PeerStatus:
        """Returns the state between it and this node."""
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
        """Returns how long the peer is expected to take for ``size_bytes`` that it has."""
        with self._lock:
            record = self._peers.get(address)
            return (self._peer if record is None else record.speed).expected_s(size_bytes)

    def store_served(self, size_bytes: int, seconds: float) -> None:
        """Adds the store's time for ``size_bytes``."""
        with self._lock:
            self._store.served(size_bytes, seconds)

    def store_expected_s(self, size_bytes: int) -> float:
        """Returns how long the store is expected to take for ``size_bytes``."""
        with self._lock:
            return self._store.expected_s(size_bytes)

    def _failed(self, record: PeerRecord, now_s: float) -> None:
        if now_s >= record.avoided_until_s or record.on_trial:
            record.on_trial = False
            record.failures += 1
            record.avoided_until_s = now_s + BACKOFF.pause_s(record.failures)

    @contextmanager
    def _changing(self, address: str) -> Iterator[PeerRecord]:
        """Yields a record whose state may change; calls ``on_change`` afterwards."""
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

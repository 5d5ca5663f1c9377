"""Decides which peer to ask for one unit, when to ask another one, and when to read from S3. Pure.

The rules, in the order in which they are checked:

- The first usable owner is this node: S3.
- Nothing is under way: a few named sources, with ``cached``; otherwise the first usable owner that
  has not failed for this unit; otherwise, if all of them answered that they are busy, a pause.
- The first owner is gone: others may have what it sent them. A few of the next owners are asked
  with ``cached`` before one of them must read it from S3 again.
- The attempt takes much longer than usual: a second one, at a source or the next owner, if the
  budget of hedges allows it; one that may make the next owner read from S3 costs both budgets.
- No byte of the body arrives, or fewer than the minimum rate: the attempt is given up, and counts
  as failed. Bytes of the answer's head do not count.
- Time in which the asking thread waited for a processor does not count. If most peers are slow to
  answer at present, each gets more time, and so does one that is seen to do other things
  meanwhile: nodes that are busy together are not taken for ones that fail.
- Another peer gives the answer, and the attempt had enough time to begin and did not: PeerHealth
  records it.
- A peer answers late that it does not have it: PeerHealth records that, too.
- One attempt took long and gave nothing: the others get a moment, and S3's time. Two did: S3.
- All of it takes longer than S3 would have taken: S3, if the budget of early reads allows it.
- An owner is busy until half of the time is over: it is skipped for this unit, and PeerHealth
  records it, so that for a while others skip it when it says so once.
- The deadline: S3, always.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lodefs.chunkstore.protocol import wire
from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import PeerHealth
from lodefs.proxy.peers.membership.peer_standing import Fault

NEVER_S = float("inf")
SOURCES_TRIED_MAX = 4  # of the sources that one busy answer named
SURVEYED_MAX = 3  # next owners asked for what the first one may have sent them
HEDGES_MAX = 16  # for one unit, including refused ones
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 5.0

# Times are multiples of the usual one: the peer's latency, plus S3's if the peer may have to read
# from it. The minimums are for peers that serve many nodes.
HEDGE_FACTOR, HEDGE_S_MIN = 2.0, 0.25  # ask a second peer
SILENCE_S, SILENCE_FACTOR = 0.65, 3.0  # no byte, or too few: give up
# Limits of a peer's usual times, so that a slow one gets no more patience
LATENCY_S_MAX, SENDING_S_MAX = 0.25, 1.0
PRESENT_S_MAX = 2.0  # limit for the latency that all peers show at present
ALIVE_S = 3.0  # before a peer that does other things meanwhile is given up
BEGAN_S_MIN = 0.5  # from the first byte to the check whether more arrived
LEAST_BYTES_PER_S = 256 * 1024  # a slower peer is given up at the check
LATE_S = 0.2  # an end without data after this time is late; a few in a row count as failure
LATE_S_MAX = 0.5  # an answer without data after this time and S3's counts as failure
LATE_MAX = 2  # late attempts for one unit before S3
MOMENT_S = 0.3  # time for the others after the first late attempt
PATIENCE_FACTOR, PATIENCE_S_MIN = 3.0, 1.0  # of S3's time, before turning to it early
DEADLINE_FACTOR, DEADLINE_S_MIN = 20.0, 15.0  # before turning to S3 in any case
DEADLINE_S_MAX = 15.0  # half of a mount's timeout: S3 needs the rest


class AskPeer(NamedTuple):
    """The step that asks the peer; with ``cached``, only for data that it has or is already
    fetching, or, with ``waits``, will be fetching in a moment."""

    peer: Peer
    cached: bool
    waits: bool = False


class GiveUp(NamedTuple):
    """End the attempt at this address; if it is to blame, tell PeerHealth that it failed. A source
    that stops halfway may itself wait for another one, and is not to blame."""

    address: str
    to_blame: bool


class AskStore(NamedTuple):
    """End all attempts and read from S3."""


class Wait(NamedTuple):
    """The step that waits for an event of the running attempts, at most until then."""

    until_s: float


Action = AskPeer | GiveUp | AskStore | Wait


@dataclass(slots=True)
class PeerAttempt:
    """A peer that was asked and has not ended, and the times at which it becomes suspicious."""

    cached: bool
    asked_s: float
    usual_s: float
    hedge_s: float
    present_s: float  # the latency that peers showed when the times were chosen
    silence_s: float  # how long it may send nothing
    look_s: float = 0.0  # when to check whether it has begun and makes progress
    looked_s: float = 0.0  # the last check, and the bytes until then
    looked_bytes: int = 0
    received_bytes: int = 0
    waits_s: float = 0.0  # how long it may wait for its own bytes before it answers
    is_hedge: bool = False
    spared: bool = False  # it was not hedged because it was nearly complete


@dataclass(frozen=True, slots=True)
class PlanContext:
    """The state that all plans of a node share. ``jitter`` returns numbers in [0, 1)."""

    health: PeerHealth
    budget: HedgeBudget
    jitter: Callable[[], float] = random.random
    deadline_s_max: float = DEADLINE_S_MAX


class RequestPlan:
    """The plan for one unit. Call ``next`` for the next action, carry it out, report the result,
    and repeat.

    ``owners`` are ordered as ``rendezvous.rank`` returns them. ``known`` are peers that recently
    sent other parts of this pack; they are tried first, after the ``parent`` that the owner has
    named. At most two peers are asked at once. After AskStore, every further action is AskStore.
    """

    def __init__(
        self,
        context: PlanContext,
        owners: Sequence[Peer],
        *,
        self_address: str,
        size_bytes: int,
        now_s: float,
        known: Sequence[Peer] = (),
        parent: Peer | None = None,
    ) -> None:
        self._owners = owners
        self._self_address = self_address
        self._size_bytes = size_bytes
        self._health = health = context.health
        self._budget = context.budget
        self._jitter = context.jitter
        self._store_s = health.store_expected_s(size_bytes)
        self._patience_s = now_s + max(PATIENCE_S_MIN, PATIENCE_FACTOR * self._store_s)
        usual_s = self._usual_s(owners[0].address if owners else self_address, cached=False)
        deadline_s = max(DEADLINE_S_MIN, DEADLINE_FACTOR * usual_s)
        self._deadline_s = now_s + min(deadline_s, context.deadline_s_max)
        self._halfway_s = (now_s + self._deadline_s) / 2  # an owner that is still busy is skipped
        self._attempts: dict[str, PeerAttempt] = {}
        self._parent = parent
        self._sources: list[Peer] = list(known)[::-1]  # to try with cached=1, last one first
        if parent is not None:
            self._sources.append(parent)
        self._tried: set[str] = {self_address}  # sources tried in this round
        self._failed: set[str] = set()  # peers not to ask again for this unit
        self._pause_until_s = 0.0
        self._rounds = 0
        self._busy = ""  # the owner that was busy last
        self._hedges = 0
        self._late = 0  # attempts that took long and gave nothing
        self._surveyed = False
        self._at_store = not owners or owners[0].address == self_address

    def next(self, now_s: float) -> Action:
        """Returns the next action."""
        if self._at_store or now_s >= self._deadline_s:
            self._outrun(now_s)
            return self._turn_to_store()
        for address, attempt in self._attempts.items():
            if self._hopeless(address, attempt, now_s):
                to_blame = not (attempt.cached and attempt.received_bytes)
                if to_blame:
                    self.failed(address, now_s)
                else:
                    self._ended(address, now_s)
                return GiveUp(address, to_blame)
        if self._late >= LATE_MAX and not any(a.received_bytes for a in self._attempts.values()):
            return self._turn_to_store()
        action = self._hedge(now_s) if self._attempts else self._ask_one(now_s)
        if not isinstance(action, Wait):
            return action
        if now_s >= self._patience_s:
            rest_s = min((self._rest_s(a, now_s) for a in self._attempts.values()), default=NEVER_S)
            if rest_s > self._store_s and self._budget.store(self._size_bytes):
                return self._turn_to_store()
            self._patience_s = now_s + max(self._store_s, PAUSE_S_MIN)
        looks_s = (attempt.look_s for attempt in self._attempts.values())
        return Wait(min(action.until_s, self._patience_s, self._deadline_s, *looks_s))

    def began(self, address: str, now_s: float) -> None:
        """The first bytes of the body have arrived."""
        attempt = self._attempts.get(address)
        if attempt is not None and not attempt.received_bytes:
            self._note_silence(address, attempt, now_s)
            attempt.received_bytes = 1
            attempt.looked_s = now_s
            attempt.look_s = max(attempt.look_s, now_s + BEGAN_S_MIN)

    def received(self, address: str, size_bytes: int, now_s: float) -> None:
        """Notes how many bytes have arrived so far: a peer that makes progress is not given up."""
        self.began(address, now_s)
        attempt = self._attempts.get(address)
        if attempt is not None:
            attempt.received_bytes = size_bytes

    def won(self, address: str, now_s: float) -> None:
        """The peer gave the right answer, which ends the plan. PeerHealth records peers that were
        late without a word, since one that hangs, and is hedged each time, would otherwise be asked
        forever."""
        for other, attempt in self._attempts.items():
            is_late = now_s >= attempt.asked_s + _hedge_after_s(attempt.usual_s)
            if other != address and is_late and not attempt.received_bytes:
                self._health.was_outrun(other, attempt.asked_s, now_s)

    def _note_silence(self, address: str, attempt: PeerAttempt, now_s: float) -> None:
        """Tells PeerHealth how long the peer has sent nothing, beyond the time of S3."""
        may_s = attempt.waits_s if attempt.cached else self._store_s
        self._health.silent(address, now_s - attempt.asked_s - may_s, now_s)

    def _outrun(self, now_s: float) -> None:
        """The deadline passed: peers that made too little progress are recorded, too."""
        for address, attempt in self._attempts.items():
            if not attempt.cached:
                self._health.was_outrun(address, attempt.asked_s, now_s)

    def failed(self, address: str, now_s: float) -> None:
        """The peer refused, reset, or sent wrong bytes."""
        self._failed.add(address)
        self._ended(address, now_s)

    def lacking(self, address: str, now_s: float) -> None:
        """The peer does not have the unit (404)."""
        attempt = self._refused(address, now_s)
        if attempt is not None and not attempt.cached:
            self._failed.add(address)  # an owner would have fetched it if it could

    def busy(
        self, address: str, alternatives: Sequence[Peer], retry_after_s: float, now_s: float
    ) -> None:
        """The peer is overloaded, and names others."""
        attempt = self._refused(address, now_s)
        self._tried.add(address)
        named = [peer for peer in alternatives if self._untried(peer)]
        for at in range(len(named) - 1, 0, -1):  # shuffle
            other = int(self._jitter() * (at + 1))
            named[at], named[other] = named[other], named[at]
        self._sources.extend(named[:SOURCES_TRIED_MAX])
        if attempt is not None and not attempt.cached:
            if self._health.stays_busy(address, now_s):
                self._failed.add(address)
                return
            at_least_s = max(PAUSE_S_MIN, retry_after_s)  # in this order, for NaN
            longest_s = min(at_least_s * 2.0**self._rounds, PAUSE_S_MAX)
            self._pause_until_s = now_s + longest_s * (1 + self._jitter()) / 2
            self._rounds += 1
            self._busy = address

    def _ended(self, address: str, now_s: float) -> PeerAttempt | None:
        ended = self._attempts.pop(address, None)
        if ended is not None and now_s - ended.asked_s >= LATE_S + ended.waits_s:
            self._late += 1
        for attempt in self._attempts.values():
            attempt.hedge_s = now_s  # it was slow enough for a hedge, and has lost its hedge
            if not attempt.received_bytes:
                attempt.look_s = min(attempt.look_s, now_s + self._silence_s(attempt))
        return ended

    def _refused(self, address: str, now_s: float) -> PeerAttempt | None:
        attempt = self._ended(address, now_s)
        if attempt is None:
            return None
        if attempt.is_hedge:
            self._budget.hedge_refused(self._size_bytes)
        self._note_silence(address, attempt, now_s)
        self._report(address, attempt, now_s)
        return attempt

    def _report(self, address: str, attempt: PeerAttempt, now_s: float) -> None:
        """Reports an answer without data to PeerHealth. Such an answer may take S3's latency at
        most."""
        may_s = attempt.waits_s if attempt.cached else self._health.store_expected_s(0)
        took_s = now_s - attempt.asked_s - self._present_s(now_s)
        if took_s - may_s >= LATE_S_MAX:
            why = f"an answer without data took {took_s:.2f} s"
            self._health.failed(address, now_s, Fault.LATE, why)
        elif took_s - may_s >= LATE_S:
            self._health.was_outrun(address, attempt.asked_s, now_s)
        else:
            self._health.answered(address, now_s)

    def _turn_to_store(self) -> Action:
        self._at_store = True
        self._attempts.clear()
        return AskStore()

    def _ask_one(self, now_s: float) -> Action:
        """Returns the action if nothing is under way."""
        source = self._next_source(now_s)
        if source is not None:
            return self._ask(source, now_s, cached=True)
        if now_s < self._pause_until_s:
            return Wait(self._pause_until_s)
        if self._rounds:
            self._tried = {self._self_address}
            if now_s >= self._halfway_s:
                self._failed.add(self._busy)
                self._health.stayed_busy(self._busy, now_s)
        owner = self._next_owner(now_s)
        if owner != self._owners[0] and not self._surveyed:
            self._surveyed = True
            others = [peer for peer in self._owners[1:] if self._untried(peer)]
            self._sources = others[:SURVEYED_MAX][::-1]
            return self._ask_one(now_s)
        if owner is None or owner.address == self._self_address:
            return self._turn_to_store()
        return self._ask(owner, now_s, cached=False)

    def _hedge(self, now_s: float) -> Action:
        """Returns the action if one attempt is under way: perhaps a second one."""
        if len(self._attempts) > 1 or self._hedges >= HEDGES_MAX:
            return Wait(self._deadline_s)
        attempt = next(iter(self._attempts.values()))
        rest_s = self._rest_s(attempt, now_s)
        if now_s >= attempt.hedge_s and rest_s < attempt.usual_s and not attempt.spared:
            attempt.spared = True  # a second one would not be faster, if this one makes progress
            attempt.hedge_s = now_s + rest_s + PAUSE_S_MIN
        if now_s < attempt.hedge_s:
            return Wait(attempt.hedge_s)
        attempt.hedge_s = self._deadline_s  # decide only once
        self._hedges += 1
        if not self._budget.hedge(self._size_bytes):
            return Wait(self._deadline_s)
        action = self._ask_second(now_s)
        if action is None:
            self._budget.hedge_refused(self._size_bytes)
        return action or Wait(self._deadline_s)

    def _ask_second(self, now_s: float) -> Action | None:
        """Asks a second peer besides the slow one; returns None if there is nobody."""
        source = self._next_source(now_s)
        if source is not None:
            return self._ask(source, now_s, cached=True)
        owner = self._next_owner(now_s)
        if owner is None:
            return None
        if self._budget.store(self._size_bytes):
            if owner.address == self._self_address:
                return self._turn_to_store()
            return self._ask(owner, now_s, cached=False)
        # It may have the unit; it is not made to fetch it.
        return self._ask(owner, now_s, cached=True) if self._untried(owner) else None

    def _ask(self, peer: Peer, now_s: float, *, cached: bool) -> Action:
        waits = cached and peer == self._parent
        waits_s = wire.PARENT_WAIT_S if waits else 0.0
        usual_s = self._usual_s(peer.address, cached=cached)
        present_s = self._present_s(now_s)
        attempt = PeerAttempt(
            cached,
            now_s,
            usual_s,
            hedge_s=now_s + _hedge_after_s(usual_s),
            present_s=present_s,
            silence_s=waits_s + self._patient_s(peer.address, present_s, cached=cached),
            waits_s=waits_s,
            is_hedge=bool(self._attempts),
        )
        attempt.look_s = now_s + self._silence_s(attempt)
        self._attempts[peer.address] = attempt
        self._health.asked(peer.address, now_s)
        if cached:
            self._tried.add(peer.address)
        return AskPeer(peer, cached, waits)

    def _next_source(self, now_s: float) -> Peer | None:
        while self._sources:
            peer = self._sources.pop()
            if self._untried(peer) and self._health.usable(peer.address, now_s):
                return peer
        return None

    def _next_owner(self, now_s: float) -> Peer | None:
        """Returns the first owner that may be asked; this may be this node itself."""
        for peer in self._owners:
            if peer.address == self._self_address:
                return peer
            if peer.address in self._failed or peer.address in self._attempts:
                continue
            if self._health.usable(peer.address, now_s):
                return peer
        return None

    def _untried(self, peer: Peer) -> bool:
        address = peer.address
        return not (address in self._tried or address in self._failed or address in self._attempts)

    def _usual_s(self, address: str, *, cached: bool) -> float:
        """Returns the peer's usual time, plus S3's if the peer may have to read from it."""
        peer_s = self._health.expected_s(address, self._size_bytes)
        return peer_s if cached else peer_s + self._store_s

    def _hopeless(self, address: str, attempt: PeerAttempt, now_s: float) -> bool:
        """Whether a check of the attempt is due, and it will not end in time."""
        if now_s < attempt.look_s:
            return False
        if not attempt.received_bytes:
            # Others that have answered meanwhile may show that all are busy
            grown_s = self._present_s(now_s) - attempt.present_s
            if grown_s > 0:
                attempt.present_s += grown_s
                attempt.look_s = now_s + SILENCE_FACTOR * grown_s
                return False
            is_alive = self._health.seen_s(address) > attempt.asked_s
            if is_alive and now_s < attempt.asked_s + ALIVE_S:
                attempt.look_s = now_s + MOMENT_S
                return False
        came_bytes = attempt.received_bytes - attempt.looked_bytes
        if came_bytes <= LEAST_BYTES_PER_S * (now_s - attempt.looked_s):
            return True
        attempt.looked_s, attempt.looked_bytes = now_s, attempt.received_bytes
        attempt.look_s = now_s + self._silence_s(attempt)
        return False

    def _rest_s(self, attempt: PeerAttempt, now_s: float) -> float:
        """Returns how long the attempt will still take at its present rate."""
        if not attempt.received_bytes:
            return NEVER_S
        rest_bytes = self._size_bytes - attempt.received_bytes
        return rest_bytes * (now_s - attempt.asked_s) / attempt.received_bytes

    def _present_s(self, now_s: float) -> float:
        """Returns the latency that peers show now, up to a limit."""
        return min(self._health.present_latency_s(now_s), PRESENT_S_MAX)

    def _patient_s(self, address: str, present_s: float, *, cached: bool) -> float:
        """Returns how long the first attempt may send nothing. What a slow peer can add has a
        limit."""
        latency_s = self._health.expected_s(address, 0)
        sending_s = self._health.expected_s(address, self._size_bytes) - latency_s
        usual_s = max(min(latency_s, LATENCY_S_MAX), present_s)
        peer_s = usual_s + min(sending_s, SENDING_S_MAX)
        return SILENCE_S + SILENCE_FACTOR * (peer_s if cached else peer_s + self._store_s)

    def _silence_s(self, attempt: PeerAttempt) -> float:
        """Returns how long an attempt may send nothing."""
        if not self._late:
            return attempt.silence_s
        return min(attempt.silence_s, MOMENT_S + HEDGE_FACTOR * (self._store_s + attempt.present_s))


def _hedge_after_s(usual_s: float) -> float:
    return max(HEDGE_S_MIN, HEDGE_FACTOR * usual_s)

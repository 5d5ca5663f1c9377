"""Whom to ask for one unit, when to ask somebody else, and when to read from S3. Pure.

The rules, in the order in which they are looked at:

- The first usable owner is this node: S3.
- Nothing under way: sources that were named, a few, with ``cached``; else the first usable owner
  that has not failed this unit; else, after all of them said that they are busy, a pause.
- The first owner is gone: others may have what it sent them. A few of the next owners are asked
  with ``cached`` before one of them is made to read it from S3 again.
- The attempt takes much longer than usual: a second one, at a source or the next owner, if the
  budget of hedges allows it; one that may make the next owner read from S3 costs both budgets.
- No byte of the body comes, or fewer than the least rate: the attempt is given up, and counts as
  failed. What comes of the answer's head does not count.
- Another one gives the answer, and the attempt had long enough to begin and did not: PeerHealth
  records it.
- It says late that it has nothing: PeerHealth records that, too.
- One took long and gave nothing: the others have a moment, and S3's time. Two did: S3.
- All of it takes longer than S3 would have taken: S3, if the budget of early turns allows it.
- An owner is busy until half of the time is over: it is passed by for this unit.
- The deadline: S3, always.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lodefs.proxy.peers.client.hedge_budget import HedgeBudget
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.peer_health import PeerHealth
from lodefs.proxy.peers.membership.peer_standing import Fault

NEVER_S = float("inf")
SOURCES_TRIED_MAX = 4  # of those that one busy answer named
SURVEYED_MAX = 3  # of the next owners, for what the first one may have sent them
HEDGES_MAX = 16  # of one unit, those included that were refused
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 5.0

# Times are multiples of the usual one: what the peer takes, and S3 before it if the peer may
# have to ask it. The least ones are for peers that are busy with more than us.
HEDGE_FACTOR, HEDGE_S_MIN = 2.0, 0.25  # another is asked besides
SILENCE_S, SILENCE_FACTOR = 0.65, 3.0  # no byte came, or too few: given up
LATENCY_S_MAX, SENDING_S_MAX = 0.25, 1.0  # of what a peer takes: who is slow earns no patience
BEGAN_S_MIN = 0.5  # after the first byte, before it is looked at whether more came
LEAST_BYTES_PER_S = 256 * 1024  # who sends less is given up when it is looked at
LATE_S = 0.2  # what ends without data after so long is late; a few times in a row: it failed
LATE_S_MAX = 0.5  # what says after so long, and S3's time, that it has nothing: it failed
LATE_MAX = 2  # attempts of one unit that were late: S3
MOMENT_S = 0.3  # after the first of them the others show something
PATIENCE_FACTOR, PATIENCE_S_MIN = 3.0, 1.0  # of what S3 takes: turning to it early
DEADLINE_FACTOR, DEADLINE_S_MIN = 20.0, 15.0  # turning to S3 at last
DEADLINE_S_MAX = 15.0  # half of what a mount waits: S3 needs the rest


class AskPeer(NamedTuple):
    """Ask the peer; with ``cached`` only for what it has or is getting already."""

    peer: Peer
    cached: bool


class GiveUp(NamedTuple):
    """End the attempt at this address; if it is to blame, tell PeerHealth that it failed. A source
    that stops halfway may itself wait for another, and is not."""

    address: str
    to_blame: bool


class AskStore(NamedTuple):
    """End all attempts and read from S3."""


class Wait(NamedTuple):
    """Wait for an event of the attempts under way, at most until then."""

    until_s: float


Action = AskPeer | GiveUp | AskStore | Wait


@dataclass(slots=True)
class PeerAttempt:
    """A peer that was asked and has not ended, and the times at which it becomes suspicious."""

    cached: bool
    asked_s: float
    usual_s: float
    hedge_s: float
    silence_s: float  # how long it may say nothing
    look_s: float = 0.0  # when it is looked at: whether it began, whether it gets on
    looked_s: float = 0.0  # when it was looked at last, and what had come by then
    looked_bytes: int = 0
    received_bytes: int = 0
    is_hedge: bool = False
    spared: bool = False  # it was not hedged because it was nearly there


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What all plans of a node share. ``jitter`` gives numbers in [0, 1)."""

    health: PeerHealth
    budget: HedgeBudget
    jitter: Callable[[], float] = random.random
    deadline_s_max: float = DEADLINE_S_MAX


class RequestPlan:
    """One unit's way. Ask ``next`` what to do, do it, tell what came of it, ask again.

    ``owners``: as ``rendezvous.rank`` gives them. ``known``: peers that sent other parts of this
    pack lately; they are tried first. At most two peers are
    asked at once. After AskStore every further answer is AskStore.
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
        self._halfway_s = (now_s + self._deadline_s) / 2  # an owner that is busy still is passed by
        self._attempts: dict[str, PeerAttempt] = {}
        self._sources: list[Peer] = list(known)[::-1]  # to be tried with cached=1, last one first
        self._tried: set[str] = {self_address}  # sources, in this round
        self._failed: set[str] = set()  # not asked again for this unit
        self._pause_until_s = 0.0
        self._rounds = 0
        self._busy = ""  # the owner that said so last
        self._hedges = 0
        self._late = 0  # attempts that took their time for nothing
        self._surveyed = False
        self._at_store = not owners or owners[0].address == self_address

    def next(self, now_s: float) -> Action:
        """What to do now."""
        if self._at_store or now_s >= self._deadline_s:
            self._outrun(now_s)
            return self._turn_to_store()
        for address, attempt in self._attempts.items():
            if self._hopeless(attempt, now_s):
                self.failed(address, now_s)
                return GiveUp(address, not (attempt.cached and attempt.received_bytes))
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
        """The first bytes of the body came."""
        attempt = self._attempts.get(address)
        if attempt is not None and not attempt.received_bytes:
            attempt.received_bytes = 1
            attempt.looked_s = now_s
            attempt.look_s = max(attempt.look_s, now_s + BEGAN_S_MIN)

    def received(self, address: str, size_bytes: int, now_s: float) -> None:
        """So many bytes came so far: a peer that gets on is not given up."""
        self.began(address, now_s)
        attempt = self._attempts.get(address)
        if attempt is not None:
            attempt.received_bytes = size_bytes

    def won(self, address: str, now_s: float) -> None:
        """It gave the right answer: the plan is at its end. PeerHealth records those that were late
        without a word: one that hangs, and is hedged each time, would be asked forever else."""
        for other, attempt in self._attempts.items():
            is_late = now_s >= attempt.asked_s + _hedge_after_s(attempt.usual_s)
            if other != address and is_late and not attempt.received_bytes:
                self._health.was_outrun(other, attempt.asked_s, now_s)

    def _outrun(self, now_s: float) -> None:
        """All the time went by: who got on, too slowly, is not asked for ever either."""
        for address, attempt in self._attempts.items():
            if not attempt.cached:
                self._health.was_outrun(address, attempt.asked_s, now_s)

    def failed(self, address: str, now_s: float) -> None:
        """It refused, reset, or sent wrong bytes."""
        self._failed.add(address)
        self._ended(address, now_s)

    def lacking(self, address: str, now_s: float) -> None:
        """It has not got it (404)."""
        attempt = self._refused(address, now_s)
        if attempt is not None and not attempt.cached:
            self._failed.add(address)  # it would have fetched it if it could

    def busy(
        self, address: str, alternatives: Sequence[Peer], retry_after_s: float, now_s: float
    ) -> None:
        """It has too much to do, and names others."""
        attempt = self._refused(address, now_s)
        self._tried.add(address)
        named = [peer for peer in alternatives if self._untried(peer)]
        for at in range(len(named) - 1, 0, -1):  # shuffled
            other = int(self._jitter() * (at + 1))
            named[at], named[other] = named[other], named[at]
        self._sources.extend(named[:SOURCES_TRIED_MAX])
        if attempt is not None and not attempt.cached:
            longest_s = min(max(retry_after_s, PAUSE_S_MIN) * 2.0**self._rounds, PAUSE_S_MAX)
            self._pause_until_s = now_s + longest_s * (1 + self._jitter()) / 2
            self._rounds += 1
            self._busy = address

    def _ended(self, address: str, now_s: float) -> PeerAttempt | None:
        ended = self._attempts.pop(address, None)
        if ended is not None and now_s - ended.asked_s >= LATE_S:
            self._late += 1
        for attempt in self._attempts.values():
            attempt.hedge_s = now_s  # it was slow enough for a hedge, and has none any more
            if not attempt.received_bytes:
                attempt.look_s = min(attempt.look_s, now_s + self._silence_s(attempt))
        return ended

    def _refused(self, address: str, now_s: float) -> PeerAttempt | None:
        attempt = self._ended(address, now_s)
        if attempt is None:
            return None
        if attempt.is_hedge:
            self._budget.hedge_refused(self._size_bytes)
        self._report(address, attempt, now_s)
        return attempt

    def _report(self, address: str, attempt: PeerAttempt, now_s: float) -> None:
        """Reports an answer without data to PeerHealth. It may take S3's latency at most."""
        store_s = 0.0 if attempt.cached else self._health.store_expected_s(0)
        took_s = now_s - attempt.asked_s
        if took_s - store_s >= LATE_S_MAX:
            why = f"an answer without data took {took_s:.2f} s"
            self._health.failed(address, now_s, Fault.LATE, why)
        elif took_s - store_s >= LATE_S:
            self._health.was_outrun(address, attempt.asked_s, now_s)
        else:
            self._health.answered(address, now_s)

    def _turn_to_store(self) -> Action:
        self._at_store = True
        self._attempts.clear()
        return AskStore()

    def _ask_one(self, now_s: float) -> Action:
        """Nothing is under way."""
        source = self._next_source(now_s)
        if source is not None:
            return self._ask(source, now_s, cached=True)
        if now_s < self._pause_until_s:
            return Wait(self._pause_until_s)
        if self._rounds:
            self._tried = {self._self_address}
            if now_s >= self._halfway_s:
                self._failed.add(self._busy)
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
        """Something is under way: whether another is asked besides."""
        if len(self._attempts) > 1 or self._hedges >= HEDGES_MAX:
            return Wait(self._deadline_s)
        attempt = next(iter(self._attempts.values()))
        rest_s = self._rest_s(attempt, now_s)
        if now_s >= attempt.hedge_s and rest_s < attempt.usual_s and not attempt.spared:
            attempt.spared = True  # another would not be there sooner, if this one gets on
            attempt.hedge_s = now_s + rest_s + PAUSE_S_MIN
        if now_s < attempt.hedge_s:
            return Wait(attempt.hedge_s)
        attempt.hedge_s = self._deadline_s  # decided once
        self._hedges += 1
        if not self._budget.hedge(self._size_bytes):
            return Wait(self._deadline_s)
        action = self._ask_second(now_s)
        if action is None:
            self._budget.hedge_refused(self._size_bytes)
        return action or Wait(self._deadline_s)

    def _ask_second(self, now_s: float) -> Action | None:
        """Somebody besides the one that is slow; None if there is nobody."""
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
        # It may have it; it is not made to fetch it.
        return self._ask(owner, now_s, cached=True) if self._untried(owner) else None

    def _ask(self, peer: Peer, now_s: float, *, cached: bool) -> Action:
        usual_s = self._usual_s(peer.address, cached=cached)
        attempt = PeerAttempt(
            cached,
            now_s,
            usual_s,
            hedge_s=now_s + _hedge_after_s(usual_s),
            silence_s=self._patient_s(peer.address, cached=cached),
            is_hedge=bool(self._attempts),
        )
        attempt.look_s = now_s + self._silence_s(attempt)
        self._attempts[peer.address] = attempt
        self._health.asked(peer.address, now_s)
        if cached:
            self._tried.add(peer.address)
        return AskPeer(peer, cached)

    def _next_source(self, now_s: float) -> Peer | None:
        while self._sources:
            peer = self._sources.pop()
            if self._untried(peer) and self._health.usable(peer.address, now_s):
                return peer
        return None

    def _next_owner(self, now_s: float) -> Peer | None:
        """The first owner that may be asked; this node itself among them."""
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
        """What the peer takes, and S3 before it if it may have to be asked."""
        peer_s = self._health.expected_s(address, self._size_bytes)
        return peer_s if cached else peer_s + self._store_s

    def _hopeless(self, attempt: PeerAttempt, now_s: float) -> bool:
        """Whether it was time to look at the attempt, and it will not end in time."""
        if now_s < attempt.look_s:
            return False
        came_bytes = attempt.received_bytes - attempt.looked_bytes
        if came_bytes <= LEAST_BYTES_PER_S * (now_s - attempt.looked_s):
            return True
        attempt.looked_s, attempt.looked_bytes = now_s, attempt.received_bytes
        attempt.look_s = now_s + self._silence_s(attempt)
        return False

    def _rest_s(self, attempt: PeerAttempt, now_s: float) -> float:
        """How long it will take if it goes on as it did so far."""
        if not attempt.received_bytes:
            return NEVER_S
        rest_bytes = self._size_bytes - attempt.received_bytes
        return rest_bytes * (now_s - attempt.asked_s) / attempt.received_bytes

    def _patient_s(self, address: str, *, cached: bool) -> float:
        """How long the first one may say nothing. What the peer can teach has a limit."""
        latency_s = self._health.expected_s(address, 0)
        sending_s = self._health.expected_s(address, self._size_bytes) - latency_s
        peer_s = min(latency_s, LATENCY_S_MAX) + min(sending_s, SENDING_S_MAX)
        return SILENCE_S + SILENCE_FACTOR * (peer_s if cached else peer_s + self._store_s)

    def _silence_s(self, attempt: PeerAttempt) -> float:
        """How long it may say nothing."""
        if not self._late:
            return attempt.silence_s
        return min(attempt.silence_s, MOMENT_S + HEDGE_FACTOR * self._store_s)


def _hedge_after_s(usual_s: float) -> float:
    return max(HEDGE_S_MIN, HEDGE_FACTOR * usual_s)

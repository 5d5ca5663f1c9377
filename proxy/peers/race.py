"""One thing asked of the cluster: the driver of a Plan, with sockets, a clock and a poll loop."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from chunkstore import wire
from chunkstore.decoding import from_msgpack
from chunkstore.errors import InvalidInput, LodefsError, Unavailable
from chunkstore.objects import Buffer
from proxy.meter import Counter, Meter
from proxy.peers.attempt import Attempt, PeerAnswer
from proxy.peers.auth import Authenticator
from proxy.peers.bandwidth import Bandwidth
from proxy.peers.connections import Connections
from proxy.peers.health import Health
from proxy.peers.peer import Peer
from proxy.peers.plan import Ask, AskStore, GiveUp, Plan

T = TypeVar("T")
log = logging.getLogger("lodefs.peers")

ANSWER_SIZE_BYTES_MIN = 64 * 1024  # of what is taken: refusals have bodies too


@dataclass(frozen=True, slots=True)
class Means:
    """What all races of a node share."""

    health: Health
    connections: Connections
    authenticator: Authenticator
    download: Bandwidth
    meter: Meter
    members: Callable[[], Sequence[Peer]]
    clock_s: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What is asked. ``checked`` makes the result of a body, or raises Corrupt."""

    target: str  # path and query
    size_bytes: int  # that is expected
    size_bytes_max: int
    checked: Callable[[Buffer], T]
    begun: Callable[[], None] = lambda: None  # called when a peer's bytes begin to come


@dataclass(slots=True)
class _Running:
    attempt: Attempt
    action: Ask
    begin_s: float
    told: bool = False  # the plan knows that it began

    @property
    def peer(self) -> Peer:
        return self.action.peer


class Race(Generic[T]):
    """The peers that are asked one question, from the first to the first right answer."""

    def __init__(self, plan: Plan, question: Question[T], means: Means) -> None:
        self._plan = plan
        self._question = question
        self._means = means
        self._running: dict[int, _Running] = {}
        self._poll = select.poll()
        self._asked = False

    def run(self) -> tuple[T, Peer] | None:
        """The answer and who gave it; None where the store is to be asked. Whoever is slower is
        left alone."""
        clock_s = self._means.clock_s
        try:
            while True:
                action = self._plan.next(clock_s())
                if isinstance(action, AskStore):
                    if self._asked:
                        self._means.meter.add(Counter.PEER_FALLBACKS)
                    return None
                if isinstance(action, Ask):
                    self._ask(action)
                    continue
                if isinstance(action, GiveUp):
                    self._give_up(action)
                    continue
                for running in self._ready(action.until_s - clock_s()):
                    found = self._advance(running)
                    if found is not None:
                        return found, running.peer
        finally:
            for fd, running in list(self._running.items()):
                self._drop(fd, running.attempt)

    def _ask(self, action: Ask) -> None:
        self._means.meter.add(Counter.PEER_REQUESTS)
        self._asked = True
        self._begin(action, fresh=False)

    def _begin(self, action: Ask, *, fresh: bool) -> None:
        peer, now_s = action.peer, self._means.clock_s()
        limit = max(self._question.size_bytes_max, ANSWER_SIZE_BYTES_MIN)
        request = partial(self._request, action)
        try:
            attempt = self._means.connections.begin(peer.address, request, limit, fresh=fresh)
        except Unavailable as error:
            self._failed(peer, error)
            return
        self._running[attempt.fileno()] = _Running(attempt, action, now_s)
        self._poll.register(attempt.fileno(), attempt.events)

    def _request(self, action: Ask) -> bytes:
        target, address = self._question.target, action.peer.address
        if action.cached:
            target += f"{'&' if '?' in target else '?'}cached=1"
        signed = self._means.authenticator.sign("GET", target, to=address)
        lines = "".join(f"{name}: {value}\r\n" for name, value in [("Host", address), *signed])
        return f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def _ready(self, wait_s: float) -> list[_Running]:
        """Those that can go on; after the time given nobody."""
        if not self._running:
            time.sleep(max(wait_s, 0))
            return []
        at_once = [one for one in self._running.values() if one.attempt.answer is not None]
        if at_once:
            return at_once
        found = self._poll.poll(max(wait_s, 0) * 1000)
        return [self._running[fd] for fd, _ in found if fd in self._running]

    def _advance(self, running: _Running) -> T | None:
        """Goes on with one; the result where it has come."""
        attempt, clock_s = running.attempt, self._means.clock_s
        fd = attempt.fileno()
        try:
            if attempt.answer is None:
                attempt.advance()
        except Unavailable as error:
            self._drop(fd, attempt)
            if attempt.is_reused and not attempt.began:
                self._begin(running.action, fresh=True)
            else:
                self._failed(running.peer, error)
            return None
        if attempt.began and not running.told:
            running.told = True
            if attempt.status == 200:
                self._question.begun()
            self._plan.began(attempt.address, clock_s())
            self._means.health.began(attempt.address, clock_s() - running.begin_s)
        if attempt.answer is None:
            self._plan.received(attempt.address, attempt.got_bytes, clock_s())
            self._poll.register(attempt.fileno(), attempt.events)
            return None
        self._drop(fd, attempt)
        return self._answered(running, attempt.answer)

    def _answered(self, running: _Running, answer: PeerAnswer) -> T | None:
        means, address, now_s = self._means, running.peer.address, self._means.clock_s()
        busy = _busy(answer)
        if busy is not None:
            members = {peer.address: peer for peer in means.members()}
            named = [members[one] for one in busy.addresses if one in members]
            means.meter.add(Counter.PEER_BUSY)
            self._plan.busy(address, named, max(busy.retry_after_s, 0.0), now_s)
            return None
        if answer.status == 404:
            self._plan.lacking(address, now_s)
            return None
        if answer.status != 200:
            what = bytes(answer.body[:200]).decode("utf-8", "replace")
            self._failed(running.peer, Unavailable(f"peer {address}: {answer.status}: {what}"))
            return None
        try:
            found = self._question.checked(answer.body)
        except LodefsError as error:
            means.meter.add(Counter.PEER_CORRUPT)
            log.warning("peer %s sent wrong bytes and is not asked for a time: %s", address, error)
            means.health.wrong(address, now_s)
            self._plan.failed(address, now_s)
            return None
        size_bytes = len(answer.body)
        means.health.served(address, size_bytes, now_s - running.begin_s)
        self._plan.won(address, now_s)
        means.meter.add(Counter.PEER_FETCHED_BYTES, size_bytes)
        wait_s = means.download.reserve(size_bytes, now_s)
        if wait_s > 0:
            time.sleep(wait_s)  # this thread asks for no more until then
        return found

    def _failed(self, peer: Peer, error: LodefsError) -> None:
        now_s = self._means.clock_s()
        log.info("%s", error)
        self._means.meter.add(Counter.PEER_FAILED)
        self._means.health.failed(peer.address, now_s)
        self._plan.failed(peer.address, now_s)

    def _give_up(self, action: GiveUp) -> None:
        """One that is too slow: its connection is closed, and where it is to blame it counts as
        failed."""
        address = action.address
        for fd, running in list(self._running.items()):
            if running.peer.address == address:
                log.info("peer %s is too slow for %s", address, self._question.target)
                self._means.meter.add(Counter.PEER_FAILED)
                if action.to_blame:
                    self._means.health.failed(address, self._means.clock_s())
                self._drop(fd, running.attempt)

    def _drop(self, fd: int, attempt: Attempt) -> None:
        self._poll.unregister(fd)
        del self._running[fd]
        self._means.connections.end(attempt)


def _busy(answer: PeerAnswer) -> wire.Busy | None:
    """What a peer says that has too much to do; None for any other answer, also for the 503 of
    one that is stopping."""
    if answer.status != 503 or answer.headers.get("content-type") != wire.MSGPACK:
        return None
    try:
        return from_msgpack(answer.body, wire.Busy)
    except InvalidInput:
        return None

"""One request to the cluster: executes a RequestPlan, with sockets, a clock and a poll loop."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.decoding import from_json, from_msgpack
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.fetch.pack_source import NOBODY, FillListener
from lodefs.proxy.metrics.counters import Counter, Counts
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.http_attempt import HttpAttempt, PeerAnswer
from lodefs.proxy.peers.client.phases import PhaseTimer
from lodefs.proxy.peers.client.request_plan import AskPeer, AskStore, GiveUp, RequestPlan
from lodefs.proxy.peers.membership.peer import Peer, split_address
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.runtime.processor_wait import WAIT_S_MAX
from lodefs.proxy.tracing.request_scope import outgoing_headers
from lodefs.proxy.tracing.spans import NO_SPAN, Span, SpanKind, begin_span, within

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
log = logging.getLogger("lodefs.peers")

# Bodies up to this size are always accepted, since refusals have bodies, too
ANSWER_SIZE_BYTES_MIN = 64 * 1024


class BodyCheck(Protocol[T_co]):
    """Checks one body. Raises: Corrupt."""

    def came(self, body: memoryview) -> None:
        """Checks what has come of the body so far."""

    def whole(self, body: memoryview) -> T_co:
        """Returns the result of the body."""


class WholeBody(Generic[T]):
    """A BodyCheck of bodies that mean nothing before their end."""

    def __init__(self, checked: Callable[[Buffer], T]) -> None:
        self._checked = checked

    def came(self, body: memoryview) -> None:
        """Implements BodyCheck."""

    def whole(self, body: memoryview) -> T:
        """Implements BodyCheck."""
        return self._checked(body)


@dataclass(frozen=True, slots=True)
class PeerRequest(Generic[T]):
    """A request. ``check`` makes the check of one peer's body."""

    target: str  # path and query
    size_bytes: int  # expected size
    size_bytes_max: int
    check: Callable[[], BodyCheck[T]]
    listener: FillListener = NOBODY  # is told when a peer's bytes come, and when none do


@dataclass(slots=True)
class _Running(Generic[T]):
    attempt: HttpAttempt
    check: BodyCheck[T]
    action: AskPeer
    begin_s: float
    phases: PhaseTimer
    span: Span
    reported: bool = False  # whether the plan knows that its body has begun

    @property
    def peer(self) -> Peer:
        return self.action.peer


class Found(NamedTuple, Generic[T]):
    """The right answer, the peer that gave it, and the headers by lower-case name."""

    result: T
    peer: Peer
    headers: Mapping[str, str]


class HedgedRequest(Generic[T]):
    """The peers that get one request, from the first one until the first right answer."""

    def __init__(
        self, plan: RequestPlan, request: PeerRequest[T], context: PeerContext, counts: Counts
    ) -> None:
        self._plan = plan
        self._request = request
        self._context = context
        self._counts = counts
        self._running: dict[int, _Running[T]] = {}
        self._poll = select.poll()
        self._asked = False
        self._waited_s = 0.0  # for a processor, by polls that ended at their deadline

    def run(self) -> Found[T] | None:
        """Returns the answer; None if the store must be asked. Slower peers are dropped."""
        clock_s = self._clock_s
        try:
            while True:
                action = self._plan.next(clock_s())
                if isinstance(action, AskStore):
                    if self._asked:
                        self._counts.add(Counter.PEER_FALLBACKS)
                    return None
                if isinstance(action, AskPeer):
                    self._ask(action)
                    continue
                if isinstance(action, GiveUp):
                    self._give_up(action)
                    continue
                for running in self._ready(self._until_s(action.until_s)):
                    found = self._advance(running)
                    if found is not None:
                        return found
                self._end_late(clock_s())
        finally:
            for fd, running in list(self._running.items()):
                running.span.note({"lodefs.outcome": "no longer needed"})
                running.span.end()
                self._drop(fd, running.attempt)

    def _ask(self, action: AskPeer) -> None:
        address = action.peer.address
        if self._request.listener.passes_to(address):  # it waits for this node, so it lacks them
            self._plan.lacking(address, self._clock_s())
            return
        self._counts.add(Counter.PEER_REQUESTS)
        self._asked = True
        self._begin(action, fresh=False)

    def _begin(self, action: AskPeer, *, fresh: bool) -> None:
        peer, now_s = action.peer, self._clock_s()
        limit = max(self._request.size_bytes_max, ANSWER_SIZE_BYTES_MIN)
        encoded = partial(self._encoded, action)
        span = _span_of(peer, self._request.target)
        try:
            with within(span):
                attempt = self._context.connections.begin(peer.address, encoded, limit, fresh=fresh)
        except Unavailable as error:
            self._failed(peer, Fault.UNREACHABLE, error, span)
            return
        phases = PhaseTimer(attempt.phase, now_s)
        check = self._request.check()
        self._running[attempt.fileno()] = _Running(attempt, check, action, now_s, phases, span)
        self._poll.register(attempt.fileno(), attempt.events)
        self._tell_asked()

    def _encoded(self, action: AskPeer, to: str) -> bytes:
        target, address = self._request.target, action.peer.address
        if action.cached:
            target += f"{'&' if '?' in target else '?'}cached=1{'&wait=1' if action.waits else ''}"
        signed = self._context.authenticator.sign("GET", target, to=to)
        headers = [("Host", address), *signed, *outgoing_headers().items()]
        return encode_request("GET", target, headers)

    def _clock_s(self) -> float:
        """Returns the time without that in which this thread waited for a processor, for which no
        peer is to blame."""
        return self._context.clock_s() - self._waited_s

    def _ready(self, until_s: float) -> list[_Running[T]]:
        """Returns the attempts that can proceed; none after the given time."""
        wait_s = until_s - self._clock_s()
        if not self._running:
            time.sleep(max(wait_s, 0))
            return []
        at_once = [one for one in self._running.values() if one.attempt.answer is not None]
        if at_once:
            return at_once
        wait = self._context.begin_wait()
        found = self._poll.poll(max(wait_s, 0) * 1000)
        if not found:
            self._waited_s = min(self._waited_s + wait.since_s(), WAIT_S_MAX)
        return [self._running[fd] for fd, _ in found if fd in self._running]

    def _until_s(self, until_s: float) -> float:
        """Returns when to look again if nothing happens before."""
        return min([until_s, *(one.phases.until_s for one in self._running.values())])

    def _end_late(self, now_s: float) -> None:
        """Ends attempts that were in one phase for too long."""
        for fd, running in list(self._running.items()):
            why = running.phases.late(now_s)
            if why:
                self._drop(fd, running.attempt)
                self._failed(running.peer, Fault.LATE, Unavailable(why), running.span)

    def _advance(self, running: _Running[T]) -> Found[T] | None:
        """Advances one attempt. Returns the result if it is complete."""
        attempt, clock_s = running.attempt, self._clock_s
        fd = attempt.fileno()
        try:
            if attempt.answer is None:
                attempt.advance()
        except Unavailable as error:
            self._drop(fd, attempt)
            if attempt.is_reused and not attempt.began:
                running.span.fail(error)
                running.span.end()
                self._begin(running.action, fresh=True)
            else:
                self._failed(running.peer, attempt.fault, error, running.span)
            return None
        running.phases.see(attempt.phase, clock_s())
        is_data = attempt.status == 200  # for other statuses only the end counts
        if is_data and (attempt.got_bytes or attempt.answer is not None) and not running.reported:
            running.reported = True
            self._request.listener.arrived({})
            self._plan.began(attempt.address, clock_s())
            self._context.health.began(attempt.address, clock_s() - running.begin_s)
        if attempt.answer is None:
            self._go_on(fd, running)
            return None
        self._drop(fd, attempt)
        size_bytes = len(attempt.answer.body)
        running.span.note({"http.response.status_code": attempt.status})
        running.span.note({"http.response.body.size": size_bytes})
        try:
            return self._answered(running, attempt.answer)
        finally:
            running.span.end()

    def _go_on(self, fd: int, running: _Running[T]) -> None:
        """Waits for the rest of an answer, unless what has come of its body is wrong."""
        attempt = running.attempt
        if attempt.status == 200 and attempt.got_bytes:
            self._plan.received(attempt.address, attempt.got_bytes, self._clock_s())
            try:
                running.check.came(attempt.body_so_far)
            except LodefsError as error:
                self._drop(fd, attempt)
                self._failed(running.peer, Fault.WRONG, error, running.span)
                return
        self._poll.register(attempt.fileno(), attempt.events)

    def _answered(self, running: _Running[T], answer: PeerAnswer) -> Found[T] | None:
        context, address, now_s = self._context, running.peer.address, self._clock_s()
        busy = _busy(answer)
        if busy is not None:
            members = {peer.address: peer for peer in context.members()}
            named = [members[one] for one in busy.addresses if one in members]
            self._counts.add(Counter.PEER_BUSY)
            self._plan.busy(address, named, busy.retry_after_s, now_s)
            return None
        if answer.status == 404:
            self._plan.lacking(address, now_s)
            return None
        if answer.status != 200:
            is_refused = answer.status in (401, 403)
            fault = Fault.REFUSING if is_refused else Fault.FAILING
            refusal = Unavailable(format_refusal(answer))
            self._failed(running.peer, fault, refusal, running.span)
            return None
        try:
            found = running.check.whole(answer.body)
        except LodefsError as error:
            self._failed(running.peer, Fault.WRONG, error, running.span)
            return None
        size_bytes = len(answer.body)
        context.health.served(address, size_bytes, now_s - running.begin_s, now_s)
        self._plan.won(address, now_s)
        self._counts.add(Counter.PEER_FETCHED_BYTES, size_bytes)
        wait_s = context.download.reserve(size_bytes, now_s)
        if wait_s > 0:
            time.sleep(wait_s)  # this thread requests nothing more until then
        return Found(found, running.peer, answer.headers)

    def _failed(self, peer: Peer, fault: Fault, error: LodefsError, span: Span = NO_SPAN) -> None:
        span.fail(error)
        span.end()
        context, address, now_s = self._context, peer.address, self._clock_s()
        why = str(error).removeprefix(f"peer {address}: ")
        log.debug("peer %s, asked for %s: %s", address, self._request.target, why)
        if fault is Fault.WRONG:
            self._counts.add(Counter.PEER_CORRUPT)
            context.health.wrong(address, now_s, why)
        else:
            self._counts.add(Counter.PEER_FAILED)
            if fault is Fault.REFUSING:
                self._counts.add(Counter.PEER_DENIED)
            context.health.failed(address, now_s, fault, why)
        self._plan.failed(address, now_s)
        self._tell_if_stopped()

    def _give_up(self, action: GiveUp) -> None:
        """Ends an attempt that is too slow: closes its connection, and counts it as failed if it is
        to blame."""
        address = action.address
        for fd, running in list(self._running.items()):
            if running.peer.address == address:
                now_s, attempt = self._clock_s(), running.attempt
                why = f"{attempt.got_bytes} bytes came in {now_s - running.begin_s:.2f} s"
                log.debug("peer %s is too slow for %s: %s", address, self._request.target, why)
                running.span.fail(Unavailable(why))
                running.span.end()
                self._counts.add(Counter.PEER_FAILED)
                if action.to_blame:
                    self._context.health.failed(address, now_s, Fault.LATE, why)
                self._drop(fd, running.attempt)
        self._tell_if_stopped()

    def _tell_if_stopped(self) -> None:
        if not any(one.reported for one in self._running.values()):
            self._request.listener.stopped()

    def _drop(self, fd: int, attempt: HttpAttempt) -> None:
        self._poll.unregister(fd)
        del self._running[fd]
        self._context.connections.end(attempt)
        self._tell_asked()

    def _tell_asked(self) -> None:
        asked = frozenset(one.peer.address for one in self._running.values())
        self._request.listener.asks(asked)


def _span_of(peer: Peer, target: str) -> Span:
    """Returns the span of one request to a peer
    (https://opentelemetry.io/docs/specs/semconv/http/http-spans/)."""
    host, port = split_address(peer.address)
    return begin_span(
        "peer.get",
        SpanKind.CLIENT,
        {
            "http.request.method": "GET",
            "server.address": host,
            "server.port": port,
            "url.path": target.partition("?")[0],
        },
    )


def format_refusal(answer: PeerAnswer) -> str:
    """Returns the text of an answer of 400 and more."""
    try:
        message = from_json(answer.body, wire.Failure).message
    except InvalidInput:
        message = bytes(answer.body[:200]).decode("utf-8", "backslashreplace")
    return f"{answer.status}: {message[:500]}"


def _busy(answer: PeerAnswer) -> wire.Busy | None:
    """Returns what an overloaded peer answers; None for any other answer, also for the 503 of one
    that is stopping."""
    if answer.status != 503 or answer.headers.get("content-type") != wire.MSGPACK:
        return None
    try:
        return from_msgpack(answer.body, wire.Busy)
    except InvalidInput:
        return None

"""Passes jobs on to the other nodes, over their peer endpoints: warming, fetches from a hub."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import DeadlineExceeded, Denied, InvalidInput, Unavailable
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.cache_control import WarmRequest, WarmStatus
from lodefs.chunkstore.protocol.http_head import encode_request
from lodefs.chunkstore.protocol.orders.hub_orders import HubOutcome, HubRequest
from lodefs.proxy.peers.client.context import PeerContext
from lodefs.proxy.peers.client.http_attempt import PeerAnswer
from lodefs.proxy.peers.client.phases import PhaseTimer
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.peers.membership.rendezvous import rank
from lodefs.proxy.runtime.thread_pools import Pool

T = TypeVar("T")

TIMEOUT_S = 8.0  # for one call; cluster_jobs.py gives it 10 s
RETRY_S = 5.0
ANSWER_SIZE_BYTES_MAX = 1024 * 1024


class PeerJobClient:
    """Jobs on the other nodes. Methods except the first raise errors.py's classes: those in
    the node's own answer, or Unavailable if there is none."""

    def __init__(self, context: PeerContext, pool: Pool) -> None:
        """``pool`` runs the calls that wait for a node."""
        self._context = context
        self._pool = pool

    def members(self) -> Sequence[str]:
        """Returns the addresses of all nodes except this one."""
        return self._context.others()

    def own(self) -> Sequence[str]:
        """Returns this node's addresses in the cluster."""
        return self._context.own_addresses()

    async def start(self, address: str, request: WarmRequest, job_id: str) -> str:
        """Begins a job with this id there, unless it has begun. Returns its id there. Raises:
        Unavailable, with a ``retry_after_s`` if the node answers that it cannot now."""
        body = msgspec.json.encode(request)
        target = f"{wire.PEER_WARM}?digest={digest_of(body).hex()}&job={job_id}"
        return (await self._pool.run(self._status, "POST", address, target, body)).id

    async def progress(self, address: str, job_id: str) -> WarmStatus:
        """Returns the progress of a job. Raises: NotFound."""
        return await self._pool.run(self._status, "GET", address, f"{wire.PEER_WARM}/{job_id}")

    async def cancel(self, address: str, job_id: str) -> None:
        """Ends a job. Raises: NotFound."""
        await self._pool.run(self._status, "DELETE", address, f"{wire.PEER_WARM}/{job_id}")

    def owner(self, key: bytes) -> str | None:
        """Returns the address of the node that owns a key, a digest; None if it is this one."""
        best = rank(self._context.members(), key, 1)
        own = self._context.own_addresses()
        return best[0].address if best and best[0].address not in own else None

    async def fetch_hub(self, address: str, request: HubRequest) -> HubOutcome:
        """Has a node fetch from the hub, and returns how far it is. Raises: NotFound if it does not
        do that."""
        body = msgspec.json.encode(request)
        target = f"{wire.PEER_HUB}?digest={digest_of(body).hex()}"
        return await self._pool.run(self._answer, "POST", address, target, body, HubOutcome)

    async def release(self, address: str, owner: str) -> None:
        """Ends all jobs and pins of an owner there."""
        target = f"{wire.PEER_WARM}/of/{owner}"
        await self._pool.run(self._answer, "DELETE", address, target, b"", dict[str, str])

    def _status(self, method: str, address: str, target: str, body: bytes = b"") -> WarmStatus:
        """Blocking."""
        return self._answer(method, address, target, body, WarmStatus)

    def _answer(self, method: str, address: str, target: str, body: bytes, kind: type[T]) -> T:
        """Blocking."""
        answer = self._ask(method, address, target, body)
        try:
            if answer.status < 400:
                return from_json(answer.body, kind)
            failure = from_json(answer.body, wire.Failure)
        except InvalidInput as error:
            raise Unavailable(f"peer {address} answers {answer.status} to {target}") from error
        found = wire.error_of(failure)
        if isinstance(found, Unavailable):
            found.retry_after_s = RETRY_S  # the node answers, but cannot do it now
        raise found

    def _ask(self, method: str, address: str, target: str, body: bytes) -> PeerAnswer:
        """Uses a connection of its own, since a request that may have been received must not be
        sent twice."""

        def request(to: str) -> bytes:
            signed = self._context.authenticator.sign(method, target, to=to)
            headers = [("Host", address), ("Content-Length", str(len(body))), *signed]
            return encode_request(method, target, headers, body)

        deadline_s = self._context.clock_s() + TIMEOUT_S
        connections = self._context.connections
        attempt = connections.begin(address, request, ANSWER_SIZE_BYTES_MAX, fresh=True)
        phases = PhaseTimer(attempt.phase, self._context.clock_s())
        try:
            while attempt.answer is None:
                now_s = self._context.clock_s()
                phases.see(attempt.phase, now_s)
                why = phases.late(now_s) or (
                    f"did not answer within {TIMEOUT_S:g} s" if now_s >= deadline_s else ""
                )
                if why:
                    raise DeadlineExceeded(f"peer {address}: {why}")
                poll = select.poll()
                poll.register(attempt.fileno(), attempt.events)
                if poll.poll(max(0.0, min(deadline_s, phases.until_s) - now_s) * 1000):
                    attempt.advance()
            return attempt.answer
        except Unavailable as error:
            if attempt.fault is Fault.REFUSING:
                raise Denied(str(error)) from error
            raise
        finally:
            connections.end(attempt)

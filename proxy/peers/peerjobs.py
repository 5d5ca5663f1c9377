"""Passing warm jobs on to the other nodes, over their peer doors."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence

import msgspec

from chunkstore import wire
from chunkstore.decoding import from_json
from chunkstore.errors import DeadlineExceeded, InvalidInput, Unavailable
from chunkstore.names import digest_of
from chunkstore.upkeep import WarmRequest, WarmStatus
from proxy.offload import Pool
from proxy.peers.attempt import PeerAnswer
from proxy.peers.auth import Authenticator
from proxy.peers.connections import Connections

TIMEOUT_S = 8.0  # for one call; warmcluster.py gives it 10 s
ANSWER_SIZE_BYTES_MAX = 1024 * 1024


class HttpPeerJobs:
    """proxy.warmcluster.PeerJobs over HTTP. ``others`` gives the addresses of the other nodes."""

    def __init__(
        self,
        others: Callable[[], Sequence[str]],
        connections: Connections,
        authenticator: Authenticator,
        pool: Pool,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pool`` runs what waits for a node."""
        self._others = others
        self._connections = connections
        self._authenticator = authenticator
        self._pool = pool
        self._clock_s = clock_s

    def members(self) -> Sequence[str]:
        """As of PeerJobs."""
        return self._others()

    async def start(self, address: str, request: WarmRequest) -> str:
        """As of PeerJobs."""
        body = msgspec.json.encode(request)
        target = f"{wire.PEER_WARM}?digest={digest_of(body).hex()}"
        return (await self._pool.run(self._status, "POST", address, target, body)).id

    async def progress(self, address: str, job_id: str) -> WarmStatus:
        """As of PeerJobs."""
        return await self._pool.run(self._status, "GET", address, f"{wire.PEER_WARM}/{job_id}")

    async def cancel(self, address: str, job_id: str) -> None:
        """As of PeerJobs."""
        await self._pool.run(self._status, "DELETE", address, f"{wire.PEER_WARM}/{job_id}")

    def _status(self, method: str, address: str, target: str, body: bytes = b"") -> WarmStatus:
        """Blocking."""
        answer = self._ask(method, address, target, body)
        try:
            if answer.status < 400:
                return from_json(answer.body, WarmStatus)
            failure = from_json(answer.body, wire.Failure)
        except InvalidInput as error:
            raise Unavailable(f"peer {address} answers {answer.status} to {target}") from error
        raise wire.error_of(failure)

    def _ask(self, method: str, address: str, target: str, body: bytes) -> PeerAnswer:
        """On a connection of its own: what may have been taken must not be sent twice."""

        def request() -> bytes:
            signed = self._authenticator.sign(method, target, to=address)
            headers = [("Host", address), ("Content-Length", str(len(body))), *signed]
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
            return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body

        deadline_s = self._clock_s() + TIMEOUT_S
        attempt = self._connections.begin(address, request, ANSWER_SIZE_BYTES_MAX, fresh=True)
        try:
            while attempt.answer is None:
                left_s = deadline_s - self._clock_s()
                if left_s <= 0:
                    raise DeadlineExceeded(f"peer {address} did not answer within {TIMEOUT_S:g} s")
                poll = select.poll()
                poll.register(attempt.fileno(), attempt.events)
                if poll.poll(left_s * 1000):
                    attempt.advance()
            return attempt.answer
        finally:
            self._connections.end(attempt)

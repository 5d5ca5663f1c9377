"""Warm jobs that another node passes on: ``/peers/warm`` of the peer door.

What authenticates a request covers its target alone, so the target of one with a body names the
body's BLAKE3.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import msgspec

from chunkstore import wire
from chunkstore.errors import Denied, NotFound
from chunkstore.names import digest_of
from chunkstore.upkeep import WarmRequest
from proxy.content import Answer, json_answer
from proxy.routes import parse_query
from proxy.upkeephandlers import parsed
from proxy.warmcluster import ClusterWarmer

_JOB = re.compile(rf"{wire.PEER_WARM}/([0-9a-f]{{16}})\Z")


def is_job(target: str) -> bool:
    """Whether a request target is one of a job."""
    path = target.partition("?")[0]
    return path == wire.PEER_WARM or path.startswith(f"{wire.PEER_WARM}/")


class JobDesk:
    """Answers other nodes that authenticated themselves. Used from the event loop alone."""

    def __init__(self, warmer: ClusterWarmer) -> None:
        self._warmer = warmer

    async def answer(
        self, method: str, target: str, body: Callable[[], Awaitable[bytes]]
    ) -> Answer:
        """Begins a job (POST), tells how far one is (GET), ends it (DELETE). InvalidInput,
        NotFound, Unavailable; Denied where the body is not the one that the target names."""
        path, _, raw_query = target.partition("?")
        if path == wire.PEER_WARM:
            data = await body()
            if digest_of(data).hex().encode() != parse_query(raw_query).get("digest"):
                raise Denied("the body is not the one that the request was signed for")
            request = msgspec.structs.replace(parsed(data, WarmRequest), all_nodes=False)
            return json_answer(await self._warmer.start(request), status=202)
        match = _JOB.match(path)
        if match is None:
            raise NotFound("no such path on the peer door")
        if method == "DELETE":
            return json_answer(await self._warmer.cancel(match[1]))
        return json_answer(await self._warmer.status(match[1]))

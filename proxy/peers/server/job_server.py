"""Warm jobs that another node passes on: ``/peers/warm`` of the peer door.

What authenticates a request covers its target alone, so the target of one with a body names the
body's BLAKE3.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import msgspec

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound
from lodefs.chunkstore.format.names import digest_of
from lodefs.chunkstore.nodeapi import wire
from lodefs.chunkstore.nodeapi.cache_control import OWNER, WarmRequest
from lodefs.proxy.api.control_handlers import parsed
from lodefs.proxy.api.responses import Answer, json_answer
from lodefs.proxy.api.routes import parse_query
from lodefs.proxy.warm.cluster_jobs import ClusterWarmer

_ID = re.compile(r"[0-9a-f]{16}\Z")
_OWNER = re.compile(rf"{wire.PEER_WARM}/of/({OWNER})\Z")
_JOB = re.compile(rf"{wire.PEER_WARM}/([0-9a-f]{{16}})\Z")


def is_job_target(target: str) -> bool:
    """Whether a request target is one of a job."""
    path = target.partition("?")[0]
    return path == wire.PEER_WARM or path.startswith(f"{wire.PEER_WARM}/")


class PeerJobServer:
    """Answers other nodes that authenticated themselves. Used from the event loop alone."""

    def __init__(self, warmer: ClusterWarmer) -> None:
        self._warmer = warmer

    async def answer(
        self, method: str, target: str, body: Callable[[], Awaitable[bytes]]
    ) -> Answer:
        """Begins a job (POST), once for each id that the target names; tells how far one is (GET),
        ends it (DELETE), or all of an owner. Raises: InvalidInput, NotFound, Unavailable; Denied
        if the body is not the one that the target names."""
        path, _, raw_query = target.partition("?")
        if path == wire.PEER_WARM:
            data = await body()
            query = parse_query(raw_query)
            if digest_of(data).hex().encode() != query.get("digest"):
                raise Denied("the body is not the one that the request was signed for")
            job_id = query.get("job", b"").decode("latin-1")
            if job_id and not _ID.match(job_id):
                raise InvalidInput("a job's id has 16 hex digits")
            request = msgspec.structs.replace(parsed(data, WarmRequest), all_nodes=False)
            return json_answer(await self._warmer.start(request, job_id or None), status=202)
        owner = _OWNER.match(path)
        if owner is not None and method == "DELETE":
            await self._warmer.release(owner[1], everywhere=False)
            return json_answer({})
        match = _JOB.match(path)
        if match is None:
            raise NotFound("no such path on the peer door")
        if method == "DELETE":
            return json_answer(await self._warmer.cancel(match[1]))
        return json_answer(await self._warmer.status(match[1]))

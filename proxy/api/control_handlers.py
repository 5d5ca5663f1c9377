"""Handlers of warming, pins and eviction. They know only the CacheControl of the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.nodeapi.cache_control import EvictRequest, WarmRequest
from lodefs.proxy.api import routes
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import Answer, json_answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.cache_control import CacheControl
from lodefs.proxy.node import Node

T = TypeVar("T")


class CacheControlHandlers:
    """Answers for one node. ``of`` has them by the kind of route."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.of: dict[str, Callable[[Route, Request], Awaitable[Answer]]] = {
            routes.WARM: self._warm,
            routes.WARM_JOB: self._warm_job,
            routes.PINS: self._pins,
            routes.EVICT: self._evict,
        }

    @property
    def _cache_control(self) -> CacheControl:
        found = self._node.cache_control
        if found is None:
            raise NotFound("this proxy has no cache to look after")
        return found

    async def _warm(self, _route: Route, request: Request) -> Answer:
        if request.method != "POST":
            return json_answer(await self._cache_control.warm_jobs())
        job = await self._cache_control.warm(parsed(request.body, WarmRequest))
        return json_answer(job, status=202, headers=[("Location", f"/warm/{job.id}")])

    async def _warm_job(self, route: Route, request: Request) -> Answer:
        job_id = route.path.decode()
        if request.method == "DELETE":
            return json_answer(await self._cache_control.cancel_warm(job_id))
        return json_answer(await self._cache_control.warm_status(job_id))

    async def _pins(self, _route: Route, _request: Request) -> Answer:
        return json_answer(await self._cache_control.pins())

    async def _evict(self, _route: Route, request: Request) -> Answer:
        return json_answer(await self._cache_control.evict(parsed(request.body, EvictRequest)))


def parsed(body: bytes, kind: type[T]) -> T:
    """A structure from JSON. InvalidInput says what is wrong where."""
    try:
        return from_json(body, kind)
    except InvalidInput as error:
        raise InvalidInput(f"the body is not as it should be: {error}") from error

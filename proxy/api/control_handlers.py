"""Handlers for warm jobs, pins and eviction. They use only the CacheControl of the node."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from lodefs.chunkstore.errors import Denied, InvalidInput, NotFound, Renamed
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol.cache_control import (
    OWNER,
    EvictRequest,
    PinView,
    WarmJobs,
    WarmRequest,
    WarmStatus,
)
from lodefs.proxy.api import disclosure, routes
from lodefs.proxy.api.request import Reader, Request
from lodefs.proxy.api.responses import Answer, json_answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.node import CacheControl, NodeService, no_job

T = TypeVar("T")


class CacheControlHandlers:
    """Answers for one node. ``of`` maps kinds of routes to handlers."""

    def __init__(self, node: NodeService) -> None:
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
            raise NotFound("this proxy has no cache to manage")
        return found

    async def _warm(self, _route: Route, request: Request) -> Answer:
        reader = request.reader
        if request.method != "POST":
            jobs = (await self._cache_control.warm_jobs()).jobs
            shown = [self._told(job, reader) for job in jobs if reader.may_read(job.repo)]
            return json_answer(WarmJobs(shown))
        wanted = parsed(request.body, WarmRequest)
        reader.check(wanted.repo)
        wanted = replace(wanted, owner=own_name(wanted.owner, reader))
        try:
            job = await self._cache_control.warm(wanted)
        except Renamed as error:
            if not reader.may_read(error.to):
                raise
            job = await self._cache_control.warm(replace(wanted, repo=error.to))
        return json_answer(job, status=202, headers=[("Location", f"/warm/{job.id}")])

    async def _warm_job(self, route: Route, request: Request) -> Answer:
        job_id = route.path.decode()
        if request.reader.is_limited:
            job = await self._cache_control.warm_status(job_id)
            if not request.reader.may_read(job.repo):
                raise no_job(job_id)
        if request.method == "DELETE":
            job = await self._cache_control.cancel_warm(job_id)
        else:
            job = await self._cache_control.warm_status(job_id)
        return json_answer(self._told(job, request.reader))

    def _told(self, job: WarmStatus, reader: Reader) -> WarmStatus:
        """Returns a job as its reader may see it, since its errors may say where the store is."""
        if not reader.is_limited:
            return job
        return disclosure.redacted_job(job, disclosure.places_of(self._node.status()))

    async def _pins(self, _route: Route, request: Request) -> Answer:
        view = await self._cache_control.pins()
        if request.reader.is_limited:
            pins = _shown(view.pins, request.reader)
            view = replace(view, pins=pins, pinned_bytes=sum(one.size_bytes for one in pins))
        return json_answer(view)

    async def _evict(self, _route: Route, request: Request) -> Answer:
        wanted, reader = parsed(request.body, EvictRequest), request.reader
        if wanted.repo is not None:
            reader.check(wanted.repo)
        elif reader.is_limited and not (wanted.pins_only and wanted.owner):
            raise Denied("access rules are set: name a repository, or evict as root")
        if wanted.owner is not None:
            wanted = replace(wanted, owner=own_name(wanted.owner, reader))
        view = await self._cache_control.evict(wanted)
        pins, held_by = _shown(view.pins, reader), _shown(view.held_by, reader)
        return json_answer(replace(view, pins=pins, held_by=held_by))


def own_name(owner: str, reader: Reader) -> str:
    """Returns the owner as pins name it. With access rules, each user has owners of their own,
    since names are easy to guess. Raises: InvalidInput for a name that is too long."""
    if not owner or not reader.is_limited:
        return owner
    own = f"{owner}.uid-{reader.uid}"
    if not re.fullmatch(OWNER, own):
        raise InvalidInput(f"the owner is too long once your user id is added: {own}")
    return own


def _shown(pins: list[PinView], reader: Reader) -> list[PinView]:
    """Returns the pins of repositories that the reader may see."""
    return [pin for pin in pins if reader.may_read(pin.repo)]


def parsed(body: bytes, kind: type[T]) -> T:
    """Returns a structure from JSON. Raises: InvalidInput, which says what is wrong and where."""
    try:
        return from_json(body, kind)
    except InvalidInput as error:
        raise InvalidInput(f"invalid request body: {error}") from error

"""Handlers: one method for each route, from a Request to an Answer. They use only the Node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound, Renamed, Unavailable
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.api import disclosure, openapi, responses, routes, views
from lodefs.proxy.api.control_handlers import CacheControlHandlers
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import Answer, failure_answer, json_answer, msgpack_answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.metrics import exposition
from lodefs.proxy.metrics.server_metrics import Metrics
from lodefs.proxy.node import NodeService, SnapshotFile

Handler = Callable[[Route, Request], Awaitable[Answer]]
HEADERS = (
    "Range",
    "If-Match",
    "If-None-Match",
    "If-Range",
    "Accept",
    "Authorization",
    "Cookie",
    "Host",
    "Origin",
    "Sec-Fetch-Site",
    "X-Forwarded-Proto",
    wire.PLACE_HEADER,
)


class Handlers:
    """The handlers of one server."""

    def __init__(
        self,
        node: NodeService,
        metrics: Metrics,
        *,
        version: str,
        status: Callable[[], dict[str, object]],
        stopping: Callable[[], bool],
        more: Mapping[str, Handler] | None = None,
    ) -> None:
        """``status`` returns the server's own fields for /status. ``more`` are handlers for routes
        outside the interface."""
        self._node = node
        self._names = node.names
        self._metrics = metrics
        self._version = version
        self._status = status
        self._stopping = stopping
        self._openapi = json_answer(openapi.document(version))
        self._of: dict[str, Handler] = {
            routes.FILES: self._files,
            routes.STAT: self._stat,
            routes.LIST: self._list,
            routes.TREES: self._tree,
            routes.SNAPSHOTS: self._snapshots,
            routes.NODE: self._entry,
            routes.CHILDREN: self._children,
            routes.LOOKUP: self._lookup,
            routes.DATA: self._data,
            routes.HEALTHZ: self._healthz,
            routes.READYZ: self._readyz,
            routes.METRICS: self._metrics_text,
            routes.STATUS: self._status_view,
            routes.OPENAPI: self._document,
            routes.CACHE: self._cache,
            routes.CACHE_USED: self._cache_used,
            **CacheControlHandlers(node).of,
            **(more or {}),
        }

    async def answer(self, route: Route, request: Request) -> Answer:
        """Returns the answer to a request for a route. Raises: errors.py's classes."""
        return await self._of[route.kind](route, request)

    async def _files(self, route: Route, request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        file = await self._names.file(snapshot, route.path)
        if not isinstance(file, SnapshotFile):
            raise NotFound(_no_file(route, file))
        fixed = snapshot.commit == route.rev
        caching = responses.IMMUTABLE if fixed else responses.REVALIDATE
        headers = responses.file_headers(file, responses.content_type(route.path), caching)
        headers += responses.FOREIGN_CONTENT
        return await self._file_answer(file, headers, request, routes.FILES, learn=fixed)

    async def _data(self, route: Route, request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        file = await self._names.file_by_ino(snapshot, route.ino)
        if not isinstance(file, SnapshotFile):
            raise InvalidInput(f"inode {route.ino} is not a file and has no data")
        headers = responses.file_headers(file, responses.OCTETS, responses.IMMUTABLE)
        return await self._file_answer(file, headers, request, routes.DATA, learn=True)

    async def _file_answer(
        self,
        file: SnapshotFile,
        headers: responses.Headers,
        request: Request,
        label: str,
        *,
        learn: bool,
    ) -> Answer:
        target = None
        if learn and request.method == "GET":
            target = responses.fast_path_target(file, headers, self._metrics, label)
        return await responses.file_answer(self._node.files, file, headers, request, target)

    async def _stat(self, route: Route, _request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        entry = await self._names.entry(snapshot, route.path)
        return json_answer(
            views.stat_view(snapshot, route.rev, route.path, entry),
            headers=_snapshot_headers(snapshot, route.rev),
        )

    async def _list(self, route: Route, _request: Request) -> Answer:
        after, limit = routes.page_of(route)
        snapshot = await self._names.snapshot(route.repo, route.rev)
        entry = await self._names.entry(snapshot, route.path)
        if entry.kind != Kind.DIRECTORY:
            raise NotADirectory(f"{_shown(route)} is not a directory: /stat/ shows what it is")
        page = await self._names.children(snapshot, entry.ino, after=after, limit=limit)
        view = views.list_view(snapshot, route.rev, route.path, page, limit)
        return json_answer(view, headers=_snapshot_headers(snapshot, route.rev))

    async def _tree(self, route: Route, _request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        entry = await self._names.entry(snapshot, route.path)
        if entry.kind != Kind.DIRECTORY:
            raise NotADirectory(f"{_shown(route)} is not a directory: /stat/ shows what it is")
        headers = [("Content-Type", responses.OCTETS), *responses.FOREIGN_CONTENT]
        headers += _snapshot_headers(snapshot, route.rev)
        return Answer(200, headers, await self._names.tree(snapshot, entry.ino))

    async def _snapshots(self, route: Route, request: Request) -> Answer:
        snapshot = await self._snapshot(route)
        headers = [*_snapshot_headers(snapshot, route.rev), ("Vary", "Accept")]
        if wire.MSGPACK in request.headers.get("Accept", ""):
            return msgpack_answer(snapshot, headers)
        return json_answer(views.snapshot_view(snapshot), headers=headers)

    async def _snapshot(self, route: Route) -> Snapshot:
        """Returns what a revision is now. Programs that fix a commit ask for it, so that this is
        also where a commit of Git is imported, if the node does that."""
        try:
            return await self._names.snapshot(route.repo, route.rev)
        except Renamed:
            raise
        except NotFound:
            if self._node.git is None or not route.rev.startswith("git:"):
                raise
        rev = await self._node.git.imported(route.repo, route.rev)
        return await self._names.snapshot(route.repo, rev)

    async def _entry(self, route: Route, _request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        return msgpack_answer(await self._names.by_ino(snapshot, route.ino))

    async def _children(self, route: Route, _request: Request) -> Answer:
        after, limit = routes.page_of(route)
        snapshot = await self._names.snapshot(route.repo, route.rev)
        return msgpack_answer(
            await self._names.children(snapshot, route.ino, after=after, limit=limit)
        )

    async def _lookup(self, route: Route, _request: Request) -> Answer:
        name = routes.checked_name(route.query.get("name", b""))
        if not name:
            raise InvalidInput("the query parameter 'name' is missing")
        snapshot = await self._names.snapshot(route.repo, route.rev)
        try:
            return msgpack_answer(await self._names.lookup(snapshot, route.ino, name))
        except NotFound as error:
            await self._names.by_ino(snapshot, route.ino)
            # It is certain that the directory has no such name only if the directory is known.
            # The commit's id says so, and a mount may remember it.
            return failure_answer(error, headers=[(wire.COMMIT_HEADER, snapshot.commit)])

    async def _healthz(self, _route: Route, _request: Request) -> Answer:
        return json_answer({"status": "ok"})

    async def _readyz(self, _route: Route, _request: Request) -> Answer:
        if self._stopping():
            raise Unavailable("the proxy is stopping")
        if self._node.status().get("ready", True) is False:
            raise Unavailable("the node cannot serve now: its store or cache does not answer")
        return json_answer({"status": "ready"})

    async def _metrics_text(self, _route: Route, request: Request) -> Answer:
        body, media = await self._metrics.scrape(request.headers.get("Accept", ""))
        if request.reader.is_limited:
            body = exposition.readable(body, request.reader.may_read)
        return Answer(200, [("Content-Type", media)], body)

    async def _status_view(self, _route: Route, request: Request) -> Answer:
        await self._node.look()
        own: dict[str, object] = {"version": self._version, **self._status()}
        node = self._node.status()
        if request.reader.is_limited:
            own, node = (disclosure.without_places(one) for one in (own, node))
        return json_answer({**own, "node": node})

    async def _cache(self, _route: Route, request: Request) -> Answer:
        place = self._node.cache_place()
        if place is None or request.reader.is_limited:
            raise NotFound("this proxy has no cache that others can read")
        return msgpack_answer(place)

    async def _cache_used(self, _route: Route, request: Request) -> Answer:
        try:
            report = from_msgpack(request.body, wire.UsageReport)
        except InvalidInput as error:
            raise InvalidInput(f"invalid usage report: {error}") from error
        await self._node.used(report)
        return Answer(204, [])

    async def _document(self, _route: Route, _request: Request) -> Answer:
        return self._openapi


def _snapshot_headers(snapshot: wire.Snapshot, rev: str) -> responses.Headers:
    caching = responses.IMMUTABLE if snapshot.commit == rev else responses.REVALIDATE
    return [(wire.COMMIT_HEADER, snapshot.commit), ("Cache-Control", caching)]


def _shown(route: Route) -> str:
    path = route.path.decode("utf-8", "backslashreplace")
    return f"{route.repo}@{route.rev}:{path}"


def _no_file(route: Route, entry: wire.Entry) -> str:
    if entry.kind == Kind.DIRECTORY:
        return f"{_shown(route)} is a directory: use /list/"
    target = entry.target.decode("utf-8", "backslashreplace")
    return f"{_shown(route)} is a symlink to {target!r}: the proxy does not follow symlinks"

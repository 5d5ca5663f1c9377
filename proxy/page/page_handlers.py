"""Handlers of the status page: its files, and the JSON for it alone."""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotADirectory, NotFound
from lodefs.chunkstore.format.names import check_revision
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.cache_control import EvictRequest
from lodefs.chunkstore.protocol.wire import CHILDREN_MAX, Snapshot
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.proxy.api import responses, routes
from lodefs.proxy.api.handlers import Handler
from lodefs.proxy.api.request import EVERYBODY, Request
from lodefs.proxy.api.responses import FOREIGN_CONTENT, Answer, json_answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.api.views import EntryView, entry_view
from lodefs.proxy.node import Names, NodeService, SnapshotFile
from lodefs.proxy.page import directory_view
from lodefs.proxy.page.live_feed import LiveFeed
from lodefs.proxy.page.previews import Previews
from lodefs.proxy.page.static_files import INDEX, StaticFiles

LIMIT_MAX = 200
LIMIT_DEFAULT = 50
MATCH_CHARS_MAX = 200
COUNTING_S_MAX = 10.0  # for counting what is cached of a dataset
_NUMBER = re.compile(rb"[1-9][0-9]{0,3}\Z")


class CachedView(msgspec.Struct, frozen=True):
    """The number of bytes of a dataset in this node's cache; null if counting takes too long."""

    repo: str
    commit: str
    cached_bytes: int | None


class PageHandlers:
    """Answers for one node. ``of`` maps kinds of routes to handlers."""

    def __init__(self, node: NodeService, live: LiveFeed) -> None:
        self._node = node
        self._names = node.names
        self._live = live
        self._static = StaticFiles()
        self._previews = Previews(node.files)
        self._counting = asyncio.Lock()
        self.of: dict[str, Handler] = {
            routes.PAGE: self._index,
            routes.PAGE_STATIC: self._file,
            routes.PAGE_EVENTS: self._events,
            routes.PAGE_SESSION: self._session,
            routes.PAGE_REPOSITORIES: self._repositories,
            routes.PAGE_REPOSITORY: self._repository,
            routes.PAGE_HISTORY: self._history,
            routes.PAGE_CHANGES: self._changes,
            routes.PAGE_CACHED: self._cached,
            routes.PAGE_PREVIEW: self._preview,
            routes.PAGE_IMAGE: self._image,
            routes.PAGE_FIND: self._find,
            routes.PAGE_DIRECTORY: self._directory,
            routes.PAGE_DATES: self._dates,
        }

    async def _index(self, _route: Route, request: Request) -> Answer:
        return self._static.answer(INDEX, request)

    async def _file(self, route: Route, request: Request) -> Answer:
        return self._static.answer(route.path, request)

    async def _session(self, _route: Route, request: Request) -> Answer:
        is_bearer = "Authorization" in request.headers
        return _fresh({"by_cookie": request.reader is not EVERYBODY and not is_bearer})

    async def _events(self, _route: Route, request: Request) -> Answer:
        headers = [("Content-Type", "text/event-stream"), _NO_STORE, responses.NOSNIFF]
        if request.method != "GET":
            return Answer(200, headers)
        events = self._live.listen(request.reader)
        return Answer(200, headers, pieces=events, first=await anext(events), is_endless=True)

    async def _repositories(self, route: Route, request: Request) -> Answer:
        match = _text(route, "match").casefold()
        may_read = request.reader.may_read
        page = await self._node.catalog.repositories(
            after=_text(route, "after"),
            limit=_limit(route),
            keep=lambda name: match in name.casefold() and may_read(name),
        )
        return _fresh(page)

    async def _repository(self, route: Route, _request: Request) -> Answer:
        return _fresh(await self._node.catalog.refs(route.repo))

    async def _history(self, route: Route, _request: Request) -> Answer:
        return _fresh(await self._node.catalog.log(route.repo, route.rev, _limit(route)))

    async def _changes(self, route: Route, _request: Request) -> Answer:
        since = _revision(route, "since")
        return _fresh(await self._node.catalog.changes(route.repo, route.rev, since))

    async def _directory(self, route: Route, _request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        view = await directory_view.directory(
            self._names,
            snapshot,
            route.rev,
            route.path,
            after=routes.checked_name(route.query.get("after", b"")),
            order=_text(route, "order"),
            limit=_limit(route),
        )
        return _fresh(view)

    async def _dates(self, route: Route, _request: Request) -> Answer:
        return _fresh(await self._node.catalog.last_changes(route.repo, route.rev, route.path))

    async def _cached(self, route: Route, _request: Request) -> Answer:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        control = self._node.cache_control
        if control is None:
            raise NotFound("this proxy has no cache")
        wanted = EvictRequest(route.repo, snapshot.commit, dry_run=True)
        cached_bytes: int | None = None
        try:
            async with asyncio.timeout(COUNTING_S_MAX), self._counting:
                found = await control.evict(wanted)
            cached_bytes = found.wanted_bytes + found.kept_bytes
        except (TimeoutError, LodefsError):
            pass
        return _fresh(CachedView(route.repo, snapshot.commit, cached_bytes))

    async def _preview(self, route: Route, _request: Request) -> Answer:
        since = _revision(route, "since")
        if since:
            before = await self._file_or_none(route, since)
            after = await self._file_or_none(route, route.rev)
            return _fresh(await self._previews.patch(before, after))
        file = await self._file_at(route)
        return _fresh(await self._previews.view(file, route.path.rpartition(b"/")[2]))

    async def _image(self, route: Route, request: Request) -> Answer:
        file = await self._file_at(route)
        header = await self._previews.image(file)
        headers = [*responses.file_headers(file, header.media, "private, max-age=3600")]
        headers += [*FOREIGN_CONTENT, ("Cross-Origin-Resource-Policy", "same-origin")]
        return await responses.file_answer(self._node.files, file, headers, request, None)

    async def _find(self, route: Route, _request: Request) -> Answer:
        match = _text(route, "match")
        if not match:
            raise InvalidInput("the query parameter 'match' (a part of a name) is missing")
        snapshot = await self._names.snapshot(route.repo, route.rev)
        return _fresh(await find(self._names, snapshot, route.path, match))

    async def _file_or_none(self, route: Route, rev: str) -> SnapshotFile | None:
        """Returns the file at the route's path in a version; None if there is none in it."""
        snapshot = await self._names.snapshot(route.repo, rev)
        try:
            file = await self._names.file(snapshot, route.path)
        except (NotFound, NotADirectory):
            return None
        return file if isinstance(file, SnapshotFile) else None

    async def _file_at(self, route: Route) -> SnapshotFile:
        snapshot = await self._names.snapshot(route.repo, route.rev)
        file = await self._names.file(snapshot, route.path)
        if not isinstance(file, SnapshotFile):
            raise NotFound("this is not a file and has no preview")
        return file


_NO_STORE = ("Cache-Control", "no-store")


def _fresh(value: object) -> Answer:
    """Returns JSON that only the page may use, without caching."""
    return json_answer(value, headers=[_NO_STORE, ("Cross-Origin-Resource-Policy", "same-origin")])


def _text(route: Route, name: str) -> str:
    text = route.query.get(name, b"").decode("utf-8", "replace")
    if len(text) > MATCH_CHARS_MAX:
        raise InvalidInput(f"{name} may have at most {MATCH_CHARS_MAX} characters")
    return text


def _revision(route: Route, name: str) -> str:
    """Returns a revision that is a query parameter, or "". Raises: InvalidInput."""
    text = _text(route, name)
    return check_revision(text) if text else ""


def _limit(route: Route) -> int:
    raw = route.query.get("limit", str(LIMIT_DEFAULT).encode())
    if not _NUMBER.match(raw) or int(raw) > LIMIT_MAX:
        raise InvalidInput(f"limit must be a number from 1 to {LIMIT_MAX}")
    return int(raw)


FOUND_MAX = 100
SEARCH_S_MAX = 3.0
DIRECTORIES_MAX = 200_000  # directories that wait to be searched


class FoundView(msgspec.Struct, frozen=True):
    """Entries whose names contain a text, with their whole paths as names. ``is_complete``: there
    are no others. ``looked_at``: how many names were compared."""

    entries: list[EntryView]
    is_complete: bool
    looked_at: int


async def find(names: Names, snapshot: Snapshot, below: bytes, text: str) -> FoundView:
    """Returns entries below a directory whose name contains ``text``, nearest first, as far as a
    bounded time allows; ignores case. Raises: NotFound, NotADirectory."""
    ends_s = time.monotonic() + SEARCH_S_MAX
    wanted = text.casefold()
    found: list[EntryView] = []
    looked_at = 0
    waiting = deque([((await names.entry(snapshot, below)).ino, below)])
    while waiting:
        ino, path = waiting.popleft()
        after = b""
        more = True
        while more:
            if time.monotonic() > ends_s or len(found) >= FOUND_MAX:
                return FoundView(found, is_complete=False, looked_at=looked_at)
            page = await names.children(snapshot, ino, after=after, limit=CHILDREN_MAX)
            for node in page.nodes:
                at = path + b"/" + node.name if path else node.name
                if _matches(node, wanted) and len(found) < FOUND_MAX:
                    found.append(_shown(snapshot, at, node))
                if node.kind == Kind.DIRECTORY and len(waiting) < DIRECTORIES_MAX:
                    waiting.append((node.ino, at))
            looked_at += len(page.nodes)
            more = page.more
            after = page.nodes[-1].name if page.nodes else after
    return FoundView(found, is_complete=True, looked_at=looked_at)


def _matches(node: Entry, wanted: str) -> bool:
    return wanted in node.name.decode("utf-8", "replace").casefold()


def _shown(snapshot: Snapshot, path: bytes, node: Entry) -> EntryView:
    view = entry_view(snapshot.repo, snapshot.commit, path, node)
    return msgspec.structs.replace(view, name=path.decode("utf-8", "replace"))

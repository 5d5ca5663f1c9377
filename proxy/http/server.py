"""The HTTP server: connections and their limits, and how an Answer is sent.

aiohttp parses and frames HTTP; only this file and http_request.py use it. routes.py and handlers.py
decide the answers; fast_path.py answers plain hits before aiohttp sees them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from time import monotonic, perf_counter

from aiohttp import web
from multidict import CIMultiDict

from lodefs.chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    Renamed,
    Unavailable,
)
from lodefs.chunkstore.protocol.wire import ORIGIN_HEADER
from lodefs.proxy.api import disclosure, responses, routes
from lodefs.proxy.api.fast_path import FastPath, PlainGet
from lodefs.proxy.api.handlers import Handlers
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.response_slots import AnswerPlace, ResponseSlots
from lodefs.proxy.api.responses import SERVER, Answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.http import http_request, login
from lodefs.proxy.http.acceptor import Acceptor, last_answer
from lodefs.proxy.http.admission import SPARES_MAX, Admission, ClientLimits, connections_by_endpoint
from lodefs.proxy.http.connection import SWEEP_INTERVAL_S, Connection
from lodefs.proxy.http.endpoint import Endpoint, admit, needs_token
from lodefs.proxy.http.http_request import (
    all_headers,
    asked_headers,
    body_of,
    content_of,
    is_plain,
    scope_headers,
)
from lodefs.proxy.http.mount_reads import MountReads
from lodefs.proxy.http.token_watch import TokenWatch
from lodefs.proxy.hub.hub_handlers import HubHandlers
from lodefs.proxy.lfs.lfs_handlers import LfsHandlers
from lodefs.proxy.metrics.server_metrics import NO_SOURCE, MetricInputs, Metrics, Use
from lodefs.proxy.node import NodeService
from lodefs.proxy.page.live_feed import LiveFeed
from lodefs.proxy.page.page_handlers import PageHandlers
from lodefs.proxy.peers.server import PEERS, PeerServer
from lodefs.proxy.runtime.thread_pools import current_owner, is_remote, remote_owner
from lodefs.proxy.s3.errors import S3Error, error_answer
from lodefs.proxy.s3.hot_objects import HotObjects
from lodefs.proxy.s3.service import LABEL, S3Service
from lodefs.proxy.tracing.request_scope import (
    ID_HEADER,
    current_request,
    serving,
)
from lodefs.proxy.tracing.spans import Span

OWNER_ANSWERS_MANY = 8  # concurrent answers in pieces, for one owner on TCP
_FULL = last_answer(503, "Unavailable", "the proxy has too many clients")
_log = logging.getLogger("lodefs.proxy")


class EndpointServer(web.Server):
    """One endpoint that is being served: aiohttp's server for it, its limits and its metrics."""

    def __init__(self, server: ProxyServer, endpoint: Endpoint, connections_max: int) -> None:
        self.server = server
        self.endpoint = endpoint
        spares_max = SPARES_MAX if endpoint.kind in ("unix", "tcp") else 0
        self.admission: Admission[Connection] = Admission(connections_max, spares_max)
        self.figures = server.metrics.endpoint(endpoint.kind)
        self.figures.connected.append(self.admission)
        self.streams = 0
        super().__init__(lambda request: server.handle(self, request))
        self.s3: S3Service | None = None
        self.hot_objects: HotObjects | None = None
        if endpoint.s3 is not None:
            self.s3 = S3Service(server.node, endpoint.s3, endpoint.tokens, server.metrics)
            self.hot_objects = HotObjects(self.s3, server.fast_path)
        self.acceptor = Acceptor(endpoint.listener, self._take, refusal=_FULL, tls=endpoint.tls)

    def __call__(self) -> Connection:
        return Connection(self, self._loop)

    @property
    def has_room(self) -> bool:
        """Whether one more request may be answered."""
        return not self.server.stopping and self.streams < self.server.limits.streams_max

    def begin_stream(self) -> None:
        """Counts a request that is answered from now on."""
        self.streams += 1
        self.figures.streams += 1

    def end_stream(self) -> None:
        """Counts it as answered."""
        self.streams -= 1
        self.figures.streams -= 1

    def _take(self) -> Connection | None:
        """Returns a new connection, if there is room for it."""
        if self.server.stopping or not self.admission.make_room():
            self.figures.connections_refused += 1
            return None
        connection = self()
        connection.is_spare = self.admission.add(connection)
        return connection


class ProxyServer:
    """Serves a Node on its endpoints, from start to stop."""

    def __init__(
        self,
        node: NodeService,
        *,
        version: str,
        store: str = "",
        metric_inputs: MetricInputs | None = None,
        limits: ClientLimits | None = None,
        hot_path: bool = True,
        on_sweep: Callable[[], None] = lambda: None,
    ) -> None:
        """``store`` is the URL in /status. ``on_sweep`` is called about once a second (for a
        watchdog)."""
        self.limits = limits or ClientLimits()
        inputs = metric_inputs or MetricInputs()
        self.metrics = Metrics(version, node.status, node.counts, inputs)
        self._tracer = inputs.tracer
        self.places = ResponseSlots()
        self.fast_path = FastPath(
            node.files,
            self.metrics,
            closing=lambda: self._closing_lines,
            places=self.places,
            enabled=hot_path,
        )
        self.mount_reads = MountReads(
            node.files, self.metrics, self.places, self._tracer, lambda: self._closing_lines
        )
        self.tick = 0  # counts the sweeps
        self.stopping = False
        self._date = formatdate(usegmt=True)
        self._closing_lines = b""
        self._set_date()
        self._on_sweep = on_sweep
        self.node = node
        self._store = store
        self._live = LiveFeed(
            node,
            lambda: {"version": version, **self._figures()},
            mounts_directories=inputs.mounts_directories,
        )
        self._handlers = Handlers(
            node,
            self.metrics,
            version=version,
            status=self._figures,
            stopping=lambda: self.stopping,
            more={
                **PageHandlers(node, self._live).of,
                **HubHandlers(node, self.metrics).of,
                **LfsHandlers(node).of,
            },
        )
        self._endpoints: list[EndpointServer] = []
        self._sending: Counter[str] = Counter()  # answers in pieces under way, by owner
        self._all_gone = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None
        self.tokens = TokenWatch(())

    async def start(self, endpoints: list[Endpoint]) -> None:
        """Begins to serve on sockets that listen already."""
        loop = asyncio.get_running_loop()
        limits = self.limits
        are_local = [endpoint.is_local for endpoint in endpoints]
        sockets_max = limits.sockets_max
        if sockets_max is not None:
            sockets_max -= SPARES_MAX * len(endpoints)
        room = connections_by_endpoint(limits.connections_max, are_local, sockets_max)
        for endpoint, connections_max in zip(endpoints, room, strict=True):
            if connections_max < limits.connections_max:
                _log.warning(
                    "%s takes %d connections, not %d (connections_max): the limit of open files "
                    "is too low (ulimit -n)",
                    endpoint, connections_max, limits.connections_max,
                )  # fmt: skip
            self._endpoints.append(EndpointServer(self, endpoint, connections_max))
        for served in self._endpoints:
            served.acceptor.start()
        self._note_files()
        self.tokens = TokenWatch(endpoints)
        self.tokens.start()
        self._sweeper = loop.create_task(self._sweep_forever())

    async def stop(self, timeout_s: float, *, close_endpoints: bool = True) -> None:
        """Stops accepting, lets running answers end within ``timeout_s``, then closes everything.
        ``close_endpoints`` False leaves the listening sockets open for another server."""
        self.stopping = True
        self._live.close()
        ends_s = monotonic() + timeout_s
        for served in self._endpoints:
            served.acceptor.stop(close=close_endpoints)
            served.pre_shutdown()
        # aiohttp waits for an answer for the given time, and then once more
        await asyncio.gather(*(served.shutdown(timeout_s / 2) for served in self._endpoints))
        if self.connections:  # bytes of finished answers may still be on their way
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), max(0.0, ends_s - monotonic()))
        for connection in self.connections:
            connection.cut()
        await self.tokens.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    @property
    def use(self) -> Use:
        """The number of requests so far, and whether one is under way."""
        cache_control = self.node.cache_control
        busy = self.metrics.total("streams") > 0 or (
            cache_control is not None and cache_control.is_busy
        )
        return Use(self.metrics.requests(), busy)

    @property
    def connections(self) -> list[Connection]:
        return [connection for served in self._endpoints for connection in served.admission]

    def forget(self, served: EndpointServer, connection: Connection) -> None:
        served.admission.forget(connection)
        if self.stopping and not any(len(one.admission) for one in self._endpoints):
            self._all_gone.set()

    async def _sweep_forever(self) -> None:
        while True:
            due_s = monotonic() + SWEEP_INTERVAL_S
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.metrics.loop_lag_s.add(max(0.0, monotonic() - due_s))
            self.sweep()

    def sweep(self) -> None:
        """Once a second: updates the date, and ends connections that idle or do not read."""
        self.tick += 1
        self.places.look()
        self._set_date()
        self._note_files()
        self._live.tick()
        for served in self._endpoints:
            if served.endpoint.local_readers is not None:
                served.endpoint.local_readers.look()
        for connection in self.connections:
            if connection.is_late:
                connection.give_way()
        self._on_sweep()

    def _note_files(self) -> None:
        for served in self._endpoints:
            if served.endpoint.certificate is not None:
                served.figures.certificate_end_s = served.endpoint.certificate.expires_s
        self.metrics.tokens_stale = any(one.problem for one in self.tokens.taken)

    def _set_date(self) -> None:
        self._date = formatdate(usegmt=True)
        lines = "".join(f"{name}: {value}\r\n" for name, value in (SERVER, ("Date", self._date)))
        self._closing_lines = f"{lines}\r\n".encode()

    def _figures(self) -> dict[str, object]:
        return {
            "store": self._store,
            "connections": self.metrics.total("connections"),
            "streams": self.metrics.total("streams"),
            "requests": self.metrics.requests(),
            "sent_bytes": self.metrics.sent_bytes(),
            "hot_answers": self.metrics.fast_answers,
            "tokens": self.tokens.taken,
        }

    async def handle(self, served: EndpointServer, request: web.BaseRequest) -> web.StreamResponse:
        """Answers one request that aiohttp parsed."""
        with serving(scope_headers(request), self._tracer) as scope:
            return await self._handle(served, request, scope.span)

    async def _handle(
        self, served: EndpointServer, request: web.BaseRequest, span: Span
    ) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        plain_get = connection.plain_get_of(request)
        started = perf_counter()
        served.begin_stream()
        blocks = connection.blocks
        generation = blocks.generation  # tokens may change while the answer is made
        try:
            if served.s3 is not None:
                answer = await self._of_s3(served.s3, served, connection, request)
                label = LABEL
            else:
                label, answer = await self._answer(served, connection, request)
            if span.is_recorded:
                path = _logged(request.raw_path)
                http_request.describe(span, request.method, path, label, answer)
            if served.hot_objects is not None:
                served.hot_objects.learn(request.raw_path, all_headers(request), answer)
            elif plain_get and is_plain(request, answer, plain_get):
                self._learn(connection, plain_get, answer, generation)
            first_s = perf_counter() - started
            response = await self._send(request, answer)
        finally:
            served.end_stream()
            connection.answered()
        elapsed_s = perf_counter() - started
        sent_bytes = len(answer.body) if answer.pieces is None else answer.size_bytes
        self.metrics.answered(
            label, answer.status, answer.source, sent_bytes, first_s=first_s, elapsed_s=elapsed_s
        )
        _log.debug(
            "%s %s",
            request.method,
            _logged(request.raw_path),
            extra={"status": answer.status, "elapsed_s": round(elapsed_s, 6)},
        )
        return response

    def _learn(
        self, connection: Connection, plain_get: PlainGet, answer: Answer, generation: int
    ) -> None:
        """Tells the paths that do without aiohttp of an answer to a plain request."""
        blocks, owner = connection.blocks, current_owner.get()
        if answer.target is not None:
            self.fast_path.learn(plain_get, answer.target)
            named = owner if owner != connection.owner else ""
            blocks.add(plain_get.headers, answer.target.repo, generation, owner=named)
        elif answer.places_of and connection.takes_mount_reads and self.fast_path.enabled:
            self.mount_reads.learn(plain_get, answer.places_of, blocks, generation)

    async def _answer(
        self, served: EndpointServer, connection: Connection, request: web.BaseRequest
    ) -> tuple[str, Answer]:
        """Returns the route's label, and the answer with its first piece: errors up to then become
        a status."""
        endpoint = served.endpoint
        route = routes.route_of(request.raw_path)
        label = routes.OTHER
        current_owner.set(connection.owner_of(request))
        try:
            takes_content = route.takes_content(request.method)
            if request.body_exists and not (route.body_bytes_max or takes_content):
                refused = InvalidInput("a request must have no body here")
                return label, responses.failure_answer(refused, close=True)
            if request.method not in route.methods:
                allowed = ", ".join(route.methods)
                return label, responses.method_not_allowed(request.method, allowed)
            if not route.is_always_answered and (full := self._refusal(served, connection)):
                return label, full
            if endpoint.peer_server is not None and not route.is_health:
                label = PEERS
                return label, await self._of_peer(endpoint.peer_server, connection, request, route)
            if route.error is not None:
                raise route.error
            label = route.kind
            is_tls = endpoint.tls is not None
            asked = Request(request.method, asked_headers(request), is_tls=is_tls)
            reader = admit(endpoint, route, asked, connection.reader)
            if isinstance(reader, Answer):
                return label, reader
            if needs_token(endpoint, route):
                connection.allowed()
            if reader.name:
                current_owner.set(remote_owner(reader.name))
            content = self._counted(label, content_of(request)) if takes_content else None
            body = await self._body(label, route, request)
            asked = replace(asked, reader=reader, body=body, content=content)
            return label, await self._admitted(endpoint, route, asked)
        except Exception as error:  # noqa: BLE001 - the last line of defence; the log has it
            return label, responses.failed(error, _logged(request.raw_path))

    async def _body(self, label: str, route: Route, request: web.BaseRequest) -> bytes:
        if request.method != "POST":
            return b""
        body = await body_of(request, route.body_bytes_max)
        self.metrics.received_bytes[label] += len(body)
        return body

    async def _counted(self, label: str, content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in content:
            self.metrics.received_bytes[label] += len(piece)
            yield piece

    def _refusal(self, served: EndpointServer, connection: Connection) -> Answer | None:
        """Returns the answer to a client for whom there is no room."""
        if connection.is_spare:
            served.figures.connections_refused += 1
            full = Unavailable("the proxy has too many clients")
            return responses.failure_answer(full, close=True)
        if served.streams > self.limits.streams_max:
            served.figures.streams_refused += 1
            busy = Unavailable("the proxy has too many requests at once")
            return responses.failure_answer(busy)
        return None

    async def _admitted(self, endpoint: Endpoint, route: Route, asked: Request) -> Answer:
        if route.kind in (routes.PAGE_LOGIN, routes.PAGE_LOGOUT):
            return login.answer(endpoint.tokens, route, asked, is_tls=endpoint.tls is not None)
        try:
            return await self._by_name_of_today(route, asked)
        except LodefsError as error:
            if not asked.reader.is_limited:
                raise
            raise disclosure.redacted(error, disclosure.places_of(self.node.status())) from error

    async def _by_name_of_today(self, route: Route, asked: Request) -> Answer:
        """Returns the answer; for a renamed repository by its new name, if the client may read
        that. The fast path does not learn it, since it would not notice later changes."""
        try:
            return await self._handlers.answer(route, asked)
        except Renamed as error:
            if not (route.repo and asked.reader.may_read(error.to)):
                raise
            answer = await self._handlers.answer(replace(route, repo=error.to), asked)
            return replace(answer, target=None)

    async def _of_s3(
        self,
        s3: S3Service,
        served: EndpointServer,
        connection: Connection,
        request: web.BaseRequest,
    ) -> Answer:
        """Returns the answer to an S3 client, with its first piece."""
        path = request.raw_path
        current_owner.set(connection.owner)
        try:
            if served.streams > self.limits.streams_max:
                served.figures.streams_refused += 1
                raise Unavailable("the proxy has too many requests at once")
            headers = all_headers(request)
            answer = await s3.answer(request.method, path, headers, connection.allowed)
            return replace(answer, close=answer.close or request.body_exists)
        except LodefsError as error:
            return error_answer(error, path)
        except TimeoutError:
            late = DeadlineExceeded("the answer took too long")
            return error_answer(late, path)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("request failed: %s", _logged(path))
            inside = S3Error("InternalError", "an error inside the proxy; its log says more")
            return error_answer(inside, path, close=True)

    async def _of_peer(
        self,
        peer_server: PeerServer,
        connection: Connection,
        request: web.BaseRequest,
        route: Route,
    ) -> Answer:
        """Returns the answer to another node, with its first piece."""
        if self.stopping:
            raise Unavailable("the proxy is stopping")
        try:
            answer = await peer_server.answer(
                request.method,
                request.raw_path,
                request.headers,
                lambda: body_of(request, route.body_bytes_max),
                at=connection.place,
            )
        except Denied:
            raise
        except LodefsError:
            connection.allowed()
            raise
        connection.allowed()
        if answer.pieces is not None:
            return replace(answer, first=await anext(answer.pieces))
        return answer

    def _place_of(self, answer: Answer) -> AnswerPlace:
        """Returns the slot of an answer; only answers with bytes of a file count as reads of the
        owner."""
        owner = current_owner.get()
        if answer.source == NO_SOURCE:
            return AnswerPlace(self.places, owner, 0)
        self.places.see(owner)
        return AnswerPlace(self.places, owner, answer.size_bytes)

    async def _send(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        """Sends an answer. If a body cannot be completed, it breaks the connection."""
        headers = CIMultiDict([*answer.headers, SERVER, ("Date", self._date)])
        first, pieces = answer.first, answer.pieces
        if answer.origin is not None:
            headers[ORIGIN_HEADER] = answer.origin
        scope = current_request.get()
        if scope is not None and scope.is_named:
            headers[ID_HEADER] = scope.id
        place = self._place_of(answer)
        owner = current_owner.get()
        if pieces is None:
            response = web.Response(status=answer.status, headers=headers, body=answer.body)
            if answer.close:
                response.force_close()
            return await _sent(request, response)
        stream = web.StreamResponse(status=answer.status, headers=headers)
        self._sending[owner] += 1
        try:
            await place.enter()
            if len(first) == answer.size_bytes:  # one write without streaming sends all of it
                await pieces.aclose()
                whole = web.Response(status=answer.status, headers=headers, body=first)
                return await _sent(request, whole)
            self._bound(request, is_wary=getattr(pieces, "is_wary", False))
            await stream.prepare(request)
            await stream.write(first)
            await _drained(request)
            sent_bytes = len(first)
            async for piece in pieces:
                await place.enter()
                await stream.write(piece)
                await _drained(request)
                sent_bytes += len(piece)
            if sent_bytes != answer.size_bytes and not answer.is_endless:
                raise Corrupt(
                    f"The answer has {sent_bytes} bytes, not the {answer.size_bytes} announced"
                )
        except ConnectionError:
            _cut(request)  # the client has gone, or was cut
        except Exception as error:  # noqa: BLE001 - whatever it was, the body is not complete
            self.metrics.broken_bodies += 1
            _log.error("an answer failed: %s: %r", _logged(request.raw_path), error)
            if scope is not None:
                scope.span.fail(error)
            _cut(request)
        finally:
            place.leave()
            self._sending[owner] -= 1
            if not self._sending[owner]:
                del self._sending[owner]
            await pieces.aclose()
        return stream

    def _bound(self, request: web.BaseRequest, *, is_wary: bool) -> None:
        """Limits the bytes that wait for a client that may not read, if its owner has many such
        answers, since they take everybody's memory and time of the event loop. ``is_wary``: the
        reader of the file has found that already."""
        owner = current_owner.get()
        if is_wary or (is_remote(owner) and self._sending[owner] > OWNER_ANSWERS_MANY):
            connection = request.protocol
            assert isinstance(connection, Connection)
            connection.bound_unsent()


async def _drained(request: web.BaseRequest) -> None:
    """Returns when the client of a bounded connection has read on; aiohttp waits for that only
    after every 64 KiB."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    if connection.is_bounded:
        await connection.drained()


async def _sent(request: web.BaseRequest, response: web.Response) -> web.Response:
    """Sends a response of one piece, and returns when the client has taken almost all of it.
    aiohttp would send it after it no longer counts as a stream, and many unread ones would take
    much memory."""
    try:
        await response.prepare(request)
        await response.write_eof()
    except ConnectionError:
        _cut(request)  # the client has gone, or was cut
    return response


def _logged(raw_path: str) -> str:
    """Returns a target for logs, without its query: that of a presigned URL contains
    credentials."""
    return raw_path.partition("?")[0]


def _cut(request: web.BaseRequest) -> None:
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.cut()

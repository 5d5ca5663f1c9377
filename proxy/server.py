"""The HTTP server: connections and their limits, and how an Answer is sent.

aiohttp parses and frames HTTP; this is the one file that knows it. What to answer is decided by
routes.py and handlers.py; plain hits are taken out before aiohttp sees them, by hot.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import formatdate
from time import perf_counter
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from multidict import CIMultiDict

from chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    InvalidInput,
    LodefsError,
    Unavailable,
)
from chunkstore.objects import Buffer
from chunkstore.wire import ORIGIN_HEADER
from proxy import failures, origins, routes
from proxy.content import SERVER, Answer
from proxy.doors import Door, refusal
from proxy.handlers import HEADERS, Handlers
from proxy.hot import HotPath, Question, parse_question
from proxy.metrics import Metrics, StoreCalls
from proxy.node import Node
from proxy.peers.desk import PEERS, PeerDesk
from proxy.request import Request
from proxy.unused import Use

SWEEP_INTERVAL_S = 1.0
HEADER_LINE_BYTES_MAX = 8190
HEADERS_MAX = 64
BODY_TIMEOUT_S = 10.0  # until its body is there
_NEVER_S = 86400.0 * 30  # aiohttp's own keep-alive timer; the sweep does its work
_FULL_BODY = b'{"error":"Unavailable","message":"the proxy has too many clients"}'
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 2\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_FULL_BODY), _FULL_BODY)
)
_log = logging.getLogger("lodefs.proxy")


@dataclass(frozen=True, slots=True)
class Limits:
    """What clients may take."""

    connections_max: int = 4096
    streams_max: int = 512
    idle_timeout_s: float = 120.0
    write_timeout_s: float = 60.0


class Connection(web.RequestHandler):
    """One client's connection: aiohttp's, with the hot path before it and limits around it."""

    __slots__ = (
        "_asked",
        "_door",
        "_fd",
        "_half_read",
        "_last_tick",
        "_server",
        "_wire",
        "paused_tick",
    )

    def __init__(self, manager: _DoorServer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            manager,
            loop=loop,
            keepalive_timeout=_NEVER_S,
            lingering_time=0,
            access_log=None,  # type: ignore[arg-type] # aiohttp's own way to turn it off
            max_line_size=HEADER_LINE_BYTES_MAX,
            max_field_size=HEADER_LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        self._server = manager.server
        self._door = manager.door
        self._wire: asyncio.Transport | None = None  # stays while aiohttp's is closing
        self._fd = -1
        self._half_read = False
        self._last_tick = self._server.tick  # when a request was last begun or answered
        self.paused_tick = -1  # since when the client does not read; -1 while it does
        self._asked: tuple[object, Question] | None = None  # the last plain message, as it came

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the client in, or tell it that there are too many."""
        server = self._server
        transport = cast("asyncio.Transport", transport)
        if len(server.connections) >= server.limits.connections_max or server.stopping:
            server.metrics.connections_refused += 1
            transport.write(_FULL)
            transport.close()
            self._force_close = True
            return
        server.connections.add(self)
        server.metrics.connections = len(server.connections)
        self._wire = transport
        self._fd = transport.get_extra_info("socket").fileno()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._server.forget(self)
        self._wire = None
        if self.paused_tick >= 0:
            self.paused_tick = -1
            self._server.hot.unsent_connections -= 1
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than we write."""
        self.paused_tick = self._server.tick
        self._server.hot.unsent_connections += 1
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has read what was waiting."""
        if self.paused_tick >= 0:
            self._server.hot.unsent_connections -= 1
        self.paused_tick = -1
        super().resume_writing()

    async def _drain_helper(self) -> None:
        try:
            await super()._drain_helper()
        except ConnectionError as error:
            # It comes out of a future that aiohttp's frame holds: with that frame in its traceback
            # it would keep itself, and what was being sent, until the collector of cycles comes.
            raise error.with_traceback(None)  # noqa: B904 - the same error

    def data_received(self, data: bytes) -> None:
        """Answer a plain hit here and now; give everything else to aiohttp."""
        transport = self.transport
        question = None
        if not (self._half_read or self._messages or self._close):
            question = parse_question(data)
            if (
                question is not None
                and self.idle
                and transport is not None
                and not transport.get_write_buffer_size()
                and self._server.hot.answer(question, self._door.blocks, transport, self._fd)
            ):
                self._last_tick = self._server.tick
                return
        if data:  # aiohttp calls this with b"" to have what it holds parsed
            self._half_read = not data.endswith(b"\r\n\r\n")
        super().data_received(data)
        if question is not None and len(self._messages) == 1:
            self._asked = (self._messages[0][0], question)

    def question_of(self, request: web.BaseRequest) -> Question | None:
        """The question whose bytes this very request came as, if the hot path may learn it."""
        asked = self._asked
        return asked[1] if asked is not None and asked[0] is request._message else None

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what aiohttp could not parse, or to a mistake in this file."""
        if status >= 500:
            _log.error("request failed: %r", exc)
            return _whole(failures.internal_error())
        if isinstance(exc, LineTooLong):  # aiohttp's message would repeat what came
            status = 431
            error = InvalidInput(f"the URL or a header has more than {HEADER_LINE_BYTES_MAX} bytes")
        else:
            first_line = (message or "").strip().partition("\n")[0][:200]
            error = InvalidInput(f"the request is not HTTP as it should be: {first_line}")
        answer = failures.failure_answer(error, status=status, close=True)
        self._server.metrics.counter(routes.OTHER, status).add(
            elapsed_s=0.0, sent_bytes=len(answer.body)
        )
        return _whole(answer)

    @property
    def idle(self) -> bool:
        """Whether aiohttp waits for the next request, and nothing else is going on."""
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    @property
    def quiet_ticks(self) -> int:
        """For how long no request was answered; 0 while one is. Bytes that make no request do
        not count as life."""
        return self._server.tick - self._last_tick if self.idle else 0

    def answered(self) -> None:
        """A request has been answered."""
        self._last_tick = self._server.tick

    def cut(self) -> None:
        """End the connection now; what is not yet sent is lost, and the client sees that."""
        if self._wire is not None:
            self._wire.abort()


def _whole(answer: Answer) -> web.Response:
    """An answer that ends its connection, in one piece."""
    headers = CIMultiDict([*answer.headers, SERVER])
    response = web.Response(status=answer.status, headers=headers, body=answer.body)
    response.force_close()
    return response


class _DoorServer(web.Server):
    """aiohttp's server of one door."""

    def __init__(self, server: ProxyServer, door: Door) -> None:
        self.server = server
        self.door = door
        super().__init__(lambda request: server.handle(door, request))

    def __call__(self) -> Connection:
        return Connection(self, self._loop)


class ProxyServer:
    """Serves a Node on its doors, from start to stop."""

    def __init__(
        self,
        node: Node,
        *,
        version: str,
        store: str = "",
        store_calls: StoreCalls | None = None,
        limits: Limits | None = None,
        hot_path: bool = True,
        on_sweep: Callable[[], None] = lambda: None,
    ) -> None:
        """``store`` is the URL that /status names. ``on_sweep`` is called about once a second (a
        watchdog's sign of life)."""
        self.limits = limits or Limits()
        self.metrics = Metrics(version, node.status, store_calls)
        self.hot = HotPath(node, closing=lambda: self._closing_lines, enabled=hot_path)
        self.metrics.hot_answers = lambda: self.hot.answered
        self.connections: set[Connection] = set()
        self.tick = 0  # counts the sweeps
        self.stopping = False
        self._date = formatdate(usegmt=True)
        self._closing_lines = b""
        self._set_date()
        self._on_sweep = on_sweep
        self._node = node
        self._store = store
        self._handlers = Handlers(
            node,
            self.metrics,
            version=version,
            status=self._figures,
            stopping=lambda: self.stopping,
        )
        self._doors: list[tuple[Door, _DoorServer, asyncio.Server]] = []
        self._all_gone = asyncio.Event()
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, doors: list[Door]) -> None:
        """Begin to serve on sockets that listen already."""
        loop = asyncio.get_running_loop()
        for door in doors:
            manager = _DoorServer(self, door)
            if door.listener.family == socket.AF_UNIX:
                server = await loop.create_unix_server(manager, sock=door.listener)
            else:
                server = await loop.create_server(manager, sock=door.listener, ssl=door.tls)
            self._doors.append((door, manager, server))
        self._sweeper = loop.create_task(self._sweep_forever())

    async def stop(self, timeout_s: float) -> None:
        """Accept no more, let running answers end within ``timeout_s``, then close all."""
        self.stopping = True
        for _, manager, server in self._doors:
            server.close()
            manager.pre_shutdown()
        await asyncio.gather(*(manager.shutdown(timeout_s) for _, manager, _ in self._doors))
        if self.connections:  # bytes of finished answers may still be on their way
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), timeout_s)
        for connection in list(self.connections):
            connection.cut()
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    @property
    def use(self) -> Use:
        """What was asked so far, and whether something is under way."""
        upkeep = self._node.upkeep
        busy = self.metrics.streams > 0 or (upkeep is not None and upkeep.is_busy)
        return Use(self.metrics.requests(), busy)

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        self.metrics.connections = len(self.connections)
        if self.stopping and not self.connections:
            self._all_gone.set()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            self.sweep()

    def sweep(self) -> None:
        """Once a second: the date, changed tokens, and connections that idle or do not read."""
        self.tick += 1
        self._set_date()
        for door, _, _ in self._doors:
            self._reload_tokens(door)
        for connection in list(self.connections):
            paused = connection.paused_tick
            if paused >= 0:
                late = self.tick - paused > self.limits.write_timeout_s / SWEEP_INTERVAL_S
            else:
                late = connection.quiet_ticks > self.limits.idle_timeout_s / SWEEP_INTERVAL_S
            if late:
                self.metrics.connections_cut += 1
                connection.cut()
        self._on_sweep()

    def _set_date(self) -> None:
        self._date = formatdate(usegmt=True)
        lines = "".join(f"{name}: {value}\r\n" for name, value in (SERVER, ("Date", self._date)))
        self._closing_lines = f"{lines}\r\n".encode()

    def _reload_tokens(self, door: Door) -> None:
        try:
            changed = door.tokens is not None and door.tokens.reload()
        except LodefsError as error:
            _log.error("the tokens stay as they were: %s", error)
            return
        if changed:
            door.blocks.clear()

    def _figures(self) -> dict[str, object]:
        return {
            "store": self._store,
            "connections": len(self.connections),
            "streams": self.metrics.streams,
            "requests": self.metrics.requests(),
            "sent_bytes": self.metrics.sent_bytes(),
            "hot_answers": self.hot.answered,
        }

    async def handle(self, door: Door, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request that aiohttp parsed."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        question = connection.question_of(request)
        started = perf_counter()
        self.metrics.streams += 1
        try:
            label, answer, first = await self._answer(door, request)
            if answer.hot and question and _is_plain(request, answer, question):
                self.hot.learn(question, answer.hot)
                door.blocks.add(question.headers, answer.hot.repo)
            response = await self._send(request, answer, first)
        finally:
            self.metrics.streams -= 1
            connection.answered()
        elapsed_s = perf_counter() - started
        self.metrics.counter(label, answer.status).add(
            elapsed_s=elapsed_s, sent_bytes=answer.size_bytes or len(answer.body)
        )
        _log.debug(
            "%s %s",
            request.method,
            request.raw_path,
            extra={"status": answer.status, "elapsed_s": round(elapsed_s, 6)},
        )
        return response

    async def _answer(
        self, door: Door, request: web.BaseRequest
    ) -> tuple[str, Answer, Buffer | None]:
        """The route's label, the answer and its first piece: errors until then have a status."""
        label = routes.OTHER
        origins.begin()
        try:
            methods = routes.methods_of(request.raw_path)
            body_bytes_max = routes.body_bytes_max(request.raw_path)
            if request.body_exists and not body_bytes_max:
                refused = InvalidInput("a request has no body here")
                return label, failures.failure_answer(refused, close=True), None
            if request.method not in methods:
                return label, failures.method_not_allowed(request.method, ", ".join(methods)), None
            if door.desk is not None and not routes.is_health(request.raw_path):
                label = PEERS
                told = await self._of_peer(door.desk, request, body_bytes_max)
                return label, told, await anext(told.pieces) if told.pieces else None
            route = routes.parse_route(request.raw_path)
            label = route.kind
            if self.metrics.streams > self.limits.streams_max and label != routes.HEALTHZ:
                self.metrics.streams_refused += 1
                raise Unavailable("the proxy answers too many requests at once")
            asked = Request(request.method, _asked_headers(request))
            answer = refusal(door, route, asked)
            if answer is None:
                if request.method == "POST":
                    asked = replace(asked, body=await _body_of(request, body_bytes_max))
                answer = await self._handlers.answer(route, asked)
            return label, answer, await anext(answer.pieces) if answer.pieces else None
        except LodefsError as error:
            return label, failures.failure_answer(error), None
        except TimeoutError:
            late = DeadlineExceeded("the answer took longer than it may")
            return label, failures.failure_answer(late), None
        except Exception:  # noqa: BLE001 - the last line of defence; the log has it
            _log.exception("request failed: %s", request.raw_path)
            return label, failures.internal_error(), None

    async def _of_peer(
        self, desk: PeerDesk, request: web.BaseRequest, body_bytes_max: int
    ) -> Answer:
        """The answer to another node."""
        if self.stopping:
            raise Unavailable("the proxy is stopping")
        return await desk.answer(
            request.method,
            request.raw_path,
            request.headers,
            lambda: _body_of(request, body_bytes_max),
        )

    async def _send(
        self, request: web.BaseRequest, answer: Answer, first: Buffer | None
    ) -> web.StreamResponse:
        """Send an answer. A body that cannot be completed ends with a broken connection."""
        headers = CIMultiDict([*answer.headers, SERVER, ("Date", self._date)])
        if answer.pieces is None or first is None:
            response = web.Response(status=answer.status, headers=headers, body=answer.body)
            if answer.close:
                response.force_close()
            return response
        origin = origins.noted()
        if origin is not None:
            headers[ORIGIN_HEADER] = origin
        if len(first) == answer.size_bytes:  # one write, and no streaming, for all of it
            if isinstance(answer.pieces, AsyncGenerator):
                await answer.pieces.aclose()
            return web.Response(status=answer.status, headers=headers, body=first)
        stream = web.StreamResponse(status=answer.status, headers=headers)
        try:
            await stream.prepare(request)
            await stream.write(first)
            sent_bytes = len(first)
            async for piece in answer.pieces:
                await stream.write(piece)
                sent_bytes += len(piece)
            if sent_bytes != answer.size_bytes:
                raise Corrupt(f"{sent_bytes} bytes came where {answer.size_bytes} belong")
        except ConnectionError:
            _cut(request)  # the client has gone, or was cut
        except Exception as error:  # noqa: BLE001 - whatever it was, the body is not complete
            self.metrics.broken_bodies += 1
            _log.error("answer broken off: %s: %r", request.raw_path, error)
            _cut(request)
        finally:
            if isinstance(answer.pieces, AsyncGenerator):
                await answer.pieces.aclose()
        return stream


def _cut(request: web.BaseRequest) -> None:
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.cut()


async def _body_of(request: web.BaseRequest, size_bytes_max: int) -> bytes:
    """The body of a request. InvalidInput where its size is not told, or too large, or it is
    encoded, or does not come whole."""
    size_bytes = request.content_length
    if size_bytes is None or size_bytes > size_bytes_max:
        raise InvalidInput(f"this needs a Content-Length of at most {size_bytes_max} bytes")
    if "Content-Encoding" in request.headers:
        raise InvalidInput("a body is taken as it is, without a Content-Encoding")
    if not size_bytes:
        return b""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            # request.read() would refuse what has more than aiohttp's own limit, a MiB
            return await request.content.readexactly(size_bytes)
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise InvalidInput("the body did not come whole") from error


def _asked_headers(request: web.BaseRequest) -> dict[str, str]:
    """The headers that handlers look at; a header sent twice is one list (RFC 9110, 5.3)."""
    found = {}
    for name in HEADERS:
        if name in request.headers:
            found[name] = ", ".join(request.headers.getall(name))
    return found


def _is_plain(request: web.BaseRequest, answer: Answer, question: Question) -> bool:
    """Whether the same headers with another range will always be answered in the same way."""
    conditional = any(name in request.headers for name in ("If-Match", "If-None-Match", "If-Range"))
    # A Range in an uncommon spelling is one of the headers for hot.py, which would not heed it.
    ranges = len(request.headers.getall("Range", ()))
    if conditional or ranges != (question.first >= 0):
        return False
    return answer.status in (200, 206) and bool(request.keep_alive)

"""One client's connection: aiohttp's, preceded by the fast path and with limits around it."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from aiohttp import StreamReader, web
from aiohttp.http_exceptions import LineTooLong
from multidict import CIMultiDict

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.types import Buffer
from lodefs.proxy.api import responses, routes
from lodefs.proxy.api.fast_path import PlainGet, parse_plain_get
from lodefs.proxy.api.request import EVERYBODY
from lodefs.proxy.api.responses import SERVER, Answer
from lodefs.proxy.http import local_readers
from lodefs.proxy.http.acceptor import last_answer
from lodefs.proxy.peers.membership.addresses import place_of
from lodefs.proxy.runtime.thread_pools import NOBODY, REMOTE, is_remote
from lodefs.proxy.s3.errors import S3Error, error_answer
from lodefs.proxy.tracing.request_scope import ID_HEADER, serving

if TYPE_CHECKING:
    from lodefs.proxy.http.server import EndpointServer

SWEEP_INTERVAL_S = 1.0
UNSENT_BYTES_MAX = 16 * 1024  # for a connection whose owner has many
HEADER_LINE_BYTES_MAX = 8190
HEADERS_MAX = 64
HEAD_BYTES_MAX = 65536  # for a request's line and headers together
_USER_LINE = b"\r\n%b:" % wire.USER_HEADER.lower().encode()
_NEVER_S = 86400.0 * 30  # turns off aiohttp's keep-alive timer: the sweep replaces it
_TOO_LONG = last_answer(431, "InvalidInput", f"all headers have more than {HEAD_BYTES_MAX} bytes")
_log = logging.getLogger("lodefs.proxy")


class Connection(web.RequestHandler):
    """One client's connection: aiohttp's, preceded by the fast path and with limits around it."""

    __slots__ = (
        "_asked",
        "_body",
        "_endpoint",
        "_fd",
        "_half_read",
        "_head_bytes",
        "_held",
        "_hot_client",
        "_last_tick",
        "_reading",
        "_server",
        "_wire",
        "blocks",
        "is_bounded",
        "is_spare",
        "opening",
        "owner",
        "paused_tick",
        "reader",
    )

    def __init__(self, manager: EndpointServer, loop: asyncio.AbstractEventLoop) -> None:
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
        self.is_spare = False  # accepted without room: see Admission
        self._server = manager.server
        self._endpoint = manager
        self.opening: asyncio.Task[None] | None = None  # until the connection is made
        self._wire: asyncio.Transport | None = None  # remains while aiohttp's is closing
        self._fd = -1  # -1 if only the transport may write (TLS)
        self._half_read = False
        self._body: StreamReader | None = None  # the body of the last request
        self._head_bytes = 0  # size of an incomplete head
        self._last_tick = self._server.tick  # tick of the last begin or end of a request
        self.paused_tick = -1  # tick since which the client does not read; -1 while it does
        hot_objects = manager.hot_objects
        self._hot_client = None if hot_objects is None else hot_objects.client()
        self._asked: tuple[object, PlainGet] | None = None  # the last plain message
        self._reading: asyncio.Task[None] | None = None  # the answer to a read of a mount
        self._held = b""  # bytes that came while it was made
        self.reader = EVERYBODY  # the reader if no token is needed
        self.blocks = manager.endpoint.blocks
        self.owner = REMOTE
        self.is_bounded = False

    @property
    def place(self) -> str:
        """The IP address and port of this machine to which the client is connected; "" for a Unix
        socket, and when the client is gone."""
        name = self._wire.get_extra_info("sockname") if self._wire is not None else None
        return place_of(*name[:2]) if isinstance(name, tuple) else ""

    @property
    def protocol(self) -> Connection:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepts the client, for which the endpoint has room."""
        transport = cast("asyncio.Transport", transport)
        if self._server.stopping or self not in self._endpoint.admission:
            transport.abort()
            self._force_close = True
            return
        self._wire = transport
        if self._endpoint.endpoint.tls is None:
            self._fd = transport.get_extra_info("socket").fileno()
        self.owner = local_readers.owner_of(transport.get_extra_info("socket"))
        readers = self._endpoint.endpoint.local_readers
        if readers is not None:
            found = readers.of(transport.get_extra_info("socket"))
            self.reader, self.blocks = found.reader, found.blocks
        super().connection_made(transport)

    @property
    def takes_mount_reads(self) -> bool:
        """Whether reads of mounts may be answered without aiohttp: the client is on this machine
        and sees everything, so that errors need not hide anything from it."""
        endpoint = self._endpoint.endpoint
        return endpoint.is_local and endpoint.tokens is None and not self.reader.is_limited

    def owner_of(self, request: web.BaseRequest) -> str:
        """Returns the owner for whom a request is made: the user who connected, or the user that
        root names, as a mount of the node does for its readers."""
        return self._owner_if(request.headers.get(wire.USER_HEADER, ""))

    def _owner_if(self, named: str) -> str:
        if self.owner == NOBODY and named.isascii() and named.isdecimal() and len(named) <= 10:
            return named
        return self.owner

    def bound_unsent(self) -> None:
        """Limits unread bytes for this client, here and in the kernel, from now on."""
        if self._wire is not None and not self.is_bounded:
            self.is_bounded = True
            self._wire.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
            sock = self._wire.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)

    async def send(self, *pieces: Buffer, is_last: bool) -> None:
        """Implements mount_reads.Sender."""
        if self.transport is not None:
            self.transport.writelines(pieces)
        await self._drain_helper()
        if is_last and self._wire is not None:
            self._wire.close()

    async def drained(self) -> None:
        """Returns when little is waiting to be sent. Raises: ConnectionError."""
        await self._drain_helper()

    def failed(self) -> None:
        """The connection did not open."""
        self._server.forget(self._endpoint, self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Removes the client."""
        self._server.forget(self._endpoint, self)
        self._wire = self._body = None
        if self.paused_tick >= 0:
            self.paused_tick = -1
            self._server.fast_path.writing_resumed()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self.paused_tick = self._server.tick
        self._server.fast_path.writing_paused()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self.paused_tick >= 0:
            self._server.fast_path.writing_resumed()
        self.paused_tick = -1
        super().resume_writing()

    async def _drain_helper(self) -> None:
        try:
            await super()._drain_helper()
        except ConnectionError as error:
            # A future in aiohttp's frame holds the error. With that frame in its traceback, the
            # error would keep itself and the unsent data alive until the cycle collector runs.
            raise error.with_traceback(None)  # noqa: B904 - the same error

    def data_received(self, data: bytes) -> None:
        """Answers a plain hit at once; passes everything else to aiohttp."""
        if self._reading is not None:
            self._held += data
            if self._wire is not None:
                self._wire.pause_reading()
            return
        plain_get = None
        if not (self._half_read or self._messages or self._close or self.is_spare):
            hot_client = self._hot_client
            if hot_client is not None:
                transport = self._free_transport()
                if transport is not None and hot_client.answer(data, transport, self._fd):
                    self.allowed()
                    self.answered()
                    return
            else:
                plain_get = parse_plain_get(data)
                if plain_get is not None and self._is_answered(plain_get):
                    self.answered()
                    return
                if plain_get is not None and self._is_begun(plain_get):
                    return
        if data:  # aiohttp calls this with b"" to parse what it holds
            self._half_read = not data.endswith(b"\r\n\r\n")
        self._parse(data)
        if plain_get is not None and len(self._messages) == 1:
            self._asked = (self._messages[0][0], plain_get)

    def _free_transport(self) -> asyncio.Transport | None:
        """Returns the transport, if an answer may be written now."""
        transport = self.transport
        if transport is None or not self.idle or transport.get_write_buffer_size():
            return None
        return transport

    def _is_answered(self, plain_get: PlainGet) -> bool:
        transport = self._free_transport()
        if transport is None:
            return False
        owner = self.owner
        if is_remote(owner):
            owner = self.blocks.owner_of(plain_get.headers, owner)
        else:
            owner = self._owner_named_in(plain_get)
        fast_path = self._server.fast_path
        return fast_path.answer(plain_get, self.blocks, transport, self._fd, owner=owner)

    def _is_begun(self, plain_get: PlainGet) -> bool:
        """Begins to answer a read of a mount, if one like it was answered before."""
        if self._free_transport() is None or not self._endpoint.has_room:
            return False
        owner = self._owner_named_in(plain_get)
        read = self._server.mount_reads.find(plain_get, self.blocks, owner)
        if read is None:
            return False
        self._endpoint.begin_stream()
        self._reading = self._loop.create_task(self._server.mount_reads.answer(read, self))
        self._reading.add_done_callback(self._has_read)
        return True

    def _has_read(self, task: asyncio.Task[None]) -> None:
        """Notes that a read of a mount was answered, and goes on with the bytes that came
        meanwhile."""
        self._reading, held, self._held = None, self._held, b""
        self._endpoint.end_stream()
        if task.cancelled() or task.exception() is not None:
            self.cut()
        self.answered()
        if held and self._wire is not None:
            self._wire.resume_reading()
            self.data_received(held)

    def _owner_named_in(self, plain_get: PlainGet) -> str:
        if self.owner != NOBODY:
            return self.owner
        named = plain_get.headers.lower().partition(_USER_LINE)[2].partition(b"\r")[0]
        return self._owner_if(named.strip().decode("latin-1"))

    def close(self) -> None:
        """Ends the connection once a request under way is answered."""
        if self._reading is None:
            super().close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:  # noqa: ASYNC109
        """Waits for a request under way, and ends the connection."""
        if self._reading is not None:
            await asyncio.wait((self._reading,), timeout=timeout)
        await super().shutdown(timeout)

    def _parse(self, data: bytes) -> None:
        """Passes bytes to aiohttp, which limits the size and number of headers, but not a whole
        head.

        Only the parser knows whether bytes belong to a head: a request is taken some turns of the
        loop after its head has come, and its body may come in between.
        """
        in_body = self._body is not None and not self._body.is_eof()
        heads = self._request_count
        super().data_received(data)
        if self._request_count > heads:
            self._body = self._messages[-1][1]
        if in_body or self._request_count > heads or self._buffer_paused:
            self._head_bytes = 0
        elif (size := self._head_bytes + len(data)) <= HEAD_BYTES_MAX:
            self._head_bytes = size
        elif self._wire is not None:  # 64 long headers for each client would take much memory
            if self.idle or self._body is None:  # otherwise it would get into the current answer
                self._wire.write(_TOO_LONG)
            self._wire.close()

    def plain_get_of(self, request: web.BaseRequest) -> PlainGet | None:
        """Returns the plain GET from which this request was parsed, if the fast path may learn
        it."""
        asked = self._asked
        return asked[1] if asked is not None and asked[0] is request._message else None

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 - aiohttp's signature
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Returns the answer to what aiohttp could not parse, or to a fault in this file."""
        with serving({}) as scope:
            response = self._broken_answer(status, exc, message)
            response.headers[ID_HEADER] = scope.id
            return response

    def _broken_answer(
        self, status: int, exc: BaseException | None, message: str | None
    ) -> web.Response:
        if status >= 500:
            _log.error("request failed: %r", exc)
            return _whole(responses.internal_error())
        if isinstance(exc, LineTooLong):  # aiohttp's message would repeat the input
            status = 431
            error = InvalidInput(f"the URL or a header has more than {HEADER_LINE_BYTES_MAX} bytes")
        else:
            first_line = (message or "").strip().partition("\n")[0][:200]
            error = InvalidInput(f"the request is not valid HTTP: {first_line}")
        answer = responses.failure_answer(error, status=status, close=True)
        if self._endpoint.s3 is not None:
            refused = S3Error("InvalidRequest", str(error), status=status)
            answer = error_answer(refused, "/", close=True)
        counter = self._server.metrics.counter(routes.OTHER, status)
        counter.add(0.0)
        counter.sent_bytes += len(answer.body)
        return _whole(answer)

    @property
    def idle(self) -> bool:
        """Whether aiohttp waits for the next request and nothing else is going on."""
        waiter = self._waiter
        return waiter is not None and not waiter.done() and self._reading is None

    @property
    def quiet_ticks(self) -> int:
        """The number of ticks without a request being answered; 0 during a request. Bytes that do
        not make a request do not count."""
        return self._server.tick - self._last_tick if self.idle else 0

    @property
    def may_go(self) -> bool:
        """Whether nothing for the client is under way."""
        return self._wire is None or (self.idle and self.paused_tick < 0)

    @property
    def is_late(self) -> bool:
        """Whether the client has been idle, or has not read, for too long."""
        limits, tick = self._server.limits, self._server.tick
        if self.paused_tick >= 0:
            return tick - self.paused_tick > limits.write_timeout_s / SWEEP_INTERVAL_S
        idle_timeout_s = limits.idle_timeout_s
        if not (self._endpoint.endpoint.is_local or self._endpoint.admission.is_authorized(self)):
            idle_timeout_s = min(idle_timeout_s, limits.first_timeout_s)
        return self.quiet_ticks > idle_timeout_s / SWEEP_INTERVAL_S

    def allowed(self) -> None:
        """Notes that the client sent an authorized request."""
        self._endpoint.admission.authorize(self)

    def answered(self) -> None:
        """Notes that a request was answered."""
        self._last_tick = self._server.tick
        self._endpoint.admission.used(self)

    def give_way(self) -> None:
        """Ends the connection, which was idle or read too slowly."""
        self._endpoint.figures.connections_cut += 1
        self.cut()

    def cut(self) -> None:
        """Ends the connection now; unsent bytes are lost, which the client notices."""
        if self._wire is not None:
            self._wire.abort()
        elif self.opening is not None:
            self.opening.cancel()


def _whole(answer: Answer) -> web.Response:
    """Returns an answer that ends its connection, in one piece."""
    headers = CIMultiDict([*answer.headers, SERVER])
    response = web.Response(status=answer.status, headers=headers, body=answer.body)
    response.force_close()
    return response

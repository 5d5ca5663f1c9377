"""Accepts the connections of one listening socket, a few at a time, independently of other sockets.

A connection counts from when it is accepted, before any TLS handshake. If there is no room, the
client is told so and the connection closed. If descriptors run out, only this socket waits.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Protocol

ACCEPTS_MAX = 32  # in one turn of the event loop
PAUSE_S = 0.5  # after an error
HANDSHAKE_TIMEOUT_S = 10.0
_log = logging.getLogger("lodefs.proxy")


def last_answer(status: int, error: str, message: str) -> bytes:
    """Returns the bytes of an answer that ends its connection: an error as in protocol.md."""
    retry = "Retry-After: 2\r\n" if status == HTTPStatus.SERVICE_UNAVAILABLE else ""
    body = b'{"error":"%b","message":"%b"}' % (error.encode(), message.encode())
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"{retry}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Opening(Protocol):
    """A connection whose protocol exists, and which is not open yet."""

    opening: asyncio.Task[None] | None

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        """The protocol for the event loop."""

    def failed(self) -> None:
        """The connection did not open."""


class Acceptor:
    """Accepts connections. ``take`` returns the opening of a new connection, or None if there is no
    room: then the client is sent ``refusal``."""

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[], Opening | None],
        *,
        refusal: bytes,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._take = take
        self._refusal = refusal
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._resume: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._listener.fileno(), self._ready)

    def stop(self, *, close: bool = True) -> None:
        """Stops accepting. The socket is closed, or queues clients for the next acceptor."""
        if self._resume is not None:
            self._resume.cancel()
        elif self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        if close:
            self._listener.close()

    def _ready(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # EMFILE, ENFILE, ENOMEM
                _log.warning("accepting no connections for now: %s", error)
                self._loop.remove_reader(self._listener.fileno())
                self._resume = self._loop.call_later(PAUSE_S, self.start)
                return
            accepted.settimeout(0)
            connection = self._take()
            if connection is None:
                self._refuse(accepted)
            else:
                opening = self._loop.create_task(self._open(connection, accepted))
                connection.opening = opening

    def _refuse(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._tls is None:
                accepted.send(self._refusal)

    async def _open(self, connection: Opening, accepted: socket.socket) -> None:
        timeout_s = None if self._tls is None else HANDSHAKE_TIMEOUT_S
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection.protocol,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=timeout_s,
            )
        except (OSError, asyncio.CancelledError) as error:  # includes ssl.SSLError and TimeoutError
            _log.debug("a connection did not open: %r", error)
            connection.failed()
        else:
            connection.opening = None

"""Connections to peers, kept between requests. For any thread."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.peers.client.http_attempt import HttpAttempt
from lodefs.proxy.peers.membership.addresses import SocketAddress, place_of

IDLE_MAX = 256  # for all peers together
IDLE_OF_PEER_MAX = 8
_IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK)


class _Connection(NamedTuple):
    """A socket, and the IP address and port of its peer."""

    sock: socket.socket
    place: str


class ConnectionPool:
    """Begins requests to peers. ``endpoints`` returns a peer's addresses, ``tls`` the context for
    new connections, or None for plain ones."""

    def __init__(
        self,
        endpoints: Callable[[str], Sequence[SocketAddress]],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        *,
        idle_max: int = IDLE_MAX,
    ) -> None:
        """``idle_max`` is how many idle connections are kept, for all peers together."""
        self._idle_max = idle_max
        self._endpoints = endpoints
        self._tls = tls
        self._lock = threading.Lock()  # guards the fields below
        self._idle: OrderedDict[str, list[_Connection]] = OrderedDict()
        self._count = 0
        self._closed = False

    def begin(
        self,
        address: str,
        request: Callable[[str], bytes],
        body_size_bytes_max: int,
        *,
        fresh: bool = False,
    ) -> HttpAttempt:
        """Begins a request to a peer, on a kept connection unless ``fresh``. The caller advances
        it. Raises: Unavailable if the peer has no address.

        ``request`` makes it for the connection's IP address and port, so that a repeated request is
        signed again.
        """
        kept = None if fresh else self._take(address)
        sock, place = kept or _connect(address, self._endpoints(address))
        return HttpAttempt(
            address,
            sock,
            request(place),
            body_size_bytes_max,
            is_reused=kept is not None,
            tls=None if kept is not None else self._tls(),
            place=place,
        )

    def end(self, attempt: HttpAttempt) -> None:
        """Keeps the connection of an answered attempt, and closes any other."""
        if attempt.is_reusable:
            with self._lock:
                idle = self._idle.setdefault(attempt.address, [])
                self._idle.move_to_end(attempt.address)
                if not self._closed and len(idle) < IDLE_OF_PEER_MAX:
                    idle.append(_Connection(attempt.sock, attempt.place))
                    self._count += 1
                    self._drop_surplus()
                    return
        attempt.sock.close()

    def close(self) -> None:
        """Closes idle connections, and others once they are idle."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, OrderedDict()
        for connections in idle.values():
            for connection in connections:
                connection.sock.close()

    def _take(self, address: str) -> _Connection | None:
        with self._lock:
            idle = self._idle.get(address)
            if not idle:
                return None
            self._count -= 1
            return idle.pop()

    def _drop_surplus(self) -> None:
        while self._count > self._idle_max:
            _, connections = self._idle.popitem(last=False)
            self._count -= len(connections)
            for connection in connections:
                connection.sock.close()


def _connect(address: str, endpoints: Sequence[SocketAddress]) -> _Connection:
    """Returns a connecting socket for the first of the addresses that works. Raises:
    Unavailable."""
    why = "its name has no address"
    for family, host, port in endpoints:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex((host, port))
        if code in (0, *_IN_PROGRESS):
            return _Connection(sock, place_of(host, port))
        sock.close()
        why = os.strerror(code)
    raise Unavailable(f"peer {address}: {why}")

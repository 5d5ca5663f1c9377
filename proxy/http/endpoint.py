"""Endpoints: the sockets for clients, and the clients that each one admits."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field, replace

from lodefs.chunkstore.errors import Denied, NotFound
from lodefs.chunkstore.protocol.wire import SOCKET_DEFAULT
from lodefs.proxy.api import responses, routes
from lodefs.proxy.api.fast_path import KnownHeaders
from lodefs.proxy.api.request import EVERYBODY, Reader, Request
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.http import login, request_origin
from lodefs.proxy.http.door_tls import DoorTls
from lodefs.proxy.http.local_readers import LocalReaders
from lodefs.proxy.http.request_origin import HostNames
from lodefs.proxy.http.tokens import TokenBook, Verdict, bearer_of, password_of
from lodefs.proxy.peers.server import PeerServer
from lodefs.proxy.s3.buckets import S3Settings

_OPEN_ROUTES = frozenset(
    {
        *(routes.HEALTHZ, routes.READYZ),
        *(routes.PAGE, routes.PAGE_STATIC, routes.PAGE_LOGIN, routes.PAGE_LOGOUT),
    }
)
_ANY_HOST_ROUTES = frozenset({routes.HEALTHZ, routes.READYZ, routes.METRICS})
_LOCAL_ROUTES = frozenset(
    {
        *(routes.CACHE, routes.CACHE_USED),
        *(routes.WARM, routes.WARM_JOB, routes.PINS, routes.EVICT),
    }
)
# Git LFS asks for a password then; browsers, which would send it along from then on, do not
LFS_CHALLENGE = ("LFS-Authenticate", 'Basic realm="lodefs: any user name, a token as password"')
_INFO_ROUTES = frozenset({routes.METRICS, routes.STATUS, routes.OPENAPI})


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One listening socket. ``blocks`` are the request headers that the fast path knows for it."""

    listener: socket.socket
    tokens: TokenBook | None = None  # None: every client may read
    info_is_open: bool = True  # /metrics, /status and /openapi.json need no token
    blocks: KnownHeaders = field(default_factory=KnownHeaders)
    name: str = ""
    is_local: bool = False  # whether its clients are on this machine: a Unix socket
    peer_server: PeerServer | None = None  # only for other nodes: it answers them
    tls: ssl.SSLContext | None = None
    certificate: DoorTls | None = None  # the certificate of ``tls``, if it may change
    s3: S3Settings | None = None  # only for S3 clients
    host_names: HostNames = field(default_factory=HostNames)  # for clients without a known token
    local_readers: LocalReaders | None = None  # set if access rules apply to its clients

    @property
    def kind(self) -> str:
        if self.peer_server is not None:
            return "peers"
        if self.s3 is not None:
            return "s3"
        return "unix" if self.listener.family == socket.AF_UNIX else "tcp"

    def __str__(self) -> str:
        if self.name:
            return self.name
        address = self.listener.getsockname()
        kind = self.kind if self.kind != "tcp" else "http" if self.tls is None else "https"
        return (
            f"unix:{address}" if isinstance(address, str) else f"{kind}://{address[0]}:{address[1]}"
        )


def needs_token(endpoint: Endpoint, route: Route) -> bool:
    """Whether a route needs a token at an endpoint that has tokens."""
    if route.kind in _INFO_ROUTES:
        return not endpoint.info_is_open
    return route.kind not in _OPEN_ROUTES


def admit(
    endpoint: Endpoint, route: Route, asked: Request, local: Reader = EVERYBODY
) -> Reader | Answer:
    """Returns the reader that a client of this endpoint is, or the answer to one without a valid
    token. ``local`` is the reader if no token is needed.

    Raises: Denied if the token is valid but not for this repository, or a foreign web page may have
    sent the request; NotFound by access rules, and for requests that only programs of this machine
    may make.
    """
    if route.kind in _LOCAL_ROUTES and not endpoint.is_local:
        raise NotFound(
            "only the proxy's Unix socket answers this: run the command on that proxy's node, "
            f"with --proxy unix:PATH (mostly unix:{SOCKET_DEFAULT})"
        )
    token = _token_of(route, asked)
    from_cookie = None if token is not None else _cookie_of(endpoint, asked)
    if route.kind not in _ANY_HOST_ROUTES and not _is_verified(endpoint, route, token):
        request_origin.check(
            asked.headers,
            asked.method,
            endpoint.host_names,
            cookie=from_cookie is not None and needs_token(endpoint, route),
        )
    if endpoint.tokens is None or not needs_token(endpoint, route):
        if route.repo:
            local.check(route.repo)
        return local
    found = _with_token(endpoint.tokens, token or from_cookie, route)
    if isinstance(found, Answer) and route.kind == routes.LFS:
        return replace(found, headers=[*found.headers, LFS_CHALLENGE])
    return found


def _token_of(route: Route, asked: Request) -> str | None:
    """Returns the token of a request; that of Git LFS is a password, as Git knows no other."""
    authorization = asked.headers.get("Authorization")
    token = bearer_of(authorization)
    return password_of(authorization) if token is None and route.kind == routes.LFS else token


def _is_verified(endpoint: Endpoint, route: Route, token: str | None) -> bool:
    """Whether only a known bearer token gets an answer, since any page can make one up."""
    if token is None or endpoint.tokens is None:
        return False
    if needs_token(endpoint, route):
        return True  # an unknown one gets 401
    return endpoint.tokens.check(token, None) is Verdict.ALLOWED


def _cookie_of(endpoint: Endpoint, asked: Request) -> str | None:
    """Returns the token of a browser that logged in, if the endpoint has tokens; only for
    reading."""
    if endpoint.tokens is None or asked.method not in routes.READ_METHODS:
        return None
    cookies = asked.headers.get("Cookie")
    return login.token_of(cookies, is_tls=endpoint.tls is not None)


def _with_token(book: TokenBook, token: str | None, route: Route) -> Reader | Answer:
    if token is None:
        return responses.unauthorized("a token is needed: send 'Authorization: Bearer TOKEN'")
    verdict = book.check(token, route.repo or None)
    if verdict is Verdict.UNKNOWN:
        challenge = 'Bearer error="invalid_token"'
        return responses.unauthorized("this token is unknown", challenge=challenge)
    if verdict is Verdict.FORBIDDEN:
        raise Denied(f"this token may not read the repository {route.repo!r}")
    return Reader(
        may_read=lambda repo: book.check(token, repo) is Verdict.ALLOWED,
        may_write=lambda repo: book.may_write(token, repo),
        is_known=lambda: book.check(token, None) is Verdict.ALLOWED,
        is_limited=not book.sees_all(token),
        name=book.name_of(token),
    )

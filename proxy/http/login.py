"""Logs a browser in and out: the token is sent once, and stays in a cookie (RFC 6265bis).

HttpOnly: no script sees it. SameSite=Strict: no other site's page can send it. With TLS it has the
prefix __Host-, so that only this host can have set it, over TLS.
"""

from __future__ import annotations

import re

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.api import responses, routes
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.http.tokens import TokenBook, Verdict

AGE_S_MAX = 12 * 3600
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=-]{1,256}\Z")


def name_of(*, is_tls: bool) -> str:
    return "__Host-lodefs" if is_tls else "lodefs"


def token_of(cookies: str | None, *, is_tls: bool) -> str | None:
    """Returns the token in a Cookie header; None if there is none, or there are several."""
    wanted = name_of(is_tls=is_tls)
    pairs = (pair.strip().partition("=") for pair in (cookies or "").split(";"))
    found = [value for name, _, value in pairs if name == wanted]
    return found[0] if len(found) == 1 and _TOKEN.match(found[0]) else None


def set_cookie(token: str, *, is_tls: bool) -> str:
    """Returns the Set-Cookie that keeps a token; "" gives one that deletes it."""
    age_s = AGE_S_MAX if token else 0
    secure = "; Secure" if is_tls else ""
    name = name_of(is_tls=is_tls)
    return f"{name}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age_s}{secure}"


def answer(tokens: TokenBook | None, route: Route, asked: Request, *, is_tls: bool) -> Answer:
    """Returns the answer to /page/login, whose body is a token, or to /page/logout. Raises:
    InvalidInput if this endpoint has no tokens."""
    token = ""
    if route.kind == routes.PAGE_LOGIN:
        if tokens is None:
            raise InvalidInput("this endpoint needs no token")
        token = asked.body.decode("utf-8", "replace").strip()
        if tokens.check(token, None) is not Verdict.ALLOWED:
            return responses.unauthorized("this token is unknown")
    cookie = set_cookie(token, is_tls=is_tls)
    return Answer(204, [("Set-Cookie", cookie), ("Cache-Control", "no-store")])

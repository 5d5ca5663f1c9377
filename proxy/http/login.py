"""Logging a browser in and out: a token comes once, and stays in a cookie that no script sees."""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.api import error_responses, routes
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.api.routes import Route
from lodefs.proxy.http.endpoint import Endpoint
from lodefs.proxy.http.tokens import Verdict
from lodefs.proxy.page import session_cookie


def answer(endpoint: Endpoint, route: Route, asked: Request) -> Answer:
    """The answer to /page/login, whose body is a token, or to /page/logout.

    Raises: InvalidInput (this endpoint has no tokens).
    """
    is_tls = endpoint.tls is not None
    token = ""
    if route.kind == routes.PAGE_LOGIN:
        if endpoint.tokens is None:
            raise InvalidInput("this proxy asks for no token here")
        token = asked.body.decode("utf-8", "replace").strip()
        if endpoint.tokens.check(token, None) is not Verdict.ALLOWED:
            return error_responses.unauthorized("this token is not known here")
    cookie = session_cookie.set_cookie(token, is_tls=is_tls)
    return Answer(204, [("Set-Cookie", cookie), ("Cache-Control", "no-store")])

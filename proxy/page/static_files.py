"""The page's own files, and the headers that keep anything else from running on its origin.

Style and theme, which the first paint needs, are sent within the page: one request instead of three
in a row. The policy names both by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import digest_of
from lodefs.proxy.api.ranges import Outcome, evaluate
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import NOSNIFF, Answer

INDEX = b"index.html"
_STYLE = ('<link rel="stylesheet" href="/page/static/style.css">', "style", "style.css")
_THEME = ('<script src="/page/static/theme.js"></script>', "script", "theme.js")
_POLICY = (
    "default-src 'none'",
    "connect-src 'self'",
    "img-src 'self'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PROTECTING = [
    NOSNIFF,
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
]


class _File(NamedTuple):
    media: str
    etag: str
    body: bytes


class StaticFiles:
    """The files of the folder static/, read once."""

    def __init__(self) -> None:
        bodies = {found.name: found.read_bytes() for found in _folder()}
        index, allowed = with_inlined(bodies[INDEX.decode()].decode(), bodies)
        bodies[INDEX.decode()] = index.encode()
        self._files = {name.encode(): _file(name, body) for name, body in bodies.items()}
        own = [f"{element}-src 'self' {digest}" for element, digest in allowed.items()]
        self._protecting = [("Content-Security-Policy", "; ".join((*_POLICY, *own))), *_PROTECTING]

    def answer(self, name: bytes, request: Request) -> Answer:
        """Returns a file, or 304. Raises: NotFound."""
        found = self._files.get(name)
        if found is None:
            raise NotFound("the status page has no such file")
        headers = [
            ("Content-Type", found.media),
            ("ETag", found.etag),
            ("Cache-Control", "no-cache"),
            *self._protecting,
        ]
        if evaluate(request.headers, found.etag) is Outcome.NOT_MODIFIED:
            return Answer(304, headers)
        return Answer(200, headers, found.body)


def _folder() -> Iterator[Traversable]:
    for found in files("lodefs.proxy.page").joinpath("static").iterdir():
        if _suffix(found.name) in _MEDIA:
            yield found


def with_inlined(index: str, bodies: Mapping[str, bytes]) -> tuple[str, dict[str, str]]:
    """Returns the page with style and theme in it, and what the policy allows for them, by
    element."""
    allowed = {}
    for link, element, name in (_STYLE, _THEME):
        text = bodies[name].decode()
        assert index.count(link) == 1 and f"</{element}" not in text.lower()
        index = index.replace(link, f"<{element}>{text}</{element}>")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        allowed[element] = f"'sha256-{digest}'"
    return index, allowed


def _file(name: str, body: bytes) -> _File:
    return _File(_MEDIA[_suffix(name)], f'"{digest_of(body).hex()[:32]}"', body)


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]

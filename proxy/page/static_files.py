"""The page's own files, and the headers that keep all else from running on its origin."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import digest_of
from lodefs.proxy.api.conditions import Outcome, evaluate
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import NOSNIFF, Answer

INDEX = b"index.html"
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PROTECTING = [
    NOSNIFF,
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
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
        self._files = {found.name.encode(): _loaded(found) for found in _folder()}

    def answer(self, name: bytes, request: Request) -> Answer:
        """A file, or 304. Raises: NotFound."""
        found = self._files.get(name)
        if found is None:
            raise NotFound("the status page has no such file")
        headers = [
            ("Content-Type", found.media),
            ("ETag", found.etag),
            ("Cache-Control", "no-cache"),
            *PROTECTING,
        ]
        if evaluate(request.headers, found.etag) is Outcome.NOT_MODIFIED:
            return Answer(304, headers)
        return Answer(200, headers, found.body)


def _folder() -> Iterator[Traversable]:
    for found in files("lodefs.proxy.page").joinpath("static").iterdir():
        if _suffix(found.name) in _MEDIA:
            yield found


def _loaded(file: Traversable) -> _File:
    body = file.read_bytes()
    return _File(_MEDIA[_suffix(file.name)], f'"{digest_of(body).hex()[:32]}"', body)


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]

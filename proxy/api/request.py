"""Requests as handlers get them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from lodefs.chunkstore.protocol.access import hidden


@dataclass(frozen=True, slots=True)
class Reader:
    """The reader who made a request. ``may_read`` tells whether they may read a repository,
    ``may_write`` whether they may also write to it, which only tokens can give.
    ``is_known``: they are still known, since a token may be deleted during an answer.
    ``is_limited``: something is hidden from them, so answers say nothing about the store itself.
    ``uid`` is the user to whom access rules apply; a repository that the user may not read looks
    like a missing one. ``name`` is that of the token.
    """

    may_read: Callable[[str], bool] = lambda _repo: True
    may_write: Callable[[str], bool] = lambda _repo: False
    is_known: Callable[[], bool] = lambda: True
    is_limited: bool = False
    uid: int | None = None
    name: str = ""

    def check(self, repo: str) -> None:
        """Raises: NotFound, as for a repository that does not exist."""
        if not self.may_read(repo):
            raise hidden(repo)


EVERYBODY = Reader()


@dataclass(frozen=True, slots=True)
class Request:
    """``headers`` has those of handlers.HEADERS that were sent. ``is_tls``: over TLS.

    ``content`` yields the body if the route takes content, and raises InvalidInput if it is
    incomplete.
    """

    method: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reader: Reader = EVERYBODY
    is_tls: bool = False
    content: AsyncIterator[bytes] | None = None

    @property
    def origin(self) -> str:
        """The scheme, host and port by which the client knows this proxy, also behind another."""
        is_tls = self.is_tls or self.headers.get("X-Forwarded-Proto", "").lower() == "https"
        return f"{'https' if is_tls else 'http'}://{self.headers.get('Host', 'localhost')}"

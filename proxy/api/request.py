"""A request as handlers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lodefs.chunkstore.protocol.access import hidden


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks. ``may_read``: whether a repository; ``is_known``: whether still at all, since a
    token may be deleted while its answer goes on; ``is_limited``: whether anything is hidden, so
    that nothing is told of the store itself; ``uid``: the user for whom rules of access count, by
    which a repository that may not be read is as one that does not exist; ``name``: of the token.
    """

    may_read: Callable[[str], bool] = lambda _repo: True
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
    """``headers`` holds those of handlers.HEADERS that were sent."""

    method: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reader: Reader = EVERYBODY

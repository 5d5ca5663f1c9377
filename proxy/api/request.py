"""A request as handlers see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reader:
    """Who asks. ``may_read``: whether a repository; ``is_known``: whether still at all, since a
    token may be deleted while its answer goes on."""

    may_read: Callable[[str], bool] = lambda _repo: True
    is_known: Callable[[], bool] = lambda: True


EVERYBODY = Reader()


@dataclass(frozen=True, slots=True)
class Request:
    """``headers`` holds those of handlers.HEADERS that were sent."""

    method: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    reader: Reader = EVERYBODY

"""A request as handlers see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """``headers`` holds those of handlers.HEADERS that were sent."""

    method: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

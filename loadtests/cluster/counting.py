"""The counters of a relay, by the kind of an answer, and its rate limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lodefs.chunkstore.format import keys

BURST_S = 0.02  # so much of a second may pass at once after a pause
PACKS, INDEX, REPOS, LISTS = "packs", "index", "repos", "lists"
ERRORS, OTHER = "errors", "other"
_FOLDERS = {keys.PACKS: PACKS, keys.INDEX: INDEX, keys.REPOS: REPOS}


def kind_of(target: str, status: int) -> str:
    """What an answer's bytes count as: a class of object keys, lists, or errors.

    ``target`` is the request's: ``/BUCKET/PREFIX/KEY``, or ``/BUCKET?list-type=2&...``.
    """
    if status >= 400:
        return ERRORS
    parts = urlsplit(target)
    if "list-type=" in parts.query:
        return LISTS
    for folder, kind in _FOLDERS.items():
        if f"/{folder}" in parts.path:
            return kind
    return OTHER


@dataclass(slots=True)
class Counts:
    """Requests answered, and bytes of bodies sent, by kind."""

    requests: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, requests: int, size_bytes: int) -> None:
        """Adds to one kind."""
        self.requests[kind] = self.requests.get(kind, 0) + requests
        self.size_bytes[kind] = self.size_bytes.get(kind, 0) + size_bytes

    @property
    def total_bytes(self) -> int:
        """The sum of all kinds, errors included."""
        return sum(self.size_bytes.values())

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Both tables, for JSON."""
        return {"requests": self.requests, "bytes": self.size_bytes}

    @classmethod
    def from_dict(cls, found: dict[str, dict[str, int]]) -> Counts:
        """What ``as_dict`` gave."""
        return cls(found["requests"], found["bytes"])


@dataclass(slots=True)
class Sent:
    """A body that was sent, perhaps not to its end: to whom, of which kind, of which target and
    range (Content-Range), and how many bytes of it."""

    client: str
    kind: str
    target: str
    content_range: str
    size_bytes: int = 0

    def line(self) -> str:
        """A line for a log, with fields joined by tabs."""
        fields = (self.client, self.kind, self.target, self.content_range, str(self.size_bytes))
        return "\t".join(fields)

    @classmethod
    def of_line(cls, line: str) -> Sent:
        """What ``line`` gave."""
        client, kind, target, content_range, size_bytes = line.rstrip("\n").split("\t")
        return cls(client, kind, target, content_range, int(size_bytes))

    @property
    def first(self) -> int:
        """The first byte of the range; 0 for a whole object."""
        _, _, span = self.content_range.partition(" ")
        return int(span.partition("-")[0]) if span[:1].isdigit() else 0


def repeated_bytes(log: Iterable[Sent]) -> int:
    """The bytes of packs that were sent again, to any client."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for sent in log:
        if sent.kind == PACKS:
            span = (sent.first, sent.first + sent.size_bytes)
            spans.setdefault(urlsplit(sent.target).path, []).append(span)
    repeated = 0
    for each in spans.values():
        reached = 0
        for first, end in sorted(each):
            repeated += max(0, min(end, reached) - first)
            reached = max(reached, end)
    return repeated


class Throttle:
    """A rate that all senders share, served in the order of their requests."""

    def __init__(self, bytes_per_s_max: float) -> None:
        """0: no limit."""
        self._bytes_per_s = bytes_per_s_max
        self._free_s = 0.0  # when all that was promised is sent

    def reserve(self, size_bytes: int, now_s: float) -> float:
        """How many seconds to wait before sending this many bytes."""
        if not self._bytes_per_s:
            return 0.0
        start_s = max(self._free_s, now_s - BURST_S)
        self._free_s = start_s + size_bytes / self._bytes_per_s
        return max(0.0, start_s - now_s)

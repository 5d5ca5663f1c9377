"""Requests about a node's cache: warm, pin, evict. The JSON of docs/protocol.md.

Paths and patterns are bytes. In JSON they are percent-encoded as in URLs; a pattern's ``*``, ``?``,
``[`` and ``]`` need not be.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

WARM = "/warm"  # POST: begin; GET: all jobs. /warm/ID: GET, DELETE
PINS = "/pins"  # GET
EVICT = "/evict"  # POST
WARM_BYTES_MAX = 16 * 1024 * 1024  # limit for a request's body: some 200,000 paths
EVICT_BYTES_MAX = 128 * 1024
PIN_S_MAX = 10 * 366 * 86400
ERRORS_MAX = 20  # reported for one job

# Only a node's share can be "skipped": the node did not answer, and skip_missing was set
State = Literal["listing", "fetching", "done", "failed", "cancelled", "skipped"]
RUNNING: tuple[State, ...] = ("listing", "fetching")

_Text = Annotated[str, msgspec.Meta(max_length=65536)]
OWNER = r"[A-Za-z0-9_.-]{1,64}"  # the owner of pins; it is part of request targets between nodes
_Owner = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{OWNER})?\Z")]


class WarmRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files to fetch into the cache: ``paths`` and what ``globs`` match, or all.

    ``pin_s`` is for how long they are not evicted; 0: no pin. ``all_nodes`` includes the other
    nodes of the cluster; with ``skip_missing``, nodes that do not answer are no error. ``nodes``
    selects nodes of the cluster by their addresses or hosts; the receiving node is included only if
    it is named. ``owner`` holds the pin. Releasing another owner's pin does not affect it.
    """

    repo: str
    rev: str = "main"
    paths: list[_Text] = []
    globs: list[_Text] = []
    pin_s: Annotated[int, msgspec.Meta(ge=0, le=PIN_S_MAX)] = 0
    all_nodes: bool = False
    skip_missing: bool = False
    owner: _Owner = ""
    nodes: list[_Text] = []


class WarmError(msgspec.Struct, frozen=True):
    """A failed path. ``error`` names a class of errors.py, ``path`` is encoded."""

    error: str
    message: str
    path: str = ""


class NodeShare(msgspec.Struct, frozen=True):
    """One node's share of a job for all nodes. ``error`` is why its state is unknown, or its first
    failure."""

    address: str  # "" is the node that answers
    state: State
    files_done: int = 0
    bytes_done: int = 0
    bytes_total: int | None = None
    fetched_bytes: int = 0
    error: str = ""


class WarmStatus(msgspec.Struct, frozen=True):
    """The progress of a job on this node, or, if there are ``nodes``, on all of them together.

    Totals are None until they are known. ``fetched_bytes`` were not in the cache before. ``eta_s``
    is None if unknown.
    """

    id: str
    repo: str
    commit: str
    state: State
    files_done: int
    files_total: int | None
    bytes_done: int
    bytes_total: int | None
    fetched_bytes: int
    bytes_per_s: float
    eta_s: float | None
    elapsed_s: float
    pinned_until_s: int | None  # Unix time
    errors: list[WarmError]
    errors_total: int
    nodes: list[NodeShare] = []


class WarmJobs(msgspec.Struct, frozen=True):
    """The jobs of a node, newest first."""

    jobs: list[WarmStatus]


class PinView(msgspec.Struct, frozen=True):
    """A pin. All pinned files lie at or below ``path``; ``what`` is the request. Both are encoded.
    ``is_complete``: all of it is in the cache. ``owners``: those with a name."""

    id: str
    repo: str
    commit: str
    path: str
    what: str
    pinned_until_s: int  # Unix time
    size_bytes: int
    cache_files: int
    is_complete: bool
    owners: list[str] = []


class PinsView(msgspec.Struct, frozen=True):
    """All pins of a node, and the bytes of the cache files that they hold."""

    pins: list[PinView]
    pinned_bytes: int
    cache_size_bytes_max: int


class EvictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to drop data from the cache: ``path`` of ``repo`` (at ``rev``, or if that is None,
    at every commit that the node knows), or ``everything``. ``pins_only`` drops only pins.
    ``owner`` drops only this owner's pins (None: any owner's). Pins that have other owners, too,
    stay. ``all_nodes`` drops all pins of an owner on all nodes of the cluster that answer, and ends
    its warm jobs."""

    repo: str | None = None
    rev: str | None = None
    path: _Text = ""
    everything: bool = False
    pins_only: bool = False
    dry_run: bool = False
    owner: _Owner | None = None
    all_nodes: bool = False


class EvictView(msgspec.Struct, frozen=True):
    """The pins and whole cache files that were dropped, or in a dry run would be.

    ``freed_bytes`` is the size of these files, ``wanted_bytes`` the part of them that was named;
    the rest is data of other datasets in the same files. ``kept_*`` counts files that have some of
    it and stay, because other pins hold them (``held_by``) or they are being read.
    """

    pins: list[PinView]
    cache_files: int
    freed_bytes: int
    wanted_bytes: int
    kept_cache_files: int
    kept_bytes: int
    held_by: list[PinView]
    dry_run: bool


def encoded(path: bytes) -> str:
    """Encodes a path or pattern for JSON."""
    return quote_from_bytes(path, safe="/*?[]!")


def decoded(text: str) -> bytes:
    """Returns the bytes of an encoded path or pattern."""
    return unquote_to_bytes(text)

"""What a node is asked to do with its cache: warm, pin, evict. The JSON of docs/protocol.md.

Paths and patterns are bytes; in JSON they are percent-encoded as in URLs, and a pattern's ``*``,
``?``, ``[`` and ``]`` may stand as they are.
"""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

WARM = "/warm"  # POST: begin; GET: all jobs. /warm/ID: GET, DELETE
PINS = "/pins"  # GET
EVICT = "/evict"  # POST
WARM_BYTES_MAX = 16 * 1024 * 1024  # of one request's body: some 200,000 paths
EVICT_BYTES_MAX = 128 * 1024
PIN_S_MAX = 10 * 366 * 86400
ERRORS_MAX = 20  # reported of one job

# "skipped" is a node's share alone: it did not answer, and the request said to go on without it
State = Literal["listing", "fetching", "done", "failed", "cancelled", "skipped"]
RUNNING: tuple[State, ...] = ("listing", "fetching")

_Text = Annotated[str, msgspec.Meta(max_length=65536)]
OWNER = r"[A-Za-z0-9_.-]{1,64}"  # of pins; it stands in the targets of requests between nodes
_Owner = Annotated[str, msgspec.Meta(pattern=rf"\A(?:{OWNER})?\Z")]


class WarmRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Files to bring into the cache: ``paths`` and what ``globs`` match, or all.

    ``pin_s``: for how long they are not evicted; 0: as all others. ``all_nodes``: on the other
    nodes of the cluster, too; with ``skip_missing`` those that do not answer are no error.
    ``nodes``: on exactly these of the cluster, by their addresses or hosts; the node that is asked
    is one of them only where it is named. ``owner``: the holder of the pin. Releasing another
    owner's pin does not affect it.
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
    """Something that did not come: ``error`` names a class of errors.py, ``path`` is encoded."""

    error: str
    message: str
    path: str = ""


class NodeShare(msgspec.Struct, frozen=True):
    """One node's share of a job for all nodes. ``error``: why it cannot be seen, or what it lacks
    first."""

    address: str  # "" is the node that answers
    state: State
    files_done: int = 0
    bytes_done: int = 0
    bytes_total: int | None = None
    fetched_bytes: int = 0
    error: str = ""


class WarmStatus(msgspec.Struct, frozen=True):
    """How far a job is: on this node, or of all ``nodes`` together if there are some.

    Totals are None until they are known. ``fetched_bytes``: what was not here before. ``eta_s``:
    None if that is unknown.
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
    pinned_until_s: int | None  # Unix
    errors: list[WarmError]
    errors_total: int
    nodes: list[NodeShare] = []


class WarmJobs(msgspec.Struct, frozen=True):
    """The jobs of a node, the newest first."""

    jobs: list[WarmStatus]


class PinView(msgspec.Struct, frozen=True):
    """A pin: ``path`` is the directory or file that all of it lies at or below, ``what`` was asked
    for, both encoded. ``is_complete``: all of it has come. ``owners``: those with a name."""

    id: str
    repo: str
    commit: str
    path: str
    what: str
    pinned_until_s: int  # Unix
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
    """What to drop from the cache: ``path`` of ``repo`` (at ``rev``; at every commit that the node
    knows where that is None), or ``everything``. ``pins_only``: nothing but the pins. ``owner``: of
    pins this owner's alone (None: any owner's). Pins that other owners have too stay.
    ``all_nodes``: an owner's pins, of everything, on all nodes of the cluster that answer; its warm
    jobs end."""

    repo: str | None = None
    rev: str | None = None
    path: _Text = ""
    everything: bool = False
    pins_only: bool = False
    dry_run: bool = False
    owner: _Owner | None = None
    all_nodes: bool = False


class EvictView(msgspec.Struct, frozen=True):
    """What was (or, in a dry run, would be) dropped: pins, and whole files of the cache.

    ``freed_bytes``: of these files; ``wanted_bytes``: of what was named, in them; the difference
    is other datasets' data that shared a file with it. ``kept_*``: files that hold some of it and
    stay: other pins hold them (``held_by``), or they are being read.
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
    """A path or pattern for JSON."""
    return quote_from_bytes(path, safe="/*?[]!")


def decoded(text: str) -> bytes:
    """The bytes of an encoded path or pattern."""
    return unquote_to_bytes(text)

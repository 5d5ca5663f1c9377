"""Routes: which thing a request's raw target names. Pure; nothing is looked up here.

Names inside a snapshot are bytes, so the target is parsed by hand, from its percent-encoding.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote, unquote_to_bytes

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.format import names
from lodefs.chunkstore.protocol import cache_control, wire

FILES, STAT, LIST, TREES, SNAPSHOTS = "files", "stat", "list", "trees", "snapshots"
NODE, CHILDREN, LOOKUP, DATA = "node", "children", "lookup", "data"
HEALTHZ, READYZ, METRICS, STATUS, OPENAPI = "healthz", "readyz", "metrics", "status", "openapi"
CACHE, CACHE_USED = "cache", "cache-used"  # on the Unix socket only
WARM, WARM_JOB, PINS, EVICT = "warm", "warm-job", "pins", "evict"  # there, too
PEER_WARM, PEER_WARM_JOB = "peer-warm", "peer-warm-job"  # among nodes alone
# The status page's own; they change with it, and are no interface for others.
PAGE, PAGE_STATIC, PAGE_LOGIN, PAGE_LOGOUT = "page", "page-static", "page-login", "page-logout"
PAGE_EVENTS, PAGE_REPOSITORIES, PAGE_REPOSITORY = "page-events", "page-repos", "page-repo"
PAGE_HISTORY, PAGE_CHANGES, PAGE_CACHED = "page-history", "page-changes", "page-cached"
PAGE_PREVIEW, PAGE_IMAGE, PAGE_FIND = "page-preview", "page-image", "page-find"
PAGE_SESSION = "page-session"
OTHER = "other"  # the label of requests that name no route

PAGE_PREFIX = "/page/"
STATIC_PREFIX = f"{PAGE_PREFIX}static/"
LOGIN_BYTES_MAX = 1024
_PLAIN = {
    "/": PAGE,
    f"{PAGE_PREFIX}login": PAGE_LOGIN,
    f"{PAGE_PREFIX}logout": PAGE_LOGOUT,
    f"{PAGE_PREFIX}events": PAGE_EVENTS,
    f"{PAGE_PREFIX}session": PAGE_SESSION,
    "/healthz": HEALTHZ,
    "/readyz": READYZ,
    "/metrics": METRICS,
    "/status": STATUS,
    "/openapi.json": OPENAPI,
    wire.CACHE: CACHE,
    wire.CACHE_USED: CACHE_USED,
    cache_control.WARM: WARM,
    cache_control.PINS: PINS,
    cache_control.EVICT: EVICT,
}
_WARM_JOB = f"{cache_control.WARM}/"
READ_METHODS = ("GET", "HEAD")
_JOB_METHODS = (*READ_METHODS, "DELETE")
_METHODS = {
    CACHE_USED: ("POST",),
    EVICT: ("POST",),
    WARM: (*READ_METHODS, "POST"),
    PAGE_LOGIN: ("POST",),
    PAGE_LOGOUT: ("POST",),
    WARM_JOB: _JOB_METHODS,
    PEER_WARM: ("POST",),
    PEER_WARM_JOB: _JOB_METHODS,
}
_BODIES = {
    PAGE_LOGIN: LOGIN_BYTES_MAX,
    CACHE_USED: wire.USED_BYTES_MAX,
    EVICT: cache_control.EVICT_BYTES_MAX,
    WARM: cache_control.WARM_BYTES_MAX,
    PEER_WARM: cache_control.WARM_BYTES_MAX,
}
_JOB_ID = re.compile(r"[0-9a-f]{16}\Z")
_IN_SNAPSHOT = {
    wire.FILES: FILES,
    wire.STAT: STAT,
    wire.LIST: LIST,
    wire.TREES: TREES,
    wire.SNAPSHOTS: SNAPSHOTS,
}
_PAGE_TREES = {
    "history": PAGE_HISTORY,
    "changes": PAGE_CHANGES,
    "cached": PAGE_CACHED,
    "preview": PAGE_PREVIEW,
    "image": PAGE_IMAGE,
    "find": PAGE_FIND,
}
_NODE_PARTS = {b"": NODE, b"children": CHILDREN, b"lookup": LOOKUP, b"data": DATA}
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INO = re.compile(rb"[1-9][0-9]{0,18}\Z")
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)

PAGE_ENTRIES_DEFAULT = 1000


@dataclass(frozen=True, slots=True)
class Route:
    """What a request names. ``repo`` is "" if the route is of no repository."""

    kind: str
    repo: str = ""
    rev: str = ""
    path: bytes = b""
    ino: int = 0
    query: dict[str, bytes] = field(default_factory=dict)
    error: LodefsError | None = None  # why it names nothing that exists

    @property
    def methods(self) -> tuple[str, ...]:
        return _METHODS.get(self.kind, READ_METHODS)

    @property
    def body_bytes_max(self) -> int:
        """How large the body of a request may be; 0 for none."""
        return _BODIES.get(self.kind, 0)

    @property
    def is_always_answered(self) -> bool:
        """Whether it is answered also while there are too many requests: who looks what is the
        matter must see it."""
        return self.is_health or self.kind == METRICS

    @property
    def is_health(self) -> bool:
        """Whether every endpoint answers it."""
        return self.kind in (HEALTHZ, READYZ)


def route_of(raw_target: str) -> Route:
    """As ``parse_route``, but with the error in the route, which still has its methods."""
    try:
        return parse_route(raw_target)
    except LodefsError as error:
        path = raw_target.partition("?")[0]
        kind = OTHER
        if path.startswith(_WARM_JOB):
            kind = WARM_JOB
        elif path == wire.PEER_WARM:
            kind = PEER_WARM
        elif path.startswith(f"{wire.PEER_WARM}/"):
            kind = PEER_WARM_JOB
        return Route(kind, error=error)


def parse_route(raw_target: str) -> Route:
    """The route of a request target as it came, with its query. NotFound for a path that is no
    route; InvalidInput for a malformed escape, NUL, '..', a repository, revision or inode number
    that cannot be one, or a query parameter given twice."""
    target = _ABSOLUTE.sub("", raw_target, count=1)  # RFC 9112, 3.2.2: absolute-form is allowed
    raw_path, _, raw_query = target.partition("#")[0].partition("?")
    if raw_path in _PLAIN:
        return Route(_PLAIN[raw_path])
    if _BAD_ESCAPE.search(target):
        raise InvalidInput("the URL holds a '%' that is not followed by two hex digits")
    head, slash, tail = raw_path[1:].partition("/")
    prefix = f"/{head}{slash}"
    if prefix in _IN_SNAPSHOT:
        repo, rev, path = _split(tail)
        kind = _IN_SNAPSHOT[prefix]
        if kind == SNAPSHOTS and path:
            raise NotFound(f"{wire.SNAPSHOTS}REPO@REV has no parts")
        return Route(kind, repo, rev, path, query=parse_query(raw_query))
    if prefix == _WARM_JOB:
        if not _JOB_ID.match(tail):
            raise InvalidInput("the id of a warm job has 16 hex digits")
        return Route(WARM_JOB, path=tail.encode())
    if prefix == wire.NODES:
        return _node_route(tail, raw_query)
    if prefix == PAGE_PREFIX:
        return _page_route(tail, raw_query)
    raise NotFound("no such path; /openapi.json lists what there is")


def _page_route(tail: str, raw_query: str) -> Route:
    head, _, rest = tail.partition("/")
    query = parse_query(raw_query)
    if head == "static" and rest:
        return Route(PAGE_STATIC, path=unquote_to_bytes(rest))
    if head == "repositories" and not rest:
        return Route(PAGE_REPOSITORIES, query=query)
    if head == "repository":
        return Route(PAGE_REPOSITORY, names.check_repo(unquote(rest)), query=query)
    if head in _PAGE_TREES:
        return Route(_PAGE_TREES[head], *_split(rest), query=query)
    raise NotFound("the status page has no such part")


def _split(tail: str) -> tuple[str, str, bytes]:
    repo, rev, path = wire.split_target(tail)
    names.check_repo(repo)
    names.check_revision(rev)
    return repo, rev, b"/".join(names.split_path(path))


def _node_route(tail: str, raw_query: str) -> Route:
    repo, rev, path = _split(tail)
    names.parse_id(rev, "commit id")
    number, _, part = path.partition(b"/")
    if part not in _NODE_PARTS:
        raise NotFound("no such path under /nodes/; /openapi.json lists what there is")
    if not _INO.match(number) or int(number) >= 1 << 63:
        raise InvalidInput("an inode number must be a decimal number from 1 to 2^63 - 1")
    return Route(_NODE_PARTS[part], repo, rev, b"", int(number), parse_query(raw_query))


def parse_query(raw_query: str) -> dict[str, bytes]:
    """The parameters of a query, their values unescaped to bytes ('+' stands for itself)."""
    found: dict[str, bytes] = {}
    for pair in filter(None, raw_query.split("&")):
        name, _, value = pair.partition("=")
        if name in found:
            raise InvalidInput(f"the query parameter {name!r} is given twice")
        found[name] = unquote_to_bytes(value)
    return found


def page_of(route: Route) -> tuple[bytes, int]:
    """``after`` and ``limit`` of a listing; InvalidInput where they are malformed."""
    raw = route.query.get("limit", str(PAGE_ENTRIES_DEFAULT).encode())
    if not re.fullmatch(rb"[0-9]{1,6}", raw) or not 1 <= int(raw) <= wire.CHILDREN_MAX:
        raise InvalidInput(f"limit must be a number from 1 to {wire.CHILDREN_MAX}")
    return checked_name(route.query.get("after", b"")), int(raw)


def checked_name(name: bytes) -> bytes:
    """One name of a directory, or b""; InvalidInput for what no name can be."""
    if len(name) > names.NAME_BYTES_MAX or b"/" in name or b"\0" in name:
        raise InvalidInput(
            f"a name has at most {names.NAME_BYTES_MAX} bytes, and no '/' and no NUL among them"
        )
    return name

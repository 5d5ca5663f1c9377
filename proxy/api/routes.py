"""Routes: parses what a request's raw target names. Pure; looks nothing up.

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
WARM, WARM_JOB, PINS, EVICT = "warm", "warm-job", "pins", "evict"  # on the Unix socket only
PEER_WARM, PEER_WARM_JOB, PEER_HUB = "peer-warm", "peer-warm-job", "peer-hub"  # between nodes
# The status page's own routes; they change with it, and are not an interface for others.
PAGE, PAGE_STATIC, PAGE_LOGIN, PAGE_LOGOUT = "page", "page-static", "page-login", "page-logout"
PAGE_EVENTS, PAGE_REPOSITORIES, PAGE_REPOSITORY = "page-events", "page-repos", "page-repo"
PAGE_HISTORY, PAGE_CHANGES, PAGE_CACHED = "page-history", "page-changes", "page-cached"
PAGE_PREVIEW, PAGE_IMAGE, PAGE_FIND = "page-preview", "page-image", "page-find"
PAGE_SESSION, PAGE_DIRECTORY, PAGE_DATES = "page-session", "page-directory", "page-dates"
HUB = "hub"  # the API of the Hugging Face Hub; ``Route.path`` is what follows HUB_PREFIX, unparsed
LFS = "lfs"  # the API of Git LFS; ``Route.path`` is what follows the repository
OTHER = "other"  # the label of requests without a route

PAGE_PREFIX = "/page/"
HUB_PREFIX = "/hf/"
LFS_PREFIX = "/lfs/"
LFS_BYTES_MAX = 1 << 20  # of a batch; about 10,000 objects
HUB_ORDER_BYTES_MAX = 4096
HUB_BYTES_MAX = 1 << 20  # of a form that names paths
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
    HUB: (*READ_METHODS, "POST"),
    LFS: (*READ_METHODS, "POST", "PUT"),
    PAGE_LOGIN: ("POST",),
    PAGE_LOGOUT: ("POST",),
    WARM_JOB: _JOB_METHODS,
    PEER_WARM: ("POST",),
    PEER_HUB: ("POST",),
    PEER_WARM_JOB: _JOB_METHODS,
}
_BODIES = {
    HUB: HUB_BYTES_MAX,
    LFS: LFS_BYTES_MAX,
    PAGE_LOGIN: LOGIN_BYTES_MAX,
    CACHE_USED: wire.USED_BYTES_MAX,
    EVICT: cache_control.EVICT_BYTES_MAX,
    WARM: cache_control.WARM_BYTES_MAX,
    PEER_WARM: cache_control.WARM_BYTES_MAX,
    PEER_HUB: HUB_ORDER_BYTES_MAX,
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
    "directory": PAGE_DIRECTORY,
    "dates": PAGE_DATES,
}
_NODE_PARTS = {b"": NODE, b"children": CHILDREN, b"lookup": LOOKUP, b"data": DATA}
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# The server's URL is /lfs/REPO; a client that has only the URL of a Git repository adds the rest
_LFS_TAIL = re.compile(
    r"(?P<repo>.+?)(?:\.git)?(?:/info/lfs)?/"
    r"(?P<rest>objects/[^/]+|locks(?:/verify|/[^/]+/unlock)?)\Z"
)
_INO = re.compile(rb"[1-9][0-9]{0,18}\Z")
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)

PAGE_ENTRIES_DEFAULT = 1000


@dataclass(frozen=True, slots=True)
class Route:
    """The meaning of a request target. ``repo`` is "" if the route has no repository."""

    kind: str
    repo: str = ""
    rev: str = ""
    path: bytes = b""
    ino: int = 0
    query: dict[str, bytes] = field(default_factory=dict)
    error: LodefsError | None = None  # why the target is invalid

    @property
    def methods(self) -> tuple[str, ...]:
        return _METHODS.get(self.kind, READ_METHODS)

    @property
    def body_bytes_max(self) -> int:
        """The largest allowed body of a request; 0 for none."""
        return _BODIES.get(self.kind, 0)

    def takes_content(self, method: str) -> bool:
        """Whether the body of such a request has any size, and is read while it comes."""
        return self.kind == LFS and method == "PUT"

    @property
    def is_always_answered(self) -> bool:
        """Whether it is answered even while there are too many requests, so that diagnostics still
        get through."""
        return self.is_health or self.kind == METRICS

    @property
    def is_health(self) -> bool:
        """Whether every endpoint answers it."""
        return self.kind in (HEALTHZ, READYZ)


def route_of(raw_target: str) -> Route:
    """Does what ``parse_route`` does, but puts the error into the route, which still has its
    methods."""
    try:
        return parse_route(raw_target)
    except LodefsError as error:
        path = raw_target.partition("?")[0]
        kind = OTHER
        if path.startswith(_WARM_JOB):
            kind = WARM_JOB
        elif path == wire.PEER_WARM:
            kind = PEER_WARM
        elif path == wire.PEER_HUB:
            kind = PEER_HUB
        elif path.startswith(f"{wire.PEER_WARM}/"):
            kind = PEER_WARM_JOB
        return Route(kind, error=error)


def parse_route(raw_target: str) -> Route:
    """Parses a raw request target with its query. Raises: NotFound for an unknown path;
    InvalidInput for a malformed escape, NUL, '..', an invalid repository, revision or inode number,
    or a query parameter given twice."""
    target = _ABSOLUTE.sub("", raw_target, count=1)  # RFC 9112, 3.2.2: absolute-form is allowed
    raw_path, _, raw_query = target.partition("#")[0].partition("?")
    if raw_path in _PLAIN:
        return Route(_PLAIN[raw_path])
    if _BAD_ESCAPE.search(target):
        raise InvalidInput("the URL has a '%' that is not followed by two hex digits")
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
    if prefix == HUB_PREFIX:
        rest = target.removeprefix(HUB_PREFIX)
        return Route(HUB, path=rest.encode("utf-8", "surrogateescape"))
    if prefix == LFS_PREFIX:
        return _lfs_route(tail, raw_query)
    if prefix == PAGE_PREFIX:
        return _page_route(tail, raw_query)
    raise NotFound("there is no such path; /openapi.json lists all paths")


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


def _lfs_route(tail: str, raw_query: str) -> Route:
    found = _LFS_TAIL.match(unquote(tail))
    if found is None:
        raise NotFound(f"the URL of a Git LFS server is {LFS_PREFIX}REPO (docs/git.md)")
    repo = names.check_repo(found["repo"])
    return Route(LFS, repo, path=found["rest"].encode(), query=parse_query(raw_query))


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
        raise NotFound("there is no such path under /nodes/; /openapi.json lists all paths")
    if not _INO.match(number) or int(number) >= 1 << 63:
        raise InvalidInput("an inode number must be a decimal number from 1 to 2^63 - 1")
    return Route(_NODE_PARTS[part], repo, rev, b"", int(number), parse_query(raw_query))


def parse_query(raw_query: str) -> dict[str, bytes]:
    """Returns the parameters of a query, with values unescaped to bytes ('+' is not special)."""
    found: dict[str, bytes] = {}
    for pair in filter(None, raw_query.split("&")):
        name, _, value = pair.partition("=")
        if name in found:
            raise InvalidInput(f"the query parameter {name!r} is given twice")
        found[name] = unquote_to_bytes(value)
    return found


def page_of(route: Route) -> tuple[bytes, int]:
    """Returns ``after`` and ``limit`` of a list. Raises: InvalidInput if they are malformed."""
    raw = route.query.get("limit", str(PAGE_ENTRIES_DEFAULT).encode())
    if not re.fullmatch(rb"[0-9]{1,6}", raw) or not 1 <= int(raw) <= wire.CHILDREN_MAX:
        raise InvalidInput(f"limit must be a number from 1 to {wire.CHILDREN_MAX}")
    return checked_name(route.query.get("after", b"")), int(raw)


def checked_name(name: bytes) -> bytes:
    """Returns one name of a directory, or b"". Raises: InvalidInput for an invalid name."""
    if len(name) > names.NAME_BYTES_MAX or b"/" in name or b"\0" in name:
        raise InvalidInput(f"a name has at most {names.NAME_BYTES_MAX} bytes, without '/' and NUL")
    return name

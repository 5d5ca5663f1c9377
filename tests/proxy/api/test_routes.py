"""Request targets and the routes they name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.protocol import wire
from lodefs.proxy.api import routes
from lodefs.proxy.api.routes import Route, page_of, parse_route

COMMIT = "ab" * 32


@pytest.mark.parametrize(
    ("target", "route"),
    [
        ("/healthz", Route(routes.HEALTHZ)),
        ("/status?x=1", Route(routes.STATUS)),
        ("http://host:7440/healthz", Route(routes.HEALTHZ)),
        ("/files/demo@main/a/b", Route(routes.FILES, "demo", "main", b"a/b")),
        ("/files/vision/x@v1.2/a", Route(routes.FILES, "vision/x", "v1.2", b"a")),
        ("/files/demo@main/a%2Fb//c/.", Route(routes.FILES, "demo", "main", b"a/b/c")),
        ("/files/demo@main/%ff%0a%40+x", Route(routes.FILES, "demo", "main", b"\xff\n@+x")),
        ("/files/demo%40main/a", Route(routes.FILES, "demo", "main", b"a")),
        ("/files/demo@main/a#frag", Route(routes.FILES, "demo", "main", b"a")),
        ("/stat/demo@main", Route(routes.STAT, "demo", "main")),
        ("/list/demo@main/", Route(routes.LIST, "demo", "main")),
        ("/trees/demo@main/dir/", Route(routes.TREES, "demo", "main", b"dir")),
        ("/snapshots/demo@main", Route(routes.SNAPSHOTS, "demo", "main")),
        (f"/nodes/demo@{COMMIT}/1", Route(routes.NODE, "demo", COMMIT, b"", 1)),
        (f"/nodes/a/b@{COMMIT}/12/data", Route(routes.DATA, "a/b", COMMIT, b"", 12)),
        (
            f"/nodes/demo@{COMMIT}/1/lookup?name=%ff%2B+",
            Route(routes.LOOKUP, "demo", COMMIT, b"", 1, {"name": b"\xff++"}),
        ),
        (
            f"/nodes/demo@{COMMIT}/9223372036854775807/children?after=a&limit=3",
            Route(routes.CHILDREN, "demo", COMMIT, b"", 2**63 - 1, {"after": b"a", "limit": b"3"}),
        ),
    ],
)
def test_known_routes(target: str, route: Route) -> None:
    """Names are unescaped to bytes, and nothing else changes."""
    assert parse_route(target) == route


@pytest.mark.parametrize(
    "target",
    ["/x", "", "*", "/nothing", "/page/", "/page/x", "/page/static/", "/files",
     "/healthz/x", "/snapshots/demo@main/x", "//healthz",
     f"/nodes/demo@{COMMIT}/1/other", f"/nodes/demo@{COMMIT}/1/data/more"],
)  # fmt: skip
def test_unknown_routes(target: str) -> None:
    """What is no route is not found."""
    with pytest.raises(NotFound):
        parse_route(target)


@pytest.mark.parametrize(
    "target",
    [
        "/files/demo@main/../etc/passwd",
        "/files/demo@main/a/%2e%2e/b",
        "/files/demo@main/%2E%2e",
        "/files/demo@main/a%00b",
        "/files/demo@main/" + "x" * 256,
        "/files/demo@main/%zz",
        "/files/demo@main/%",
        "/files/demo/x",
        "/files/@main/x",
        "/files/demo@/x",
        "/files/../demo@main/x",
        "/files/demo@../x",
        "/files/demo@ma%00in/x",
        "/files//demo@main/x",
        "/files/repos/refs@main/x",
        "/nodes/demo@main/1",
        f"/nodes/demo@{COMMIT.upper()}/1",
        f"/nodes/demo@{COMMIT}/0",
        f"/nodes/demo@{COMMIT}/-1",
        f"/nodes/demo@{COMMIT}/x",
        f"/nodes/demo@{COMMIT}/9223372036854775808",
        f"/nodes/demo@{COMMIT}/" + "9" * 200,
        f"/nodes/demo@{COMMIT}/1/lookup?name=a&name=b",
    ],
)
def test_malformed_targets(target: str) -> None:
    """Traversal, NUL, bad escapes and impossible names are refused."""
    with pytest.raises(InvalidInput):
        parse_route(target)


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=4097", "limit=-1", "limit=x", "limit=", "limit=1e3"),
        *("after=a%2Fb", "after=%00", "after=" + "x" * 256),
    ],
)
def test_bad_pages(query: str) -> None:
    """A limit is a number within bounds, and after is a name."""
    with pytest.raises(InvalidInput):
        page_of(parse_route(f"/list/demo@main?{query}"))


def test_page_defaults() -> None:
    """Without a query the first page is meant."""
    assert page_of(parse_route("/list/demo@main")) == (b"", routes.PAGE_ENTRIES_DEFAULT)


@given(st.lists(st.binary(min_size=1, max_size=255), max_size=4))
def test_every_name_survives(names: list[bytes]) -> None:
    """Whatever bytes a path has, its URL names it."""
    clean = [name for name in names if b"/" not in name and b"\0" not in name]
    path = b"/".join(name for name in clean if name not in (b".", b".."))
    assert parse_route(wire.file_path(wire.FILES, "demo", "main", path)).path == path


@given(st.text(max_size=60))
def test_any_target_is_a_route_or_an_error_of_ours(text: str) -> None:
    """No target raises anything but errors.py's classes."""
    for prefix in ("", "/", "/files/", "/list/demo@main", "/nodes/demo@" + COMMIT):
        try:
            parse_route(prefix + text)
        except LodefsError:
            continue

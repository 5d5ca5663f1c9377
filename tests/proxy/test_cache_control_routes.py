"""Warming, pins and eviction over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol.cache_control import (
    EVICT_BYTES_MAX,
    RUNNING,
    EvictRequest,
    WarmRequest,
)
from tests.support.proxy.fake_cache_control import MemoryCacheControl
from tests.support.proxy.fake_node import Client, DictNode, RunningProxy, exchange, start_proxy
from tests.support.proxy.rig import REPO, Rig, serve_rig

JOB = "0123456789abcdef"


@pytest.fixture
def cache_control() -> MemoryCacheControl:
    return MemoryCacheControl()


@pytest.fixture
def proxy(cache_control: MemoryCacheControl) -> Iterator[RunningProxy]:
    node = DictNode({b"a": b"x"})
    node.cache_control = cache_control
    with start_proxy(node) as running:
        yield running


def post(client: Client, path: str, value: object) -> tuple[int, object]:
    """Status and JSON of a posted request."""
    reply = client.get(path, method="POST", body=json.dumps(value).encode())
    return reply.status, reply.json()


def test_a_job_over_http(proxy: RunningProxy, cache_control: MemoryCacheControl) -> None:
    """202 with an id and a place; the place tells how far it is, and a DELETE ends it."""
    with proxy.client() as client:
        body = json.dumps({"repo": "demo", "globs": ["*.jpg"], "pin_s": 60}).encode()
        begun = client.get("/warm", method="POST", body=body)
        assert begun.status == 202
        place = begun.header("Location")
        assert place == f"/warm/{begun.json()['id']}"
        assert cache_control.requests == [WarmRequest("demo", globs=["*.jpg"], pin_s=60)]
        assert client.get(place).json()["state"] == "fetching"
        assert [job["id"] for job in client.get("/warm").json()["jobs"]] == [begun.json()["id"]]
        assert client.get(place, method="DELETE").json()["state"] == "cancelled"
        assert client.get(place).json()["state"] == "cancelled"


def test_pins_and_evict_over_http(proxy: RunningProxy, cache_control: MemoryCacheControl) -> None:
    """Lists are read, requests are posted."""
    with proxy.client() as client:
        assert client.get("/pins").json()["pins"] == []
        status, view = post(client, "/evict", {"repo": "demo", "dry_run": True})
        assert (status, view["dry_run"]) == (200, True)  # type: ignore[index]
        assert cache_control.requests == [EvictRequest("demo", dry_run=True)]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("/warm", {}, "repo"),
        ("/warm", {"repo": 7}, "repo"),
        ("/warm", {"repo": "demo", "path": "a"}, "path"),
        ("/warm", {"repo": "demo", "pin_s": -1}, "pin_s"),
        ("/warm", {"repo": "demo", "pin_s": 10**12}, "pin_s"),
        ("/warm", {"repo": "demo", "paths": "a"}, "paths"),
        ("/warm", {"repo": "demo", "paths": ["a/../b"]}, "'..'"),
        ("/warm", {"repo": "../x"}, "../x"),
        ("/warm", [], "array"),
        ("/evict", {"repo": "demo", "everthing": True}, "everthing"),
        ("/evict", {"dry_run": "yes"}, "dry_run"),
        ("/warm", {"repo": "demo", "owner": "x y"}, "owner"),
        ("/evict", {"everything": True, "owner": "x HTTP/1.1\r\nX: y"}, "owner"),
        ("/evict", {"everything": True, "owner": "x\n"}, "owner"),
        ("/evict", {"everything": True, "owner": "日本"}, "owner"),
        ("/evict", {"everything": True, "owner": "x" * 65}, "owner"),
    ],
)
def test_bad_bodies_are_told_by_name(
    proxy: RunningProxy, path: str, value: object, named: str
) -> None:
    """400, and the message names what is wrong."""
    with proxy.client() as client:
        status, failure = post(client, path, value)
        assert (status, failure["error"]) == (400, "InvalidInput")  # type: ignore[index]
        assert named in failure["message"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", f"/warm/{JOB}", 404),
        ("DELETE", f"/warm/{JOB}", 404),
        ("GET", "/warm/xyz", 400),
        ("GET", "/warm/", 400),
        ("PUT", "/warm", 405),
        ("DELETE", "/warm", 405),
        ("POST", f"/warm/{JOB}", 405),
        ("POST", "/pins", 405),
        ("DELETE", "/files/demo@main/a", 405),
        ("GET", "/evict", 405),
    ],
)
def test_other_requests(proxy: RunningProxy, method: str, target: str, status: int) -> None:
    """Unknown jobs are 404, malformed ids 400, other methods 405 with those that are allowed."""
    with proxy.client() as client:
        reply = client.get(target, method=method)
        assert reply.status == status
        assert (reply.header("Allow") is not None) == (status == 405)


def test_bodies_are_bounded(proxy: RunningProxy) -> None:
    """A body that is too large, or of a size that is not told, is refused before it is read."""
    for head in (f"Content-Length: {EVICT_BYTES_MAX + 1}", "Transfer-Encoding: chunked"):
        request = f"POST /evict HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n\r\n0\r\n\r\n"
        answer = exchange(proxy.connect(), request.encode())
        assert answer.startswith(b"HTTP/1.1 400 ")


def test_long_lists_are_taken(proxy: RunningProxy, cache_control: MemoryCacheControl) -> None:
    """A list of paths may have several MiB."""
    paths = [f"{n:0100}" for n in range(30_000)]
    with proxy.client() as client:
        status, _ = post(client, "/warm", {"repo": "demo", "paths": paths})
    assert status == 202
    assert cache_control.requests == [WarmRequest("demo", paths=paths)]


def test_encoded_bodies_are_refused(proxy: RunningProxy) -> None:
    """A body that is compressed, or says so, is the client's mistake."""
    lines = b"Host: x\r\nConnection: close\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n"
    data = b"POST /evict HTTP/1.1\r\n%b\r\nhello" % lines
    assert exchange(proxy.connect(), data).startswith(b"HTTP/1.1 400 ")


def test_who_waits_to_be_told_sends_its_body_then(proxy: RunningProxy) -> None:
    """Expect: 100-continue is answered, as by curl's for long bodies."""
    lines = b"Host: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n"
    body = b'{"repo":"demo","dry_run":true}'
    with proxy.connect() as connected, connected.makefile("rb") as received:
        connected.sendall(b"POST /evict HTTP/1.1\r\n%b\r\n" % (lines % len(body)))
        assert received.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert received.readline() == b"\r\n"
        connected.sendall(body)
        assert received.readline() == b"HTTP/1.1 200 OK\r\n"


def test_only_the_unix_socket_has_them(proxy: RunningProxy) -> None:
    """Over TCP these paths are 404, also where TCP needs no token."""
    with proxy.client(tcp=True) as client:
        for target in ("/warm", f"/warm/{JOB}", "/pins"):
            assert client.get(target).status == 404
    for target, value in (("/warm", {"repo": "demo"}), ("/evict", {"everything": True})):
        with proxy.client(tcp=True) as client:
            assert post(client, target, value)[0] == 404


def test_a_node_without_a_cache() -> None:
    """Where there is nothing to look after, that is said."""
    with start_proxy(DictNode({b"a": b"x"})) as running, running.client() as client:
        assert client.get("/pins").status == 404


def test_a_real_node(tmp_path: Path) -> None:
    """A job of a real node over a real socket, from its start to its eviction."""
    rig = Rig(tmp_path, {b"f/%d" % n: b"%d" % n * 4000 for n in range(20)})
    with serve_rig(rig) as (proxy, _), proxy.client() as client:
        status, job = post(client, "/warm", {"repo": REPO, "pin_s": 60})
        assert status == 202
        place = f"/warm/{job['id']}"  # type: ignore[index]
        proxy.until(lambda: proxy.server.metrics.total("streams") == 0)
        while (found := client.get(place).json())["state"] in RUNNING:
            assert found["errors"] == []
        assert (found["state"], found["files_done"]) == ("done", 20)
        (pin,) = client.get("/pins").json()["pins"]
        assert (pin["repo"], pin["is_complete"]) == (REPO, True)
        assert b"lodefs_cache_pinned_bytes" in client.get("/metrics").body
        status, view = post(client, "/evict", {"repo": REPO})
        assert (status, len(view["pins"])) == (200, 1)  # type: ignore[index]
        assert client.get("/status").json()["node"]["cache_used_bytes"] == 0
        assert post(client, "/warm", {"repo": "no/such"})[0] == 404


def test_a_body_is_no_head(proxy: RunningProxy) -> None:
    """However the pieces of a large body come, between whichever turns of the server's loop, they
    are not taken for a head that does not end."""
    body = b'{"repo": "demo"}'.ljust(4_000_000)
    head = b"POST /warm HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with proxy.connect() as connected:
        for turn in range(60):
            connected.sendall(head)
            step = 5_000 << turn % 6
            for first in range(0, len(body), step):
                connected.sendall(body[first : first + step])
            answer = b""
            while b"}" not in answer:
                received = connected.recv(65536)
                assert received, answer
                answer += received
            assert answer.startswith(b"HTTP/1.1 202 "), answer

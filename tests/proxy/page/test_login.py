"""Who gets in with a browser, and what a browser does with what others pushed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.proxy.http.tokens import create_token, delete_token
from tests.support.proxy.fake_node import DictNode, RunningProxy, start_proxy

HTML = b"<script>document.title = 'owned'</script>"
FILES = {b"a.html": HTML, b"a.svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"a.js": b"1"}
EVIL = "evil.example:7440"


@pytest.fixture
def node() -> DictNode:
    """A node with files that a browser could run."""
    return DictNode(FILES, extents=True)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A tokens file."""
    return tmp_path / "tokens"


@pytest.fixture
def guarded(node: DictNode, tokens: Path) -> Iterator[tuple[RunningProxy, str]]:
    """A proxy with tokens, and one for its repository."""
    text = create_token(tokens, "reader", ["demo"], now_s=0)
    with start_proxy(node, tokens_file=tokens) as proxy:
        yield proxy, text


def test_login_and_logout(guarded: tuple[RunningProxy, str]) -> None:
    """A login gives a cookie, which reads as the token does; a logout takes it."""
    proxy, token = guarded
    with proxy.client(tcp=True) as client:
        assert client.get("/page/repositories").status == 401
        reply = client.get("/page/login", method="POST", body=token)
        cookie = (reply.header("Set-Cookie") or "").partition(";")[0]
        assert (reply.status, cookie) == (204, f"lodefs={token}")
        assert client.get("/page/repositories", Cookie=cookie).json()["names"] == ["demo"]
        assert client.get("/files/demo@main/a.js", Cookie=cookie).body == b"1"
        gone = client.get("/page/logout", method="POST", Cookie=cookie).header("Set-Cookie") or ""
        assert gone.startswith("lodefs=;")


def test_a_wrong_token_logs_nobody_in(guarded: tuple[RunningProxy, str]) -> None:
    """What is no token gives 401 and no cookie; too much of it 400."""
    proxy, _ = guarded
    with proxy.client(tcp=True) as client:
        for body, status in (
            (b"lodefs_x", 401),
            (b"", 401),
            (b"\xff\x00", 401),
            (b"x" * 2000, 400),
        ):
            reply = client.get("/page/login", method="POST", body=body)
            assert (reply.status, reply.header("Set-Cookie")) == (status, None)
            client._http.close()
            client._http.sock = proxy.connect(tcp=True)
        assert client.get("/status", Cookie="lodefs=lodefs_x").status == 401


def test_a_deleted_token_is_out(guarded: tuple[RunningProxy, str], tokens: Path) -> None:
    """A cookie with a token that was deleted meanwhile is as good as none, also for events that
    are being sent."""
    proxy, token = guarded
    cookie = f"lodefs={token}"
    with proxy.connect(tcp=True) as listener, proxy.client(tcp=True) as client:
        asked = f"Host: x\r\nConnection: close\r\nCookie: {cookie}\r\n\r\n"
        listener.sendall(b"GET /page/events HTTP/1.1\r\n" + asked.encode())
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        assert client.get("/page/repositories", Cookie=cookie).status == 200
        delete_token(tokens, "reader")
        asyncio.run_coroutine_threadsafe(proxy.server.tokens.look(), proxy.loop).result(60)
        assert client.get("/page/repositories", Cookie=cookie).status == 401
        received = b""
        while piece := listener.recv(65536):
            received += piece
        assert received.endswith(b"0\r\n\r\n")  # a whole body


def test_a_cookie_changes_nothing_and_serves_no_foreign_page(
    guarded: tuple[RunningProxy, str],
) -> None:
    """By cookie one only reads; a request from another origin, or to a foreign name, is refused."""
    proxy, token = guarded
    cookie = f"lodefs={token}"
    bearer = f"Bearer {token}"
    with proxy.client(tcp=True) as client:
        get = client.get
        assert get("/list/demo@main", Cookie=cookie, Host=EVIL).status == 403
        assert get("/list/demo@main", Cookie=cookie, Sec_Fetch_Site="same-site").status == 403
        assert get("/list/demo@main", Authorization=bearer, Host=EVIL).status == 200
        assert get("/", Host=EVIL).status == 403
        assert get("/healthz", Host=EVIL).status == 200
    for headers in ({"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        with proxy.client(tcp=True) as client:
            reply = client.get("/page/login", method="POST", body=token, **headers)
            assert (reply.status, reply.header("Set-Cookie")) == (403, None)


def test_a_page_elsewhere_uses_no_proxy_without_tokens(node: DictNode) -> None:
    """Without tokens, a foreign name in Host is refused, and so is what others' pages post; also at
    the Unix socket, which may be forwarded to somebody's browser. The hot path learns neither."""
    target = f"/files/demo@{node.commit}/a.js"
    with start_proxy(node) as proxy:
        for tcp in (True, False):
            with proxy.client(tcp=tcp) as client:
                for _ in range(3):
                    assert client.get(target).status == 200
                    assert client.get(target, Host=EVIL).status == 403
            for headers in ({"Origin": "http://evil.example"}, {"Host": EVIL}):
                with proxy.client(tcp=tcp) as client:
                    reply = client.get("/evict", method="POST", body="{}", **headers)
                    assert reply.status == (404 if tcp else 403)  # TCP has no such path


def test_a_made_up_token_proves_nothing(node: DictNode) -> None:
    """A foreign page may send any bearer token: where nobody verifies it, Host and Origin are
    checked as without."""
    target = f"/files/demo@{node.commit}/a.js"
    made_up = "Bearer x"
    with start_proxy(node) as proxy:
        for tcp in (True, False):
            with proxy.client(tcp=tcp) as client:
                for _ in range(3):
                    assert client.get(target, Authorization=made_up).status == 200
                    reply = client.get(target, Authorization=made_up, Host=EVIL)
                    assert reply.status == 403
        with proxy.client() as client:
            headers = {"Authorization": made_up, "Origin": "http://evil.example"}
            assert client.get("/evict", method="POST", **headers).status == 403


def test_on_open_paths_a_token_counts_if_it_is_known(guarded: tuple[RunningProxy, str]) -> None:
    """Where no token is needed, a foreign name passes with a known one and not with any other."""
    proxy, token = guarded
    with proxy.client(tcp=True) as client:
        for text, status in ((token, 200), ("x", 403)):
            assert client.get("/", Authorization=f"Bearer {text}", Host=EVIL).status == status
        assert client.get("/list/demo@main", Authorization="Bearer x", Host=EVIL).status == 401


@pytest.mark.parametrize("name", ["a.html", "a.svg", "a.js"])
@pytest.mark.parametrize("asks", [1, 3])
def test_content_of_others_is_kept_in_a_sandbox(node: DictNode, name: str, asks: int) -> None:
    """Files are sent so that a browser neither runs them on this origin nor guesses their type, by
    the ordinary path and by the hot one."""
    with start_proxy(node) as proxy, proxy.client() as client:
        for _ in range(asks):
            reply = client.get(f"/files/demo@{node.commit}/{name}")
            proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        assert reply.header("Content-Security-Policy") == "sandbox"
        assert reply.header("X-Content-Type-Options") == "nosniff"
        assert proxy.server.metrics.fast_answers == asks - 1


def test_the_page_runs_its_own_scripts_alone(node: DictNode) -> None:
    """The page's policy names no other source, and inline only what it names by its hash."""
    with start_proxy(node) as proxy, proxy.client() as client:
        reply = client.get("/")
        policy = reply.header("Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'self' 'sha256-" in policy and "style-src 'self' 'sha256-" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.header("X-Content-Type-Options") == "nosniff"

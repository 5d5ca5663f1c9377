"""Tokens: made, kept hashed, checked, and asked for over TCP."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Corrupt,
    InvalidInput,
    LodefsError,
    NotFound,
    Renamed,
    Unavailable,
    UnknownFormat,
)
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.http.door_tls import DoorTls
from lodefs.proxy.http.endpoint import Endpoint
from lodefs.proxy.http.token_watch import TokenWatch
from lodefs.proxy.http.tokens import (
    TOKEN_PREFIX,
    TokenBook,
    Verdict,
    bearer_of,
    create_s3_token,
    create_token,
    delete_token,
    file_digest,
    key_path,
    list_tokens,
    password_of,
)
from tests.support.proxy.fake_node import DictNode, RunningProxy, start_proxy
from tests.support.proxy.scrape import samples

NOW_S = 1_700_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_a_token_is_never_stored(path: Path) -> None:
    """The file has the digest, the name, the patterns and the time; only its owner reads it."""
    token = create_token(path, "ci", ["vision/*"], now_s=NOW_S)
    assert token.startswith(TOKEN_PREFIX)
    assert len(token) > 40
    assert token not in path.read_text()
    (found,) = list_tokens(path)
    assert (found.name, found.patterns, found.created_s) == ("ci", ["vision/*"], NOW_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_tokens_differ(path: Path) -> None:
    """No two tokens are alike."""
    made = {create_token(path, f"t{number}", ["*"], now_s=NOW_S) for number in range(20)}
    assert len(made) == 20


@pytest.mark.parametrize(
    ("patterns", "repo", "verdict"),
    [
        (["*"], "vision/flickr", Verdict.ALLOWED),
        (["vision/*"], "vision/flickr", Verdict.ALLOWED),
        (["vision/*"], "visions/flickr", Verdict.FORBIDDEN),
        (["vision/*"], "text/vision/x", Verdict.FORBIDDEN),
        (["a", "b"], "b", Verdict.ALLOWED),
        (["a"], "A", Verdict.FORBIDDEN),
        (["a"], None, Verdict.ALLOWED),
    ],
)
def test_patterns(path: Path, patterns: list[str], repo: str | None, verdict: Verdict) -> None:
    """A token reads the repositories that its patterns cover, and no others."""
    token = create_token(path, "one", patterns, now_s=NOW_S)
    create_token(path, "two", ["*"], now_s=NOW_S)
    book = TokenBook(path)
    assert book.check(token, repo) is verdict
    assert book.check(token + "x", repo) is Verdict.UNKNOWN
    assert book.check("", repo) is Verdict.UNKNOWN


def test_names_are_used_once_and_can_be_deleted(path: Path) -> None:
    """Deleting names what it deletes, and frees the name."""
    create_token(path, "ci", ["*"], now_s=NOW_S)
    with pytest.raises(AlreadyExists, match="ci"):
        create_token(path, "ci", ["*"], now_s=NOW_S)
    delete_token(path, "ci")
    assert list_tokens(path) == []
    with pytest.raises(NotFound, match="ci"):
        delete_token(path, "ci")
    create_token(path, "ci", ["*"], now_s=NOW_S)


def test_a_bad_name_is_told_as_a_tokens(path: Path) -> None:
    """Whoever makes a token is told of a token's name."""
    with pytest.raises(InvalidInput, match="a token"):
        create_token(path, "a b", ["*"], now_s=NOW_S)


@pytest.mark.parametrize(
    ("name", "patterns"), [("", ["*"]), ("a b", ["*"]), ("a", []), ("a", [""])]
)
def test_bad_tokens_are_not_made(path: Path, name: str, patterns: list[str]) -> None:
    """A token has a plain name and at least one pattern."""
    with pytest.raises(InvalidInput):
        create_token(path, name, patterns, now_s=NOW_S)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Corrupt),
        (b"{", Corrupt),
        (b'{"version":1}', Corrupt),
        (b'{"more":' + b"[" * 200_000, Corrupt),
        (b'{"version":1,"tokens":[{"name":"x"}]}', Corrupt),
        (b'{"version":2,"tokens":[]}', UnknownFormat),
    ],
)
def test_damaged_files_are_refused(path: Path, data: bytes, error: type[LodefsError]) -> None:
    """Damage is an error at the start, and changes nothing in a proxy that runs."""
    token = create_token(path, "ci", ["*"], now_s=NOW_S)
    book = TokenBook(path)
    path.write_bytes(data)
    with pytest.raises(error, match="tokens"):
        TokenBook(path)
    with pytest.raises(error):
        book.reload()
    assert book.check(token, "any") is Verdict.ALLOWED
    assert book.reload() is False


def test_changes_are_noticed(path: Path) -> None:
    """A book that runs sees new and deleted tokens when it looks again."""
    book = TokenBook(path)
    assert book.reload() is False
    token = create_token(path, "ci", ["*"], now_s=NOW_S)
    assert book.check(token, "any") is Verdict.UNKNOWN
    assert book.reload() is True
    assert book.check(token, "any") is Verdict.ALLOWED
    delete_token(path, "ci")
    assert book.reload() is True
    assert book.check(token, "any") is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Basic abc", None), ("Bearer", None),
     ("Bearer ", None), ("", None), (None, None), ("abc", None)],
)  # fmt: skip
def test_bearer_of(header: str | None, token: str | None) -> None:
    """Only the bearer scheme carries a token."""
    assert bearer_of(header) == token


def test_tcp_needs_a_token_and_the_unix_socket_none(path: Path) -> None:
    """Who may not read gets 401 without a good token and 403 for the wrong repository; nobody
    learns whether a repository is there."""
    good = create_token(path, "good", ["demo"], now_s=NOW_S)
    other = create_token(path, "other", ["other/*"], now_s=NOW_S)
    with (
        start_proxy(DictNode({b"a": b"x"}), tokens_file=path) as proxy,
        proxy.client(tcp=True) as tcp,
        proxy.client() as unix,
    ):
        target = "/files/demo@main/a"
        assert unix.get(target).body == b"x"
        missing = tcp.get(target)
        assert (missing.status, missing.header("WWW-Authenticate")) == (401, "Bearer")
        wrong = tcp.get(target, Authorization="Bearer nonsense")
        assert (wrong.status, wrong.json()["error"]) == (401, "Denied")
        assert "nonsense" not in wrong.body.decode()
        assert "invalid_token" in (wrong.header("WWW-Authenticate") or "")
        assert tcp.get(target, Authorization=f"Basic {good}").status == 401
        assert tcp.get(target, Authorization=f"Bearer {good}").body == b"x"
        refused = tcp.get(target, Authorization=f"Bearer {other}")
        unknown = tcp.get("/files/none@main/a", Authorization=f"Bearer {other}")
        assert (refused.status, unknown.status) == (403, 403)
        for kind in ("stat", "list", "snapshots"):
            assert tcp.get(f"/{kind}/demo@main").status == 401


@pytest.mark.parametrize("is_open", [False, True])
def test_information_needs_any_token_unless_open(path: Path, is_open: bool) -> None:
    """Health is for everybody; figures only where the settings say so."""
    token = create_token(path, "any", ["nothing"], now_s=NOW_S)
    with (
        start_proxy(DictNode({}), tokens_file=path, metrics_anonymous=is_open) as proxy,
        proxy.client(tcp=True) as tcp,
    ):
        for target in ("/healthz", "/readyz"):
            assert tcp.get(target).status == 200
        for target in ("/metrics", "/status", "/openapi.json"):
            assert tcp.get(target).status == (200 if is_open else 401)
            assert tcp.get(target, Authorization=f"Bearer {token}").status == 200


def test_a_deleted_token_stops_working_on_the_hot_path(path: Path) -> None:
    """A warm connection is refused as soon as its token is gone, and a token that may not read
    a repository never profits from one that may."""
    good = create_token(path, "good", ["demo"], now_s=NOW_S)
    other = create_token(path, "other", ["other"], now_s=NOW_S)
    node = DictNode({b"a": b"hello"}, extents=True)
    target = f"/files/demo@{node.commit}/a"
    with (
        start_proxy(node, tokens_file=path) as proxy,
        proxy.client(tcp=True) as tcp,
        proxy.client(tcp=True) as intruder,
    ):
        for _ in range(3):
            assert tcp.get(target, Authorization=f"Bearer {good}").body == b"hello"
            proxy.until(lambda: all(one.idle for one in proxy.server.connections))
            assert intruder.get(target, Authorization=f"Bearer {other}").status == 403
            assert intruder.get(target).status == 401
        assert proxy.server.metrics.fast_answers > 0
        delete_token(path, "good")
        look(proxy)
        assert tcp.get(target, Authorization=f"Bearer {good}").status == 401
    node.close()


def look(proxy: RunningProxy) -> None:
    """What happens once a second, at once."""
    asyncio.run_coroutine_threadsafe(proxy.server.tokens.look(), proxy.loop).result(60)


def test_doors_with_the_same_tokens(path: Path) -> None:
    """Where two doors have one tokens file, a changed file makes both forget what they learnt."""

    async def run() -> None:
        create_token(path, "good", ["demo"], now_s=NOW_S)
        book = TokenBook(path)
        with socket.socket() as one, socket.socket() as two:
            doors = [Endpoint(one, book), Endpoint(two, book)]
            for door in doors:
                door.blocks.add(b"headers", "demo", door.blocks.generation)
            watch = TokenWatch(doors)
            await watch.look()
            assert all(door.blocks.allow(b"headers", "demo") for door in doors)
            delete_token(path, "good")
            await watch.look()
            assert not any(door.blocks.allow(b"headers", "demo") for door in doors)
            await watch.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [Unavailable("too many calls"), ValueError("a defect")])
def test_a_certificate_that_fails_keeps_no_token(path: Path, error: Exception) -> None:
    """Whatever goes wrong with a certificate, or with another door's tokens, tokens that are
    deleted are good no more."""

    def fail() -> bool:
        raise error

    async def run() -> None:
        good = create_token(path, "good", ["demo"], now_s=NOW_S)
        first, book = TokenBook(path), TokenBook(path)
        first.reload = fail  # type: ignore[method-assign]
        certificate = Mock(spec=DoorTls, refresh=fail)
        with socket.socket() as one, socket.socket() as two:
            watch = TokenWatch([Endpoint(one, first, certificate=certificate), Endpoint(two, book)])
            await watch.look()
            delete_token(path, "good")
            await watch.look()
            assert book.check(good, "demo") is Verdict.UNKNOWN
            await watch.close()

    asyncio.run(run())


def test_a_tokens_file_that_hangs_holds_up_nobody(path: Path) -> None:
    """While the tokens cannot be read, which takes the time that the disk takes, the proxy answers
    as before."""
    token = create_token(path, "good", ["demo"], now_s=NOW_S)
    with (
        start_proxy(DictNode({b"a": b"x"}), tokens_file=path) as proxy,
        proxy.client(tcp=True) as tcp,
    ):
        fifo = path.with_name("fifo")
        os.mkfifo(fifo)
        fifo.rename(path)
        looking = asyncio.run_coroutine_threadsafe(proxy.server.tokens.look(), proxy.loop)
        for _ in range(3):
            reply = tcp.get("/files/demo@main/a", Authorization=f"Bearer {token}")
            assert reply.body == b"x"
        assert not looking.done()
        with path.open("wb"):  # its reader goes on: the file is empty, and so damaged
            pass
        looking.result(60)
        reply = tcp.get("/files/demo@main/a", Authorization=f"Bearer {token}")
        assert reply.body == b"x"


def test_tokens_are_never_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not even at the finest level."""
    token = create_token(path, "good", ["demo"], now_s=NOW_S)
    with (
        caplog.at_level("DEBUG"),
        start_proxy(DictNode({b"a": b"x"}), tokens_file=path) as proxy,
        proxy.client(tcp=True) as tcp,
    ):
        tcp.get("/files/demo@main/a", Authorization=f"Bearer {token}")
        tcp.get("/files/demo@main/a", Authorization="Bearer wrong-secret")
    assert "/files/demo@main/a" in caplog.text
    assert token not in caplog.text
    assert "wrong-secret" not in caplog.text


class SlowNode(DictNode):
    """A node that looks entries up when it may."""

    def __init__(self) -> None:
        super().__init__({b"a": b"x" * 100}, extents=True)
        self.may = asyncio.Event()
        self.asked = threading.Event()
        self.is_slow = False

    async def entry(self, snapshot: Snapshot, path: bytes) -> Entry:
        if self.is_slow:
            self.asked.set()
            await self.may.wait()
        return await super().entry(snapshot, path)


def test_a_token_that_is_deleted_while_its_request_is_answered(path: Path) -> None:
    """A token is deleted while a request with it waits for the store: that one is answered, and
    the hot path has not learnt the token from it."""
    good = create_token(path, "good", ["demo"], now_s=NOW_S)
    other = create_token(path, "other", ["demo"], now_s=NOW_S)
    node = SlowNode()
    with (
        start_proxy(node, tokens_file=path) as proxy,
        proxy.client(tcp=True) as slow,
        proxy.client(tcp=True) as quick,
    ):
        target = f"/files/demo@{node.commit}/a"
        for _ in range(3):
            assert quick.get(target, Authorization=f"Bearer {other}").status == 200
        node.is_slow = True
        statuses: list[int] = []
        asking = threading.Thread(
            target=lambda: statuses.append(slow.get(target, Authorization=f"Bearer {good}").status)
        )
        asking.start()
        assert node.asked.wait(60)
        delete_token(path, "good")
        look(proxy)
        proxy.loop.call_soon_threadsafe(node.may.set)
        asking.join(60)
        assert statuses == [200]
        proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        assert slow.get(target, Authorization=f"Bearer {good}").status == 401
    node.close()


@pytest.mark.parametrize("problem", ["open to others", "damaged", "missing"])
def test_a_bad_s3_key_keeps_no_deleted_token(path: Path, problem: str) -> None:
    """While the key of S3's secrets cannot be used, no signature counts, and tokens that were
    deleted are good no more; both come back with the key."""
    good = create_token(path, "good", ["demo"], now_s=NOW_S)
    create_s3_token(path, "signing", ["demo"], now_s=NOW_S)
    book = TokenBook(path, s3=True)
    delete_token(path, "good")
    key = key_path(path)
    text = key.read_text()
    if problem == "open to others":
        key.chmod(0o644)
    elif problem == "damaged":
        key.write_text("x")
    else:
        key.unlink()
    with pytest.raises(InvalidInput, match="S3 key"):
        book.reload()
    assert book.check(good, "demo") is Verdict.UNKNOWN
    assert book.access_key("signing") is None
    assert not book.reload()
    key.touch(0o600)
    key.chmod(0o600)
    key.write_text(text)
    assert book.reload()
    assert book.access_key("signing") is not None


def test_a_change_that_cannot_be_read_yet_is_not_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that could not be read once, for want of descriptors say, are read the next time."""
    good = create_token(path, "good", ["demo"], now_s=NOW_S)
    book = TokenBook(path)
    delete_token(path, "good")

    def refuse(_path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        with pytest.raises(InvalidInput, match="Too many"):
            book.reload()
        assert "Too many" in book.taken.problem
    assert book.check(good, "demo") is Verdict.ALLOWED
    assert book.reload()
    assert book.check(good, "demo") is Verdict.UNKNOWN
    assert book.taken.problem == ""


def test_what_a_proxy_says_of_its_tokens(path: Path) -> None:
    """/status and a metric say whether the file was read as it is now, to who may see all alone."""
    some = create_token(path, "some", ["demo"], now_s=NOW_S)
    every = create_token(path, "every", ["*"], now_s=NOW_S)
    with (
        start_proxy(DictNode({b"a": b"x"}), tokens_file=path) as proxy,
        proxy.client(tcp=True) as tcp,
    ):

        def told(token: str) -> Any:
            found = json.loads(tcp.get("/status", Authorization=f"Bearer {token}").body)
            return found.get("tokens")

        def is_stale() -> float:
            proxy.server.sweep()
            body = tcp.get("/metrics", Authorization=f"Bearer {every}").body
            return samples(body)["lodefs_tokens_stale", frozenset()]

        good = {"file": str(path), "digest": file_digest(path), "problem": ""}
        assert told(every) == [good]
        assert told(some) is None
        assert is_stale() == 0
        path.write_text("{")
        look(proxy)
        (found,) = told(every)
        assert found["digest"] == good["digest"]
        assert "damaged" in found["problem"]
        assert is_stale() == 1


def test_without_the_s3_key_nothing_stays_known(path: Path) -> None:
    """A token that is deleted while the key for S3 cannot be used is forgotten at once as well."""

    async def run() -> None:
        create_s3_token(path, "good", ["demo"], now_s=NOW_S)
        create_s3_token(path, "other", ["demo"], now_s=NOW_S)
        book = TokenBook(path, s3=True)
        with socket.socket() as one:
            door = Endpoint(one, book)
            door.blocks.add(b"headers", "demo", door.blocks.generation)
            watch = TokenWatch([door])
            key_path(path).write_text("no key")
            delete_token(path, "good")
            await watch.look()
            assert not door.blocks.allow(b"headers", "demo")
            assert "s3-key" in watch.taken[0].problem
            await watch.look()
            assert "s3-key" in watch.taken[0].problem
            await watch.close()

    asyncio.run(run())


class _RenamedNode(DictNode):
    """A node on whose store "old" leads to "demo"."""

    async def snapshot(self, repo: str, rev: str) -> Snapshot:
        """See proxy.node.Names."""
        if repo == "old":
            error = Renamed("there is no repository old that you may read")
            error.to = "demo"
            raise error
        return await super().snapshot(repo, rev)


def test_an_old_name_leads_who_may_read_the_new_one(path: Path) -> None:
    """Others are not told of it; and what was answered once is not answered to them."""
    both, old = (create_token(path, str(n), names, now_s=NOW_S) for n, names in _NAMES.items())
    node = _RenamedNode({b"a": b"hello"})
    with start_proxy(node, tokens_file=path) as proxy, proxy.client(tcp=True) as client:
        for target in ("main", node.commit):
            for token, status in ((both, 200), (old, 404), (both, 200), (old, 404)):
                reply = client.get(f"/files/old@{target}/a", Authorization=f"Bearer {token}")
                assert reply.status == status
                assert (b"hello" in reply.body, b"demo" in reply.body) == (status == 200, False)
        found = client.get("/snapshots/old@main", Authorization=f"Bearer {both}").json()
    assert (found["repo"], found["commit"]) == ("demo", node.commit)


_NAMES = {"both": ["old", "demo"], "old": ["old"]}


def test_tokens_that_may_write(path: Path) -> None:
    """A token writes only where it was said, among what it reads; older ones write nowhere."""
    writer = create_token(path, "ci", ["vision/*"], now_s=NOW_S, write=["vision/a", "audio"])
    reader = create_token(path, "r", ["*"], now_s=NOW_S)
    book = TokenBook(path)
    assert book.may_write(writer, "vision/a")
    assert not book.may_write(writer, "vision/b")
    assert not book.may_write(writer, "audio")
    assert not book.may_write(reader, "vision/a")
    assert not book.may_write("unknown", "vision/a")


@pytest.mark.parametrize(
    ("header", "password"),
    [
        ("Basic YW55OmE6Yg==", "a:b"),
        ("basic Ong=", "x"),
        ("Basic YW55Og==", None),
        ("Basic ?", None),
        ("Basic /w==", None),
        ("Bearer x", None),
        (None, None),
    ],
)
def test_passwords(header: str | None, password: str | None) -> None:
    """The password of HTTP Basic is the token; malformed headers have none."""
    assert password_of(header) == password

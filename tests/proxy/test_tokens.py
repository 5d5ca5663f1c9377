"""Tokens: made, kept hashed, checked, and asked for over TCP."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from chunkstore.errors import (
    AlreadyExists,
    Corrupt,
    InvalidInput,
    LodefsError,
    NotFound,
    UnknownFormat,
)
from proxy.testing import DictNode, start_proxy
from proxy.tokens import (
    TOKEN_PREFIX,
    TokenBook,
    Verdict,
    bearer_of,
    create_token,
    delete_token,
    list_tokens,
)

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
        assert proxy.server.hot.answered > 0
        delete_token(path, "good")
        proxy.call(proxy.server.sweep)
        assert tcp.get(target, Authorization=f"Bearer {good}").status == 401
    node.close()


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

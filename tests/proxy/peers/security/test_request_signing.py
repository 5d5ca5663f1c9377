"""Authenticators: what is signed, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.proxy.peers.security.credentials import read_secrets, watched_secrets
from lodefs.proxy.peers.security.request_signing import (
    WINDOW_S,
    Authenticator,
    HmacAuthenticator,
    NoAuthenticator,
    SeenNonces,
)

OLD, NEW = b"an old secret of 24 bytes", b"a new secret of 24 bytes."
TARGET = "/peers/packs/ab/chunks?first=0&count=9"


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def node(
    address: str | None,
    clock: Clock,
    *shared: bytes,
    nonces_max: int = 1000,
    reached_at: str = "",
) -> HmacAuthenticator:
    return HmacAuthenticator(
        lambda: shared or (NEW,),
        lambda: (address,) if address else (),
        reached_at=reached_at,
        clock_s=clock,
        nonces_max=nonces_max,
    )


def asked(asker: Authenticator, to: str = "b:1", target: str = TARGET) -> dict[str, str]:
    return dict(asker.sign("GET", target, to=to))


def test_a_signed_request_passes_once() -> None:
    """The name of the asking node comes out; the same request again is a replay."""
    clock = Clock()
    headers = asked(node("a:1", clock))
    answerer = node("b:1", clock)
    assert answerer.check("GET", TARGET, headers, at="b:1") == "a:1"
    with pytest.raises(Denied, match="replayed"):
        answerer.check("GET", TARGET, headers, at="b:1")
    assert answerer.check("GET", TARGET, asked(node("a:1", clock)), at="b:1") == "a:1"


def test_the_secret_is_not_in_the_headers() -> None:
    """Only a MAC of it travels."""
    assert NEW.decode() not in str(asked(node("a:1", Clock())))


Forge = Callable[[dict[str, str]], None]


def changed(old: str, new: str) -> Forge:
    def forge(headers: dict[str, str]) -> None:
        assert old in headers["Authorization"]
        headers["Authorization"] = headers["Authorization"].replace(old, new)

    return forge


@pytest.mark.parametrize(
    "forge",
    [
        changed("peer=a:1", "peer=c:1"),
        changed("to=b:1", "to=c:1"),
        changed("time=17", "time=18"),
        changed("nonce=", "nonce=0"),
        changed("mac=", "mac=0"),
        changed("Lodefs-HMAC-SHA256", "Bearer"),
        changed("Lodefs-HMAC-SHA256 ", "Lodefs-HMAC-SHA256"),
        dict.clear,
    ],
)
def test_forged_headers_are_refused(forge: Forge) -> None:
    """No part of what was signed can be changed or left out."""
    clock = Clock()
    headers = asked(node("a:1", clock))
    forge(headers)
    with pytest.raises(Denied):
        node("b:1", clock).check("GET", TARGET, headers, at="b:1")


@pytest.mark.parametrize(
    ("method", "target"), [("HEAD", TARGET), ("GET", TARGET + "0"), ("GET", "/")]
)
def test_a_signature_is_for_one_request(method: str, target: str) -> None:
    """Another method or target needs another signature."""
    clock = Clock()
    with pytest.raises(Denied, match="secret"):
        node("b:1", clock).check(method, target, asked(node("a:1", clock)), at="b:1")


def test_a_request_for_another_place_is_refused() -> None:
    """What was signed for a connection to one place passes on no connection to another, whatever
    the node that is asked knows of its own name."""
    clock = Clock()
    for name in ("b:1", "c:1", None):
        headers = asked(node("a:1", clock), to="b:1")
        with pytest.raises(Denied, match=r"for b:1; this node is at c:1: .*peer_address"):
            node(name, clock).check("GET", TARGET, headers, at="c:1")
        assert node(name, clock).check("GET", TARGET, headers, at="b:1") == "a:1"


def test_behind_nat_the_setting_alone_counts() -> None:
    """Where others connect to another address, that one is accepted, and the machine's own not."""
    clock = Clock()
    answerer = node("b:1", clock, reached_at="b:1")
    assert answerer.check("GET", TARGET, asked(node("a:1", clock)), at="c:1") == "a:1"
    with pytest.raises(Denied, match="this node is at b:1"):
        answerer.check("GET", TARGET, asked(node("a:1", clock), to="c:1"), at="c:1")


@pytest.mark.parametrize(("ahead_s", "word"), [(300, "300 s ahead"), (-300, "300 s behind")])
def test_clocks_apart(ahead_s: float, word: str) -> None:
    """Clocks five minutes apart are named with their difference."""
    clock, other = Clock(), Clock()
    answerer = node("b:1", clock)
    other.now_s += ahead_s
    with pytest.raises(Denied, match=word):
        answerer.check("GET", TARGET, asked(node("a:1", other)), at="b:1")


def test_clocks_a_little_apart() -> None:
    """Inside the window they may differ."""
    clock, other = Clock(), Clock()
    answerer = node("b:1", clock)
    clock.now_s += 100
    for skew_s in (-WINDOW_S, WINDOW_S):
        other.now_s = clock.now_s + skew_s
        assert answerer.check("GET", TARGET, asked(node("a:1", other)), at="b:1") == "a:1"


def test_another_secret() -> None:
    """Who holds another secret is refused, and told which setting it is."""
    clock = Clock()
    with pytest.raises(Denied, match="peer_secret_file"):
        node("b:1", clock, OLD).check("GET", TARGET, asked(node("a:1", clock, NEW)), at="b:1")


def test_a_secret_is_changed_without_a_stop() -> None:
    """Nodes with (old, new), then (new, old), then (new) understand each other all the way."""
    clock = Clock()
    steps = [(OLD,), (OLD, NEW), (NEW, OLD), (NEW,)]
    for before, after in pairwise(steps):
        for first, second in ((before, after), (after, before)):
            headers = asked(node("a:1", clock, *first))
            assert node("b:1", clock, *second).check("GET", TARGET, headers, at="b:1") == "a:1"


def test_a_restart_is_no_way_to_replay() -> None:
    """A node that forgot everything refuses what was signed before it started."""
    clock = Clock()
    headers = asked(node("a:1", clock))
    clock.now_s += 1
    with pytest.raises(Denied, match="before this node started"):
        node("b:1", clock).check("GET", TARGET, headers, at="b:1")


@given(
    st.lists(st.tuples(st.integers(-WINDOW_S, WINDOW_S), st.integers(0, 5), st.integers(0, 40))),
    st.integers(1, 8),
)
def test_no_nonce_counts_twice(requests: list[tuple[int, int, int]], nonces_max: int) -> None:
    """However full the memory and whatever the order: no (time, nonce) is taken twice."""
    now_s = 1_700_000_000
    seen = SeenNonces(since_ms=now_s * 1000, window_s=WINDOW_S, nonces_max=nonces_max)
    taken = set()
    for skew_s, nonce, step_s in requests:
        now_s += step_s
        one = ((now_s + skew_s) * 1000, str(nonce))
        try:
            seen.add(*one, now_s * 1000)
        except Denied:
            continue
        assert one not in taken
        taken.add(one)
        assert len(seen) <= nonces_max


def test_a_memory_that_is_not_full_refuses_nothing_new() -> None:
    """Inside the window and the limit every new request is taken."""
    seen = SeenNonces(since_ms=0, window_s=WINDOW_S, nonces_max=10_000)
    for number in range(1000):
        now_ms = 100_000 + number * 100
        seen.add(now_ms + (-1) ** number * WINDOW_S * 1000, str(number), now_ms)
    assert len(seen) < 1000


def test_a_clock_that_was_ahead_at_the_start_and_is_set_right() -> None:
    """Requests pass again at once, and those from before still do not."""
    clock = Clock()
    headers = asked(node("a:1", clock))
    own = Clock(clock.now_s + 3600)
    answerer = node("b:1", own)
    own.now_s = clock.now_s = clock.now_s + 1
    assert answerer.check("GET", TARGET, asked(node("a:1", clock)), at="b:1") == "a:1"
    with pytest.raises(Denied, match="before this node started"):
        answerer.check("GET", TARGET, headers, at="b:1")


def test_without_a_check_everybody_passes() -> None:
    """Names are taken as they are given, where they look like names."""
    asker = NoAuthenticator(lambda: ("a:1",))
    assert asker.check("GET", TARGET, asked(asker), at="b:1") == "a:1"
    assert asker.check("GET", TARGET, {"X-Lodefs-Peer": "a b"}, at="b:1") == "unknown"
    assert asker.check("GET", TARGET, {}, at="b:1") == "unknown"


def secret_file(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_secret_files(tmp_path: Path, mode: int) -> None:
    """One or two lines; the owner and its group may read."""
    path = secret_file(tmp_path / "s", NEW + b"\r\n\n " + OLD + b" \n", mode)
    assert read_secrets(path) == (NEW, OLD)


@pytest.mark.parametrize(
    ("data", "mode", "words"),
    [
        (NEW, 0o604, "chmod"),
        (NEW, 0o620, "chmod"),
        (b"tooshrt", 0o600, "16 to 1024 bytes"),
        (b"", 0o600, "one secret"),
        (b"\n\n", 0o600, "one secret"),
        (NEW + b"\n" + OLD + b"\n" + NEW, 0o600, "two"),
        (b"x" * 5000, 0o600, "16 to 1024 bytes"),
    ],
)
def test_bad_secret_files(tmp_path: Path, data: bytes, mode: int, words: str) -> None:
    """The error names the file and the way out, and never what the file holds."""
    path = secret_file(tmp_path / "s", data, mode)
    with pytest.raises(InvalidInput, match=words) as caught:
        read_secrets(path)
    said = str(caught.value)
    assert str(path) in said
    assert not data.strip() or data.strip().decode() not in said.replace(str(path), "")


def test_a_missing_secret_file(tmp_path: Path) -> None:
    """Without the file a node does not start."""
    with pytest.raises(InvalidInput, match="peer_secret_file"):
        watched_secrets(tmp_path / "none")


def test_a_secret_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new secret is taken up; a broken file keeps the old one and is logged once."""
    path = secret_file(tmp_path / "s", OLD)
    watched = watched_secrets(path)
    assert not watched.refresh()
    secret_file(path, NEW + b"\n" + OLD)
    assert watched.refresh()
    assert watched.value == (NEW, OLD)
    path.chmod(0o644)
    assert [watched.refresh(), watched.refresh()] == [False, False]
    assert watched.value == (NEW, OLD)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert NEW.decode() not in caplog.text

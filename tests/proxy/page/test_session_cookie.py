"""The cookie that keeps a token."""

from __future__ import annotations

import pytest

from lodefs.proxy.http.login import set_cookie, token_of


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_cookie_comes_back_as_its_token(*, is_tls: bool) -> None:
    """The token is found among other cookies, and no script may read it."""
    cookie = set_cookie("lodefs_a-B_9", is_tls=is_tls)
    pair, *attributes = cookie.split("; ")
    assert token_of(f"a=b; {pair};c=d", is_tls=is_tls) == "lodefs_a-B_9"
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert ("Secure" in attributes) is is_tls


def test_a_cookie_without_tls_is_none_with_tls() -> None:
    """Who is on the network before TLS cannot plant a cookie."""
    assert token_of("lodefs=abc", is_tls=True) is None


@pytest.mark.parametrize("cookies", [None, "", "x=y", "lodefs", "lodefs=", "lodefs=a b",
                                     "lodefs=a; lodefs=b", "lodefs=" + "a" * 5000])  # fmt: skip
def test_what_is_no_token(cookies: str | None) -> None:
    """No cookie, several, or one that cannot be a token is none."""
    assert token_of(cookies, is_tls=False) is None


def test_forgetting() -> None:
    """A logout's cookie is empty and past."""
    assert set_cookie("", is_tls=False).startswith("lodefs=; ")
    assert "Max-Age=0" in set_cookie("", is_tls=False)

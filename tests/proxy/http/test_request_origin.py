"""Requests that a foreign web page sends through somebody's browser."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Denied
from lodefs.proxy.http.request_origin import HostNames, check, own_names

NAMES = HostNames(["data.example.org", "*.cluster.example.org"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:7440", "127.0.0.1:7440", "10.1.2.3", "[::1]:7440", "node1:7440",
     "LODEFS-proxy", "lodefs-proxy.lodefs.svc:7440", "proxy.lodefs.svc.cluster.local",
     "a.localhost", "data.example.org", "DATA.example.org.:80", "n7.cluster.example.org",
     "127.1:7440", "[fe80::1%25eth0]:7440"],
)  # fmt: skip
def test_names_of_this_proxy(host: str) -> None:
    """Addresses, names that nobody can register, and those of the setting are this proxy."""
    assert NAMES.has(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7440", "localhost.evil.example", "127.0.0.1.evil.example",
     "evil.data.example.org", "cluster.example.org", "a b", "", "x@localhost", "localhost, evil",
     "127.0.0.1:x", "[::1", "evil.example#localhost", "a/b",
     "1.evil.example", "[fe80::1%25]", "[%25eth0]"],
)  # fmt: skip
def test_names_of_others(host: str) -> None:
    """A name that somebody may register and point here is not; nor is what is no name."""
    assert not NAMES.has(host)


def test_names_of_this_machine() -> None:
    """A machine is known by its name, and by that in the domains that it searches."""
    settings = "# search no\nnameserver 10.0.0.1\n\nsearch corp.example.com. Lab.example.com\n"
    assert own_names("Node1", settings) == {
        "node1", "node1.corp.example.com", "node1.lab.example.com"
    }  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_rebound_name_is_refused(method: str) -> None:
    """DNS rebinding: the foreign name stands in Host, and the refusal names the setting."""
    with pytest.raises(Denied, match="host_names"):
        check({"Host": "evil.example:7440"}, method, NAMES, cookie=False)


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://node1:9000"},
     {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}],
)  # fmt: skip
def test_foreign_pages_change_nothing(headers: dict[str, str]) -> None:
    """CSRF: what is to change something must come from this origin, where a browser sends it."""
    with pytest.raises(Denied):
        check({"Host": "node1:7440", **headers}, "POST", NAMES, cookie=False)
    check({"Host": "node1:7440", **headers}, "GET", NAMES, cookie=False)


def test_a_cookie_is_for_this_origin_alone() -> None:
    """A page of the same host at another port reads nothing by the cookie."""
    for site in ("same-origin", "none"):
        check({"Host": "node1", "Sec-Fetch-Site": site}, "GET", NAMES, cookie=True)
    with pytest.raises(Denied):
        check({"Host": "node1", "Sec-Fetch-Site": "same-site"}, "GET", NAMES, cookie=True)


def test_programs_and_own_pages_pass() -> None:
    """No browser: no Origin. HTTP/1.0: no Host. The page itself: its own origin."""
    check({"Host": "lodefs"}, "POST", NAMES, cookie=False)
    check({}, "GET", NAMES, cookie=False)
    own = {"Host": "node1:7440", "Origin": "http://node1:7440", "Sec-Fetch-Site": "same-origin"}
    check(own, "POST", NAMES, cookie=True)

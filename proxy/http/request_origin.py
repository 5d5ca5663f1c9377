"""Checks which web page sent a request, as far as its headers tell: no foreign page may use this
proxy through a user's browser.

A request with a known bearer token needs no such check, since a foreign page does not know the
token. A request that is let in for its cookie, or because the endpoint needs no token, is checked,
whatever it sends as a token. Two ways are closed:

DNS rebinding: a page of evil.example lets its name point to this machine, and is then "the same
origin" for the browser. But Host has that name. Addresses pass, since Host has no name then, and so
do names that nobody can register: those of one label, and those below the suffixes that are
reserved for private networks.

Requests from other pages: browsers reveal them in Sec-Fetch-Site (W3C Fetch Metadata), if the proxy
is on this machine or behind TLS, and in Origin (RFC 6454) for every request that changes something.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from lodefs.chunkstore.errors import Denied

HEADERS = ("Host", "Origin", "Sec-Fetch-Site")
PRIVATE_SUFFIXES = (  # RFC 6761, 6762, 8375, ICANN's .internal, Kubernetes' services
    *(".localhost", ".test", ".local", ".home.arpa", ".internal", ".svc"),
)
_HOST = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})(?:%25[A-Za-z0-9._~-]{1,64})?\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::\d*)?\Z"
)
_RESOLVER = Path("/etc/resolv.conf")
_OWN = ("same-origin", "none")  # none: the user typed the address, or followed a bookmark
_READS = ("GET", "HEAD")


class HostNames:
    """The names of this proxy: those of its machine, and ``patterns`` of others."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = [pattern.lower() for pattern in patterns]
        self._own = own_names(socket.gethostname(), _resolver_settings())

    def has(self, host: str) -> bool:
        """Whether a Host header names this proxy; a malformed one never does."""
        found = _HOST.match(host)
        if found is None:
            return False
        if found["v6"] is not None:
            return True
        name = found["name"].lower().removesuffix(".")
        if "." not in name or name in self._own or _is_address(name):
            return True
        if name.endswith(PRIVATE_SUFFIXES):
            return True
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)


def check(headers: Mapping[str, str], method: str, names: HostNames, *, cookie: bool) -> None:
    """Raises: Denied if a foreign page may have sent a request without a known bearer token.
    ``cookie``: whether its cookie lets it in."""
    host = headers.get("Host", "")
    if host and not names.has(host):
        raise Denied(
            f"{host[:300]!r} is not a name of this proxy: send a token that it knows, use an "
            "address, or name it in the setting host_names"
        )
    changes = method not in _READS
    site = headers.get("Sec-Fetch-Site")
    if (changes or cookie) and site is not None and site not in _OWN:
        raise Denied("a browser sent this request for a page of another site: refused")
    origin = headers.get("Origin")
    if changes and origin is not None and not _is_of(origin, host):
        raise Denied("a browser sent this request for a page of another origin: refused")


def own_names(host: str, settings: str) -> frozenset[str]:
    """Returns a machine's names: its own, and that in the search domains of resolv.conf(5). It asks
    no name server, since one that does not answer must not delay a start."""
    own = host.lower()
    names = {own}
    for line in settings.splitlines():
        keyword, *domains = line.split()[:32] or [""]
        if keyword in ("search", "domain"):
            names.update(f"{own}.{domain.lower().strip('.')}" for domain in domains)
    return frozenset(names)


def _resolver_settings() -> str:
    try:
        return _RESOLVER.read_text("utf-8", "replace")
    except OSError:
        return ""


def _is_address(name: str) -> bool:
    """Whether a name is an IPv4 address, even a short one (127.1): a URL whose last label is a
    number can only be an address (WHATWG URL, "ends in a number")."""
    return name.rpartition(".")[2].isdecimal()


def _is_of(origin: str, host: str) -> bool:
    return origin.lower().partition("://")[2] == host.lower() != ""

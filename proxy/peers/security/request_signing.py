"""Authenticators: how a node proves to another one that it belongs to the cluster.

A request carries ``Authorization: Lodefs-HMAC-SHA256 peer=…,to=…,time=…,nonce=…,mac=…``. The MAC
(RFC 2104) covers these, the method and the target; docs/protocol.md has the details. ``to`` is the
address to which the request's connection leads, not a name. So a machine that is in the members'
list by mistake cannot pass the request on. Requests have no bodies, and answers need no MAC: every
chunk in them is checked against its BLAKE3.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lodefs.chunkstore.errors import Denied

SCHEME = "Lodefs-HMAC-SHA256"
PEER_HEADER = "X-Lodefs-Peer"  # the sender, if no proof is needed
WINDOW_S = 30
NONCES_MAX = 1 << 18
UNKNOWN = "unknown"  # the name of a node that does not know its own address
_NONCE_BYTES = 16
_DOMAIN = "lodefs peer request 2"
_NAME = re.compile(r"[A-Za-z0-9._:\[\]-]{1,261}\Z")
_CREDENTIALS = re.compile(
    r"peer=([A-Za-z0-9._:\[\]-]{1,261}),to=([A-Za-z0-9._:\[\]-]{1,261}),"
    r"time=([0-9]{13}),nonce=([0-9a-f]{32}),mac=([0-9a-f]{64})\Z"
)


class Authenticator(Protocol):
    """Both sides of a request between nodes. For any thread."""

    def sign(self, method: str, target: str, *, to: str) -> list[tuple[str, str]]:
        """Returns headers for a request for ``target`` (path and query) on a connection to the IP
        address and port ``to``. They are valid for one request: sign a repetition again."""

    def check(self, method: str, target: str, headers: Mapping[str, str], *, at: str) -> str:
        """Returns the name (address) of the sending node, on a connection to this node's IP address
        and port ``at``. Raises: Denied, which says what is wrong.

        A name is only as good as the cluster's secret: whoever has it can use any name.
        """


class NoAuthenticator:
    """Accepts everybody: for clusters with client certificates, or whose operator wants no
    check."""

    def __init__(self, own_addresses: Callable[[], Sequence[str]]) -> None:
        self._own_addresses = own_addresses

    def sign(self, method: str, target: str, *, to: str) -> list[tuple[str, str]]:  # noqa: ARG002
        return [(PEER_HEADER, _name(self._own_addresses()))]

    def check(
        self,
        method: str,  # noqa: ARG002
        target: str,  # noqa: ARG002
        headers: Mapping[str, str],
        *,
        at: str,  # noqa: ARG002
    ) -> str:
        name = headers.get(PEER_HEADER, "")
        return name if _NAME.match(name) else UNKNOWN


class HmacAuthenticator:
    """For nodes that share a secret. ``shared`` returns the secrets: the first one signs, all are
    accepted.

    ``own_addresses`` returns this node's addresses among the members, its name first.
    ``reached_at`` is the IP address and port that others connect to, if it is none of this
    machine's (NAT).
    """

    def __init__(
        self,
        shared: Callable[[], Sequence[bytes]],
        own_addresses: Callable[[], Sequence[str]],
        *,
        reached_at: str = "",
        clock_s: Callable[[], float] = time.time,
        nonces_max: int = NONCES_MAX,
    ) -> None:
        self._shared = shared
        self._own_addresses = own_addresses
        self._reached_at = reached_at
        self._clock_s = clock_s
        self._seen = SeenNonces(
            since_ms=int(clock_s() * 1000), window_s=WINDOW_S, nonces_max=nonces_max
        )

    def sign(self, method: str, target: str, *, to: str) -> list[tuple[str, str]]:
        peer = _name(self._own_addresses())
        time_ms = str(int(self._clock_s() * 1000))
        nonce = secrets.token_hex(_NONCE_BYTES)
        mac = _mac(self._shared()[0], method, target, peer, to, time_ms, nonce)
        value = f"{SCHEME} peer={peer},to={to},time={time_ms},nonce={nonce},mac={mac}"
        return [("Authorization", value)]

    def check(self, method: str, target: str, headers: Mapping[str, str], *, at: str) -> str:
        scheme, _, rest = headers.get("Authorization", "").partition(" ")
        match = _CREDENTIALS.match(rest)
        if scheme != SCHEME or match is None:
            raise Denied(f"only nodes of this cluster are served: send Authorization: {SCHEME} …")
        peer, to, time_ms, nonce, mac = match.groups()
        good = [_mac(one, method, target, peer, to, time_ms, nonce) for one in self._shared()]
        if not any(hmac.compare_digest(mac, one) for one in good):
            raise Denied("the request is not signed with this cluster's secret (peer_secret_file)")
        here = self._reached_at or at
        if to != here:
            raise Denied(
                f"the request was signed for {to}; this node is at {here}: behind NAT, set "
                "peer_address to the IP address and port that others connect to"
            )
        now_ms = int(self._clock_s() * 1000)
        skew_s = (int(time_ms) - now_ms) / 1000
        if abs(skew_s) > WINDOW_S:
            raise Denied(
                f"the clock of {peer} is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
                f" (the limit is {WINDOW_S} s): synchronize the clocks of the nodes (NTP)"
            )
        self._seen.add(int(time_ms), nonce, now_ms)
        return peer


def claimed(headers: Mapping[str, str]) -> str:
    """Returns the claimed sender of a request, whether or not that is true."""
    match = _CREDENTIALS.match(headers.get("Authorization", "").partition(" ")[2])
    return UNKNOWN if match is None else match[1]


def _name(own: Sequence[str]) -> str:
    return own[0] if own else UNKNOWN


def _mac(secret: bytes, *parts: str) -> str:
    """Returns HMAC-SHA256 in hex over lines. No part has a line break, so no two requests look
    alike."""
    if any("\n" in part for part in parts):
        raise Denied("a request with a line break cannot be signed")
    message = "\n".join((_DOMAIN, *parts)).encode("utf-8", "surrogateescape")
    return hmac.digest(secret, message, "sha256").hex()


class SeenNonces:
    """A bounded memory of nonces that never forgets one that could still be replayed.

    Nonces are kept by the second in which they were signed. Whole seconds are dropped, oldest
    first, and a floor rises with them: requests signed before the floor are refused, seen or not.
    So neither a full memory nor a restart (which forgets everything) allows a replay.
    """

    def __init__(self, *, since_ms: int, window_s: int, nonces_max: int) -> None:
        """``since_ms`` is when this memory began (Unix time). Requests may differ from the present
        time by at most ``window_s``, which the caller checks."""
        self._floor_ms = since_ms
        self._window_s = window_s
        self._nonces_max = nonces_max
        self._count = 0
        self._by_second: dict[int, set[str]] = {}
        self._lock = threading.Lock()

    def add(self, time_ms: int, nonce: str, now_ms: int) -> None:
        """Adds a request that was signed at ``time_ms``. Raises: Denied if it may have come
        before."""
        second = time_ms // 1000
        with self._lock:
            if self._floor_ms > now_ms + (self._window_s + 1) * 1000:
                self._floor_ms = now_ms  # this node's clock was ahead, and was corrected
            if time_ms < self._floor_ms:
                raise Denied(
                    "the request was signed before this node started, or too many came since then: "
                    "sign it again"
                )
            nonces = self._by_second.setdefault(second, set())
            if nonce in nonces:
                raise Denied("the request came before (replayed): sign every request anew")
            nonces.add(nonce)
            self._count += 1
            self._forget(now_ms // 1000 - self._window_s)

    def _forget(self, oldest_s: int) -> None:
        """Drops nonces outside the window, and more if there are too many."""
        for second in sorted(self._by_second):
            if second >= oldest_s and self._count <= self._nonces_max:
                break
            self._count -= len(self._by_second.pop(second))
            self._floor_ms = max(self._floor_ms, (second + 1) * 1000)

    def __len__(self) -> int:
        return self._count

"""SeenNonces: which signed requests came already, so that none counts twice."""

from __future__ import annotations

import threading

from lodefs.chunkstore.errors import Denied


class SeenNonces:
    """A bounded memory that never forgets what could still be replayed.

    Nonces are kept by the second in which they were signed. Whole seconds are forgotten, the
    oldest first, and a floor rises with that: what was signed before the floor is refused, seen
    or not. So neither a full memory nor a restart (which forgets all) opens a way.
    """

    def __init__(self, *, since_ms: int, window_s: int, nonces_max: int) -> None:
        """``since_ms``: when this memory began (Unix). Requests may differ from the time now by
        ``window_s`` at most, which the caller checks."""
        self._floor_ms = since_ms
        self._window_s = window_s
        self._nonces_max = nonces_max
        self._count = 0
        self._by_second: dict[int, set[str]] = {}
        self._lock = threading.Lock()

    def add(self, time_ms: int, nonce: str, now_ms: int) -> None:
        """Take a request that was signed at ``time_ms``. Raises: Denied if it may have come
        before."""
        second = time_ms // 1000
        with self._lock:
            if self._floor_ms > now_ms + (self._window_s + 1) * 1000:
                self._floor_ms = now_ms  # this node's clock was ahead, and has been set right
            if time_ms < self._floor_ms:
                raise Denied(
                    "the request was signed before this node started, or too many came since: "
                    "sign it again"
                )
            nonces = self._by_second.setdefault(second, set())
            if nonce in nonces:
                raise Denied("the request came before (replayed): every request is signed anew")
            nonces.add(nonce)
            self._count += 1
            self._forget(now_ms // 1000 - self._window_s)

    def _forget(self, oldest_s: int) -> None:
        """Drop what the window excludes anyway, and more if there are too many."""
        for second in sorted(self._by_second):
            if second >= oldest_s and self._count <= self._nonces_max:
                break
            self._count -= len(self._by_second.pop(second))
            self._floor_ms = max(self._floor_ms, (second + 1) * 1000)

    def __len__(self) -> int:
        return self._count

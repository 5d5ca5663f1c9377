"""Looks at a proxy again and again, also while it is restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from lodefs.activity.exposition import samples
from lodefs.activity.node_activity import NodeActivity, activity_of
from lodefs.activity.rates import Rates, rates_between
from lodefs.chunkstore.errors import Denied, Unavailable
from lodefs.chunkstore.nodeapi.control_client import ControlClient

TIMEOUT_S = 5.0


def look(url: str, token: str | None, *, timeout_s: float = TIMEOUT_S) -> NodeActivity:
    """What a proxy has done so far. Unavailable, Denied (it wants another token)."""
    with closing(ControlClient(url, token)) as calls:
        answer = calls.ask("GET", "/metrics", timeout_s=timeout_s)
    if answer.status in (401, 403):
        raise Denied(f"{url}: the proxy wants a token: put it into LODEFS_TOKEN")
    if answer.status != 200:
        raise Unavailable(f"{url}: the proxy answers {answer.status} to /metrics")
    return activity_of(samples(bytes(answer.body).decode("utf-8", "replace")))


class Watcher:
    """The rates between two looks, each time."""

    def __init__(
        self, look: Callable[[], NodeActivity], *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Looks for the first time. Raises as ``look`` does."""
        self._look = look
        self._clock_s = clock_s
        self._last = look()
        self._last_s = clock_s()

    def next(self) -> Rates | None:
        """What happened since the last look that was answered; None if the proxy does not answer
        now (it may be back at the next look). Raises: Denied."""
        try:
            found = self._look()
        except Unavailable:
            return None
        now_s = self._clock_s()
        rates = rates_between(self._last, found, max(now_s - self._last_s, 1e-3))
        self._last, self._last_s = found, now_s
        return rates

"""The end of a proxy that nobody uses, where its settings ask for one.

Idleness decides, from figures and a clock that are given; UnusedEnd asks it once a second, and
looks whether a mount has a lease.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from chunkstore import lease
from proxy.config import Config

_log = logging.getLogger("lodefs.proxy")


class Use(NamedTuple):
    """What a proxy has done. ``busy``: a request is being answered, or a job runs."""

    answered: int  # requests so far
    busy: bool


class Idleness:
    """Since when nobody has used a proxy. It is over when that is ``timeout_s`` ago."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s = now_s
        self._answered = 0

    def is_over(self, use: Use, now_s: float) -> bool:
        """Whether the proxy has been without use for long enough."""
        if use.busy or use.answered != self._answered:
            self._answered = use.answered
            self._since_s = now_s
        return now_s - self._since_s >= self._timeout_s

    def begin_again(self, now_s: float) -> None:
        """Somebody uses it without asking for anything: a mount whose files are all cached."""
        self._since_s = now_s


class UnusedEnd:
    """Calls ``end`` once nobody has used the proxy for ``unused_timeout_s``, and no mount has a
    lease. From then on no mount gets one until this process is gone."""

    def __init__(
        self, config: Config, end: Callable[[], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """After the socket listens. OSError where its directory cannot be written to."""
        self.alone_fd: int | None = None  # the lock that keeps mounts away
        self._end = end
        self._clock_s = clock_s
        self._idleness = Idleness(config.unused_timeout_s, clock_s())
        self._socket_path = config.socket_path if config.unused_timeout_s else None
        if self._socket_path is not None:
            lease.offer(self._socket_path)

    def look(self, use: Use) -> None:
        """Once a second."""
        now_s = self._clock_s()
        if self._socket_path is None or not self._idleness.is_over(use, now_s):
            return
        self.alone_fd = lease.revoke(self._socket_path)
        if self.alone_fd is None:
            self._idleness.begin_again(now_s)
            return
        self._socket_path = None
        _log.info("nobody uses this proxy: it ends")
        self._end()

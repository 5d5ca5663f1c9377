"""Ends a proxy that nobody uses, if its settings ask for that.

IdleTimer decides from its inputs; IdleExit calls it once a second, and checks whether a mount has a
lease. A proxy whose socket's file is gone ends soon, since nobody can reach it, or see that it
exists.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from lodefs.chunkstore.protocol import lease
from lodefs.proxy.config import Config
from lodefs.proxy.metrics.server_metrics import Use

_log = logging.getLogger("lodefs.proxy")


GONE_S = 5.0  # without the socket's file


class IdleTimer:
    """Records since when nobody has used a proxy. It is over after ``timeout_s``."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s = now_s
        self._answered = 0

    def is_over(self, use: Use, now_s: float) -> bool:
        """Whether the proxy has been unused for long enough."""
        if use.busy or use.answered != self._answered:
            self._answered = use.answered
            self._since_s = now_s
        return now_s - self._since_s >= self._timeout_s

    def begin_again(self, now_s: float) -> None:
        """Notes a use without a request: a mount whose files are all cached."""
        self._since_s = now_s


class IdleExit:
    """Calls ``end`` once nobody has used the proxy for ``unused_timeout_s`` and no mount has a
    lease. From then on no mount gets a lease until this process is gone."""

    def __init__(
        self, config: Config, end: Callable[[], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Call it after the socket listens. Raises: OSError if its directory is not writable."""
        self.alone_fd: int | None = None  # the lock that keeps mounts away
        self._end = end
        self._clock_s = clock_s
        self._idleness = IdleTimer(config.unused_timeout_s, clock_s())
        self._socket_path = config.socket_path if config.unused_timeout_s else None
        self._gone_since_s: float | None = None
        if self._socket_path is not None:
            lease.offer(self._socket_path)
            self._own_file = _file_at(self._socket_path)

    @property
    def is_near(self) -> bool:
        """Whether the proxy is about to end, unless its socket's file comes back."""
        return self._gone_since_s is not None

    def look(self, use: Use) -> None:
        """Called once a second."""
        now_s = self._clock_s()
        if self._socket_path is None:
            return
        if self._is_gone(self._socket_path, now_s):
            self._finish("the file of this proxy's socket is gone: exiting")
            return
        if not self._idleness.is_over(use, now_s):
            return
        self.alone_fd = lease.revoke(self._socket_path)
        if self.alone_fd is None:
            self._idleness.begin_again(now_s)
            return
        self._finish("nobody uses this proxy: exiting")

    def _is_gone(self, socket_path: Path, now_s: float) -> bool:
        """Whether for some time there was no file at the socket's path, or another one."""
        if _file_at(socket_path) == self._own_file:
            self._gone_since_s = None
            return False
        if self._gone_since_s is None:
            self._gone_since_s = now_s
        return now_s - self._gone_since_s >= GONE_S

    def _finish(self, why: str) -> None:
        self._socket_path = None
        _log.info(why)
        self._end()


def _file_at(path: Path) -> tuple[int, int] | None:
    """Returns the identity of the file with this name; None if there is none, or it is not
    visible."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""A service that has left its mounts to another one waits, and takes them back if that one ends.

So a rollout that is undone finds a service. All waiting services hold a shared lock on
``STATE/standby``. A service that ends sees it, and stays until its mounts are taken over.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from lodefs.chunkstore.errors import InUse, LodefsError
from lodefs.mount.helper import state_files
from lodefs.mount.service.mount_files import LOCK

LOOK_S = 1.0
LOOKS_FREE = 3  # a service that asked for the state, or restarts, comes first
HAND_OVER_S = 60.0
_POLL_S = 0.2
_NAME = "standby"
_log = logging.getLogger("lodefs.mounter")


class Standby:
    """One service's place among those that wait for a state."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._fd = -1

    def begin(self) -> None:
        """Shows the service of this state that another one waits. A second call does nothing. A
        full disk stops nobody: this service waits for the state anyway."""
        if self._fd >= 0:
            return
        path = self._state / _NAME
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o600)
            fcntl.lockf(self._fd, fcntl.LOCK_SH)
        except OSError as error:
            _log.warning(
                "other services cannot see that this one waits: %s: %s", path, error.strerror
            )

    def end(self) -> None:
        """Stops waiting: the state belongs to this service now, or it ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def await_free(self, is_told_to_end: Callable[[float], bool]) -> bool:
        """Waits until no service has had the state for a while; False if this one must end first.
        ``is_told_to_end`` waits for that for a number of seconds."""
        looks = 0
        while looks < LOOKS_FREE:
            if is_told_to_end(LOOK_S):
                return False
            looks = 0 if _is_locked(self._state / LOCK) else looks + 1
        return True


def hand_over(state: Path, ping: Callable[[float], None], timeout_s: float = HAND_OVER_S) -> None:
    """Called by a service that has closed its files. If another one waits for them, returns when
    that one serves and has taken the mounts over. ``ping`` raises while no service answers."""
    if not _is_locked(state / _NAME):
        return
    _log.info("another service takes the mounts back")
    ends_s = time.monotonic() + timeout_s
    while _is_locked(state / _NAME) or _is_locked(state / LOCK):
        try:
            ping(LOOK_S)
        except LodefsError:
            if time.monotonic() > ends_s:
                _log.warning("no other service has taken the mounts back in %g s", timeout_s)
                return
            time.sleep(_POLL_S)
        else:
            return


def _is_locked(path: Path) -> bool:
    """Whether another process has locked a file. The caller must not have locked it."""
    try:
        os.close(state_files.lock(path, "another service"))
    except InUse:
        return True
    except OSError as error:
        raise state_files.translated(error, path) from error
    return False

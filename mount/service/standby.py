"""A service that has left the mounts to another one waits, and has them again when that one ends.

So a rollout that is undone finds a service that serves. ``STATE/standby`` is locked, shared, by all
that wait: one that ends sees there that its mounts are wanted, and stays until they are taken over.
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
LOOKS_FREE = 3  # who has asked for the state, or is started again, comes first
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
        """Have the service of this state know that another one waits. Nothing happens the second
        time. A disk that takes no file holds nobody up: the state is waited for all the same."""
        if self._fd >= 0:
            return
        path = self._state / _NAME
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(path, flags, 0o600)
            fcntl.lockf(self._fd, fcntl.LOCK_SH)
        except OSError as error:
            _log.warning("it cannot be said that this service waits: %s: %s", path, error.strerror)

    def end(self) -> None:
        """Wait no more: the state is this service's now, or it ends."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def await_free(self, is_told_to_end: Callable[[float], bool]) -> bool:
        """Wait until no service has had the state for a while; False where this one is to end
        first. ``is_told_to_end`` waits for that for so many seconds."""
        looks = 0
        while looks < LOOKS_FREE:
            if is_told_to_end(LOOK_S):
                return False
            looks = 0 if _is_locked(self._state / LOCK) else looks + 1
        return True


def hand_over(state: Path, ping: Callable[[float], None], timeout_s: float = HAND_OVER_S) -> None:
    """Of a service that has closed its files: where another one waits for them, return when that
    one serves, and has taken the mounts over. ``ping`` raises while no service answers."""
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
    """Whether another process has locked a file. It must not be called by one that has."""
    try:
        os.close(state_files.lock(path, "another service"))
    except InUse:
        return True
    except OSError as error:
        raise state_files.translated(error, path) from error
    return False

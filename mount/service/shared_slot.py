"""A shared mount in memory: its locks and observations, and the writing of its record."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import DeadlineExceeded, Denied, LodefsError, NoSpace, Unavailable
from lodefs.mount.helper.deadline_calls import left_s
from lodefs.mount.service.interface import User
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mount import SharedMount

LOCK_TIMEOUT_S = 30.0  # for another call to have written a mount's state
_DISK_IS_SLOW = "the disk of the mounts' state is busy; try again"
_log = logging.getLogger("lodefs.mounter")


class PendingChange:
    """A change of a record that waits to be written. ``is_release``: it counts in memory even if
    the disk is full."""

    def __init__(self, apply: Callable[[SharedMount], SharedMount], *, is_release: bool) -> None:
        self._apply = apply
        self.is_release = is_release
        self.is_done = False
        self.error: LodefsError | None = None

    def applied(self, mount: SharedMount) -> SharedMount:
        """Returns the mount with the change, or unchanged if the change is refused."""
        try:
            return self._apply(mount)
        except LodefsError as error:
            self.error = error
            return mount


class SharedSlot:
    """A mount in memory. ``lock``: for threads that make or end the mount; ``mount`` changes under
    the lock of the table. ``holders``: threads that want it to stay. ``given``: the last token of
    each user, since only a token that is new to its user replaces the mount's. ``renewal_problem``:
    why the mount uses an earlier token than the stored one. ``is_behind``: its file lacks a
    release. ``asker``: the user for whom it was first handed out. ``looked_s``: when it was last
    seen to be readable; ``is_dead``: upkeep has seen that it is not. ``checked_s``: when upkeep
    last checked who shows it. ``pin_failed_s``: when its data could not be pinned, and why. Times
    are the machine's uptime."""

    def __init__(self, mount: SharedMount, place: str) -> None:
        self.key = mount.key
        self.place = place
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self.pending: list[PendingChange] = []
        self.mount = mount
        self.holders = 0
        self.given: dict[User, str] = {}
        self.renewal_problem = ""
        self.pin_problem = ""
        self.is_written = False
        self.is_behind = False
        self.is_dead = False
        self.idle_since_s: float | None = None
        self.looked_s = self.checked_s = self.pin_failed_s = -float("inf")
        self.asker: int | None = None


class RecordWriter:
    """Writes the records of mounts. The first call that may write a record writes the changes of
    all that wait, in one file, before any of them is answered: every answered change is on disk, as
    if each was written alone. ``lock`` is that of the table, under which slots change."""

    def __init__(self, files: MountFiles, lock: threading.Lock) -> None:
        self._files = files
        self._lock = lock
        self._closed = False

    def close(self) -> None:
        """Ends all writing: calls under way raise Unavailable."""
        self._closed = True

    def write(
        self,
        slot: SharedSlot,
        change: Callable[[SharedMount], SharedMount],
        timeout_s: float = LOCK_TIMEOUT_S,
        *,
        is_release: bool = False,
    ) -> None:
        """Writes a mount's new record to disk, then to memory. If the disk is full, a release is
        kept in memory, and upkeep writes it later: a full disk must not keep a pod. Raises:
        NoSpace, Denied, Unavailable, DeadlineExceeded; what ``change`` raises."""
        mine = PendingChange(change, is_release=is_release)
        with self._lock:
            slot.pending.append(mine)
        try:
            with locked(slot.writing, time.monotonic() + timeout_s, _DISK_IS_SLOW):
                if not mine.is_done:
                    self._write_pending(slot)
        finally:
            with self._lock:
                if mine in slot.pending:
                    slot.pending.remove(mine)
        if mine.error is not None:
            raise mine.error

    def _write_pending(self, slot: SharedSlot) -> None:
        """Writes all waiting changes of a mount; the caller has the lock for that."""
        if self._closed:
            raise Unavailable("another service has the mounts now; try again")
        with self._lock:
            pending, slot.pending = slot.pending, []
        before = after = slot.mount
        for one in pending:
            after = one.applied(after)
        if after == before and not (slot.is_behind and any(not one.is_release for one in pending)):
            is_behind = slot.is_behind
        else:
            try:
                self._files.write(after)
                slot.is_written, is_behind = True, False
            except (NoSpace, Denied, Unavailable) as error:
                after = self._released(slot, pending, error)
                is_behind = slot.is_behind or after != before
            except BaseException:
                with self._lock:  # each caller tries its own change
                    slot.pending = pending + slot.pending
                raise
        with self._lock:
            slot.mount, slot.is_behind = after, is_behind
        for one in pending:
            one.is_done = True

    def _released(
        self, slot: SharedSlot, pending: list[PendingChange], error: LodefsError
    ) -> SharedMount:
        """Returns the mount with only its releases applied, since its file was not written."""
        after = slot.mount
        for one in pending:
            if one.is_release:
                after = one.applied(after)
            else:
                one.error = error
        if after != slot.mount:
            _log.warning("a release is not on disk yet: %s", error)
            if not after.users:
                self._files.forget(slot.key)  # needs no space
        return after


@contextmanager
def locked(lock: threading.Lock, deadline_s: float, why_late: str) -> Iterator[None]:
    """Holds a lock during the block. Raises: DeadlineExceeded."""
    if not lock.acquire(timeout=left_s(deadline_s)):
        raise DeadlineExceeded(why_late)
    try:
        yield
    finally:
        lock.release()

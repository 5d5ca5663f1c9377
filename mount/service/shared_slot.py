"""A shared mount in memory: its locks, changes that wait to be written, and observations."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.service.interface import User
from lodefs.mount.service.shared_mount import SharedMount


class PendingChange:
    """A change of a record that waits to be written. ``is_release``: it counts in memory even if
    the disk is full."""

    def __init__(self, apply: Callable[[SharedMount], SharedMount], *, is_release: bool) -> None:
        self._apply = apply
        self.is_release = is_release
        self.is_done = False
        self.error: LodefsError | None = None

    def applied(self, mount: SharedMount) -> SharedMount:
        """The mount with the change, or unchanged if the change is refused."""
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

"""A shared mount in memory: its locks, what waits to be written, and what was seen of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.service.interface import User
from lodefs.mount.service.shared_mount import SharedMount


class PendingChange:
    """A change of a record that waits to be written. ``is_release``: it counts in memory where the
    disk takes nothing."""

    def __init__(self, apply: Callable[[SharedMount], SharedMount], *, is_release: bool) -> None:
        self._apply = apply
        self.is_release = is_release
        self.is_done = False
        self.error: LodefsError | None = None

    def applied(self, mount: SharedMount) -> SharedMount:
        """The mount with the change; as it was where that is refused."""
        try:
            return self._apply(mount)
        except LodefsError as error:
            self.error = error
            return mount


class SharedSlot:
    """A mount in memory. ``lock``: for whom makes or ends the mount; ``mount`` changes under the
    lock of the table. ``holders``: threads that want it to stay. ``given``: the token that each
    user gave last, so that only one that is new to its user replaces the mount's.
    ``renewal_problem``: why the mount is read with an earlier token than the one that is kept.
    ``is_behind``: its file does not say yet who was released. ``asker``: the user for whom it was
    handed out first. ``looked_s``: when it was looked at, and could be read, last; ``is_dead``:
    upkeep has seen that it cannot. ``checked_s``: when upkeep looked last who shows it,
    ``pin_failed_s``: when its data could not be pinned, and why (of the machine's uptime)."""

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

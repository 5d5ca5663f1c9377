"""Mounts that users hold in their own mount namespaces, and when they no longer hold them.

A user holds a mount while the connection that it came over is open, and for a moment after that;
then for as long as the kernel shows it in another mount namespace with a process of that user. So
nobody can release a mount for another user, and whatever ends a job ends what it holds.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NoSpace
from lodefs.chunkstore.format.names import check_repo, check_revision, split_path
from lodefs.mount.helper.deadline_calls import left_s
from lodefs.mount.helper.interface import Source
from lodefs.mount.service.interface import MountClaim, User
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.shared_slot import SharedSlot

REFERENCES_MAX = 256  # mounts of one user, since each has processes of its own
GRACE_S = 5.0  # for the user to put the mount onto a directory
RELEASE_TIMEOUT_S = 2.0
PATH_BYTES_MAX = 4096
_COMMIT = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger("lodefs.mounter")


class Handed(NamedTuple):
    """An attachment: the holder that the mount service knows, and the mount's path."""

    user: User
    place: str
    commit: str


def attached_user(uid: int, source: Source, commit: str) -> User:
    """Returns the holder of a mount for a user: one for each snapshot, however often the user has
    it."""
    unique = blake3(b"\0".join([source.repo.encode(), commit.encode(), source.path])).hexdigest()
    return User(f"attached-{uid}-{unique[:32]}", "", uid)


def gone(
    held: Mapping[User, str], showing: Mapping[str, Collection[int]], busy: Collection[User]
) -> list[User]:
    """Returns the holders that no longer hold their mount. Pure. ``held``: the paths of users'
    mounts; ``showing``: the users whose namespaces show the mount at each path; ``busy``: holders
    that got it just now. Any user may hold a mount of root, which starts processes of others."""
    return [
        user
        for user, place in held.items()
        if user not in busy
        and user.uid not in showing.get(place, ())
        and not (user.uid == 0 and showing.get(place))
    ]


class Attachments:
    """The attachments of one mount service. For any thread."""

    def __init__(
        self,
        mounts: SharedMounts,
        *,
        references_max: int = REFERENCES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mounts = mounts
        self._references_max = references_max
        self._clock = clock
        self._begun_s = clock()
        self._lock = threading.Lock()
        self._asking: Counter[int] = Counter()
        self._open: Counter[User] = Counter()
        self._closed_s: dict[User, float] = {}

    def attach(self, uid: int, source: Source, rev: str, timeout_s: float) -> Handed:
        """Holds a mount for a user until ``closed`` was called for the result, and the user's
        namespaces no longer show it.

        Raises: InvalidInput (names), NoSpace (too many mounts); else what MountService.acquire
        does.
        """
        source = _checked(source, rev)
        deadline_s = time.monotonic() + timeout_s
        with self._asked(uid):
            fixed = bool(_COMMIT.fullmatch(rev))
            commit = rev if fixed else self._resolved(source, rev, timeout_s)
            user = attached_user(uid, source, commit)
            self._check_count(user)
            wanted = MountClaim(source=source, rev=commit)
            held = self._mounts.acquire(user, wanted, None, left_s(deadline_s))
            self._note_asker(held.place, uid)
            with self._lock:
                self._open[user] += 1
        return Handed(user, held.place, held.commit)

    def closed(self, user: User) -> None:
        """Called when the connection that a mount was handed out over is closed."""
        with self._lock:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
            self._closed_s[user] = self._clock()

    def sweep(self) -> None:
        """Releases what users no longer hold. Raises: Unavailable if that cannot be seen."""
        held = self._held()
        if not held:
            return
        showing = self._mounts.node.showing(set(held.values()))
        with self._lock:  # nothing is handed out meanwhile
            now_s = self._clock()
            self._closed_s = {u: s for u, s in self._closed_s.items() if now_s - s < GRACE_S}
            if now_s - self._begun_s < GRACE_S:
                return  # users of an earlier service are unknown
            busy = {*self._open, *self._closed_s, *(u for u in held if self._asking[u.uid or 0])}
            for user in gone(held, showing, busy):
                try:
                    self._mounts.release(user, RELEASE_TIMEOUT_S)
                except LodefsError as error:
                    _log.warning("%s: %s", user.volume, error)

    def _resolved(self, source: Source, rev: str, timeout_s: float) -> str:
        return self._mounts.resolve(MountClaim(source=source, rev=rev), None, timeout_s).commit

    def _held(self) -> dict[User, str]:
        return {
            usage.user: slot.place
            for slot in self._mounts.slots()
            for usage in slot.mount.users
            if usage.user.is_attached
        }

    def _check_count(self, user: User) -> None:
        """Raises NoSpace if a user has too many mounts: those that it holds, those that it had made
        and nobody uses any more, and those that are being made for it."""
        slots = self._mounts.slots()
        if any(slot.mount.usage(user) is not None for slot in slots):
            return
        count = sum(_counts(slot, user.uid) for slot in slots) + self._asking[user.uid or 0]
        if count > self._references_max:
            raise NoSpace(f"user {user.uid} already has {self._references_max} mounts of this node")

    def _note_asker(self, place: str, uid: int) -> None:
        for slot in self._mounts.slots():
            if slot.place == place and slot.asker is None:
                slot.asker = uid

    @contextmanager
    def _asked(self, uid: int) -> Iterator[None]:
        with self._lock:
            self._asking[uid] += 1
        try:
            yield
        finally:
            with self._lock:
                self._asking[uid] -= 1
                if not self._asking[uid]:
                    del self._asking[uid]


def _counts(slot: SharedSlot, uid: int | None) -> bool:
    users = slot.mount.users
    return any(one.user.is_attached and one.user.uid == uid for one in users) or (
        not users and slot.asker == uid
    )


def _checked(source: Source, rev: str) -> Source:
    """Returns the same source with a normalised path. Raises: InvalidInput."""
    check_repo(source.repo)
    if not _COMMIT.fullmatch(rev):
        check_revision(rev)
    if len(source.path) > PATH_BYTES_MAX:
        raise InvalidInput(f"{source.repo}: a path of more than {PATH_BYTES_MAX} bytes")
    return msgspec.structs.replace(source, path=b"/".join(split_path(source.path)))

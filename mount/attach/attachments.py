"""Mounts that users hold in mount namespaces of their own, and when they hold them no more.

A user holds a mount while one of its connections is open that it came over, and for a moment after
that; then for as long as the kernel shows it in another mount namespace with a process of that
user. So there is no release that somebody could send for somebody else, and whatever ends a job
ends what it holds.
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
from lodefs.mount.helper.interface import Source
from lodefs.mount.service.interface import MountClaim, User
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.shared_slot import SharedSlot

REFERENCES_MAX = 256  # mounts of one user: each has processes of its own
GRACE_S = 5.0  # for a mount that was handed out to be put somewhere
RELEASE_TIMEOUT_S = 2.0
PATH_BYTES_MAX = 4096
_COMMIT = re.compile(r"[0-9a-f]{64}")
_log = logging.getLogger("lodefs.mounter")


class Handed(NamedTuple):
    """What a user got: for whom the mount service holds it, and where it is."""

    user: User
    place: str
    commit: str


def attached_user(uid: int, source: Source, commit: str) -> User:
    """Who holds a mount for a user: one for each snapshot, however often the user has it."""
    unique = blake3(b"\0".join([source.repo.encode(), commit.encode(), source.path])).hexdigest()
    return User(f"attached-{uid}-{unique[:32]}", "", uid)


def gone(
    held: Mapping[User, str], showing: Mapping[str, Collection[int]], busy: Collection[User]
) -> list[User]:
    """Those who hold their mount no more. Pure. ``held``: where the mounts of users are;
    ``showing``: whose namespaces show the mount that is there; ``busy``: who was given it just now.
    What belongs to root is held by anybody: root starts processes of others."""
    return [
        user
        for user, place in held.items()
        if user not in busy
        and user.uid not in showing.get(place, ())
        and not (user.uid == 0 and showing.get(place))
    ]


class Attachments:
    """Those of one mount service. For any thread."""

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
        """Have a mount for a user, until ``closed`` is called for what this returns, and its
        namespaces show it no more.

        InvalidInput (names), NoSpace (the user has too many); otherwise as MountService.acquire.
        """
        source = _checked(source, rev)
        deadline_s = time.monotonic() + timeout_s
        with self._asked(uid):
            fixed = bool(_COMMIT.fullmatch(rev))
            commit = rev if fixed else self._resolved(source, rev, timeout_s)
            user = attached_user(uid, source, commit)
            self._check_count(user)
            left_s = max(deadline_s - time.monotonic(), 0.001)
            held = self._mounts.acquire(user, MountClaim(source=source, rev=commit), None, left_s)
            self._note_asker(held.place, uid)
            with self._lock:
                self._open[user] += 1
        return Handed(user, held.place, held.commit)

    def closed(self, user: User) -> None:
        """The connection that a mount was handed out over is closed."""
        with self._lock:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
            self._closed_s[user] = self._clock()

    def sweep(self) -> None:
        """Release what users hold no more. Unavailable where that cannot be seen."""
        held = self._held()
        if not held:
            return
        showing = self._mounts.node.showing(set(held.values()))
        with self._lock:  # nobody is handed anything meanwhile
            now_s = self._clock()
            self._closed_s = {u: s for u, s in self._closed_s.items() if now_s - s < GRACE_S}
            if now_s - self._begun_s < GRACE_S:
                return  # who was handed something by an earlier service is not known
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
        """NoSpace where a user has as many mounts as it may have: those that it holds, those that
        it had made and nobody uses any more, and those that are being made for it."""
        slots = self._mounts.slots()
        if any(slot.mount.usage(user) is not None for slot in slots):
            return
        count = sum(_counts(slot, user.uid) for slot in slots) + self._asking[user.uid or 0]
        if count > self._references_max:
            raise NoSpace(f"user {user.uid} has {self._references_max} mounts of this node already")

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
    """The same with a plain path."""
    check_repo(source.repo)
    if not _COMMIT.fullmatch(rev):
        check_revision(rev)
    if len(source.path) > PATH_BYTES_MAX:
        raise InvalidInput(f"{source.repo}: a path of more than {PATH_BYTES_MAX} bytes")
    return msgspec.structs.replace(source, path=b"/".join(split_path(source.path)))

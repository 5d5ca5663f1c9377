"""MountService over the mounts of this node.

An acquire is done in this order: mount, write the user down, answer; a release: forget the user,
answer; upkeep unmounts. So whatever ends in between leaves at worst a mount without users, which
upkeep takes away. A mount has a lock for what may take long, and its record another one, so that a
release waits for no mount.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    DeadlineExceeded,
    Denied,
    LodefsError,
    NoSpace,
    NotFound,
    Unavailable,
)
from lodefs.mount.node.interface import NodeMounts, ResolvedCommit, Source
from lodefs.mount.service.interface import Health, Held, User, Wanted
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mount import (
    SharedMount,
    Usage,
    check_store,
    made,
    new_key,
    started,
    unused,
    used,
)

HEALTH_TIMEOUT_S = 2.0  # for the proxy to say that it knows a snapshot
LOCK_TIMEOUT_S = 30.0  # for another call to have written a mount's state
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger("lodefs.mounter")


def boot_id() -> str:
    """Which start of the machine this is."""
    return _BOOT_ID.read_text().strip()


class SharedSlot:
    """A mount's place in memory. ``lock``: for whom makes or ends the mount; ``mount`` changes
    under the lock of the table. ``holders``: threads that want it to stay. ``given``: the token
    that each user gave last, so that only one that is new to its user replaces the mount's.
    ``renewal_problem``: why the mount is read with an earlier token than the one that is kept.
    ``is_behind``: its file does not say yet who was released. ``asker``: the user for whom it was
    handed out first."""

    def __init__(self, mount: SharedMount) -> None:
        self.key = mount.key
        self.lock = threading.Lock()
        self.writing = threading.Lock()
        self.mount = mount
        self.holders = 0
        self.given: dict[User, str] = {}
        self.renewal_problem = ""
        self.is_written = False
        self.is_behind = False
        self.idle_since_s: float | None = None
        self.asker: int | None = None


class Acquiring:
    """An acquire under way. A release that comes meanwhile makes it void, so that it cannot write
    down a user whom nobody would release any more. ``slot``: the mount, when there is one."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.slot: SharedSlot | None = None
        self.is_void = False

    def put_into(self, mount: SharedMount, usage: Usage) -> SharedMount:
        """The mount with its user. Unavailable where that was released meanwhile."""
        if self.is_void:
            raise Unavailable(f"volume {self.user.volume} was released meanwhile; try again")
        return used(mount, usage)


class SharedMounts:
    """See MountService. ``on_change`` is told when upkeep may have something to do; ``stores``:
    those that volumes may name."""

    def __init__(
        self,
        files: MountFiles,
        node: NodeMounts,
        *,
        boot: str,
        stores: Collection[str] = (),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.files = files
        self.node = node
        self._boot = boot
        self._stores = stores
        self._on_change = on_change
        self._closed = False
        self._lock = threading.Lock()
        self._slots: dict[str, SharedSlot] = {}
        self._under_way: list[Acquiring] = []
        for mount in files.load():
            slot = self._slots[mount.key] = SharedSlot(mount)
            slot.is_written = True
            if started(mount, boot) != mount:
                self._write_less(slot, partial(started, boot=boot), LOCK_TIMEOUT_S)

    def resolve(self, wanted: Wanted, token: str | None, timeout_s: float) -> ResolvedCommit:
        """See MountService."""
        check_store(wanted.source.store, self._stores)
        with self.files.lent(token) as path:
            source = msgspec.structs.replace(wanted.source, token_file=path)
            return self.node.resolve(source, wanted.rev, timeout_s)

    def acquire(self, user: User, wanted: Wanted, token: str | None, timeout_s: float) -> Held:
        """See MountService."""
        check_store(wanted.source.store, self._stores)
        deadline_s = time.monotonic() + timeout_s
        with (
            self._acquiring(user) as under_way,
            self._held(user, wanted, token, deadline_s) as slot,
        ):
            with _locked(slot.lock, deadline_s):
                self._check_token(slot, user, wanted, token, deadline_s)
                self.bring_up(slot, deadline_s)
            under_way.slot = slot
            is_new = slot.mount.usage(user) is None
            usage = Usage(user, wanted, time.time())
            self._write(slot, partial(under_way.put_into, usage=usage), _left_s(deadline_s))
        if wanted.pin_s is not None:
            self._on_change()
        return msgspec.structs.replace(self._held_by(slot), is_new=is_new)

    def release(self, user: User, timeout_s: float) -> None:
        """See MountService. An acquire that is still under way does not count any more."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            overtaken = [one for one in self._under_way if one.user == user]
            for one in overtaken:
                one.is_void = True
            writing = [one.slot for one in overtaken if one.slot is not None]
            held = [slot for slot in self._slots.values() if slot.mount.usage(user) is not None]
        for slot in {slot.key: slot for slot in (*held, *writing)}.values():
            self._write_less(slot, partial(unused, user=user), _left_s(deadline_s))
            slot.given.pop(user, None)
            self._on_change()

    def health(self, volume: str, timeout_s: float) -> Health:
        """See MountService."""
        deadline_s = time.monotonic() + timeout_s
        slot = next((s for s in self.slots() if _wishes_of(s.mount, volume)), None)
        if slot is None:
            raise NotFound(f"volume {volume} has no mount on this node")
        held = self._held_by(slot)
        status = self.node.look(held.place, _left_s(deadline_s))
        if status is None or not status.alive:
            return Health(held, "its mount is dead; it is being mounted again")
        try:
            limit_s = min(HEALTH_TIMEOUT_S, _left_s(deadline_s))
            self.node.resolve(self.source_of(slot.mount), slot.mount.commit, limit_s)
        except LodefsError as error:
            return Health(held, f"the node's proxy is not well: {error}")
        if slot.renewal_problem:
            return Health(held, f"it is read with its earlier token still: {slot.renewal_problem}")
        return Health(held)

    def ping(self, timeout_s: float) -> None:
        """See MountService."""

    def close(self) -> None:
        """Write nothing any more: what is under way is Unavailable. Mounts are not touched."""
        self._closed = True

    def slots(self) -> list[SharedSlot]:
        """All mounts, to look at."""
        with self._lock:
            return list(self._slots.values())

    def by_state(self) -> dict[str, int]:
        """How many have users, and how many wait for the next one."""
        used = [bool(slot.mount.users) for slot in self.slots()]
        return {"used": used.count(True), "idle": used.count(False)}

    def source_of(self, mount: SharedMount) -> Source:
        """What is mounted, with the file of its token."""
        path = self.files.token_path(mount.key) if mount.has_token else ""
        return msgspec.structs.replace(mount.source, token_file=path)

    def bring_up(self, slot: SharedSlot, deadline_s: float) -> None:
        """Have it mounted, by whom has the slot's lock."""
        mount = slot.mount
        place = self.files.make_place(slot.key)
        status = self.node.look(place, _left_s(deadline_s))
        if status is None or not status.alive or not status.ready:
            self.node.mount(self.source_of(mount), mount.commit, place, _left_s(deadline_s))

    def take_down(self, slot: SharedSlot, timeout_s: float) -> bool:
        """Unmount what nobody uses; False where somebody does, or is about to."""
        with self._lock:
            if slot.holders or slot.mount.users:
                return False
            self._slots.pop(slot.key, None)  # who wants it from now on gets another one
        place = self.files.place(slot.key)
        # A descriptor that somebody keeps would have its processes serve nobody, for ever.
        abort = slot.mount.was_attached is True and not self.node.showing({place}).get(place)
        self.node.unmount(place, timeout_s, abort=abort)
        self.files.remove(slot.key)
        self.files.remove_place(slot.key)
        return True

    def pinned(self, slot: SharedSlot, until_s: float) -> None:
        """Note that its data is pinned until then (Unix time)."""
        self._write(slot, lambda mount: msgspec.structs.replace(mount, pinned_until_s=until_s))

    @contextmanager
    def _acquiring(self, user: User) -> Iterator[Acquiring]:
        one = Acquiring(user)
        with self._lock:
            self._under_way.append(one)
        try:
            yield one
        finally:
            with self._lock:
                self._under_way.remove(one)

    @contextmanager
    def _held(
        self, user: User, wanted: Wanted, token: str | None, deadline_s: float
    ) -> Iterator[SharedSlot]:
        """The slot for a user, which stays while the block takes."""
        slot = self._of_user(user, wanted) or self._of_snapshot(wanted, token, deadline_s)
        try:
            yield slot
        finally:
            with self._lock:
                slot.holders -= 1
                if not slot.is_written and not slot.holders:
                    self._slots.pop(slot.key, None)
                    self.files.remove(slot.key)
                    self.files.remove_place(slot.key)  # what is mounted there stays for upkeep

    def _of_user(self, user: User, wanted: Wanted) -> SharedSlot | None:
        """The mount that a user has, or its volume at another target."""
        with self._lock:
            slots = [slot for slot in self._slots.values() if _wishes_of(slot.mount, user.volume)]
            for slot in slots:
                if any(wish != wanted for wish in _wishes_of(slot.mount, user.volume)):
                    raise AlreadyExists(
                        f"volume {user.volume} is there with other attributes: unpublish it first"
                    )
            if slots:
                slots[0].holders += 1
            return slots[0] if slots else None

    def _of_snapshot(self, wanted: Wanted, token: str | None, deadline_s: float) -> SharedSlot:
        """The mount of what is wanted, a new one where there is none."""
        source, rev = wanted.source, wanted.rev
        with self._lock:  # who names a commit that is mounted needs no proxy
            known = None if token is not None else self._find(source, rev, None)
            if known is not None:
                known.holders += 1
                return known
        found = self.resolve(wanted, token, _left_s(deadline_s))
        with self._lock:
            slot = self._find(source, found.commit, token)
            if slot is None:
                key = new_key(source.repo, found.commit, secrets.token_hex(4))
                if token is not None:
                    self.files.keep_token(key, token)
                fresh = made(key, source, found, self._boot, has_token=token is not None)
                slot = self._slots[key] = SharedSlot(fresh)
            slot.holders += 1
            return slot

    def _find(self, source: Source, commit: str, token: str | None) -> SharedSlot | None:
        """A mount of a commit that a token has opened."""
        for slot in self._slots.values():
            mount = slot.mount
            same = mount.source == source and mount.commit == commit
            if same and token == (self.files.token(slot.key) if mount.has_token else None):
                return slot
        return None

    def _check_token(
        self,
        slot: SharedSlot,
        user: User,
        wanted: Wanted,
        token: str | None,
        deadline_s: float,
    ) -> None:
        """A token that is new to its user takes the place of the mount's, where the proxy takes it;
        a new user without one must not need one. Denied: the mount keeps its own."""
        mount = slot.mount
        current = self.files.token(slot.key) if mount.has_token else None
        checked = msgspec.structs.replace(wanted, rev=mount.commit)
        is_known = token == slot.given.get(user) and mount.usage(user) is not None
        if is_known and token != current:
            is_known = not self._is_denied(checked, current, deadline_s)
        if token == current or is_known or (token is None and mount.usage(user) is not None):
            if token is not None:
                slot.given[user] = token
            if slot.renewal_problem:
                self._renew(slot, deadline_s)
            return
        self.resolve(checked, token, _left_s(deadline_s))
        if token is None:
            return
        self.files.keep_token(slot.key, token)
        slot.given[user] = token
        if not mount.has_token:
            self._write(slot, lambda old: msgspec.structs.replace(old, has_token=True))
        self._renew(slot, deadline_s)

    def _is_denied(self, wanted: Wanted, token: str | None, deadline_s: float) -> bool:
        """Whether a token is of no use any more, as far as can be said now."""
        try:
            self.resolve(wanted, token, _left_s(deadline_s))
        except Denied:
            return True
        except LodefsError:
            return False
        return False

    def _renew(self, slot: SharedSlot, deadline_s: float) -> None:
        """Have a living mount read with the token that is kept. What fails is no matter of who
        gave the token: health tells it, and the next acquire tries again."""
        place = self.files.place(slot.key)
        try:
            status = self.node.look(place, _left_s(deadline_s))
            if status is not None and status.alive:
                self.node.renew(self.source_of(slot.mount), place, _left_s(deadline_s))
        except LodefsError as error:
            slot.renewal_problem = str(error)
            _log.warning("the mount %s keeps its earlier token: %s", slot.key, error)
        else:
            slot.renewal_problem = ""
            _log.info("the mount %s has another token now", slot.key)

    def _write(
        self,
        slot: SharedSlot,
        change: Callable[[SharedMount], SharedMount],
        timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        """A mount's new state, on disk and then in memory."""
        with self._writing(slot, timeout_s):
            after = change(slot.mount)
            if after != slot.mount or slot.is_behind:
                self.files.write(after)
                with self._lock:
                    slot.mount, slot.is_written, slot.is_behind = after, True, False

    @contextmanager
    def _writing(self, slot: SharedSlot, timeout_s: float) -> Iterator[None]:
        """Inside the block nobody else changes a mount's record."""
        with _locked(slot.writing, time.monotonic() + timeout_s):
            if self._closed:
                raise Unavailable("another service has the mounts now; try again")
            yield

    def write_again(self, slot: SharedSlot) -> None:
        """Bring the file of a mount up to what is known. NoSpace, Denied, Unavailable."""
        self._write(slot, lambda mount: mount)

    def _write_less(
        self, slot: SharedSlot, change: Callable[[SharedMount], SharedMount], timeout_s: float
    ) -> None:
        """Write down that users are gone. Where the disk takes nothing it is known in memory, and
        upkeep writes it once that can be: no pod stays for a disk that is full."""
        with self._writing(slot, timeout_s):
            after = change(slot.mount)
            if after == slot.mount:
                return
            try:
                self.files.write(after)
                slot.is_behind = False
            except (NoSpace, Denied, Unavailable) as error:
                _log.warning("a release is not written down yet: %s", error)
                slot.is_behind = True
                if not after.users:
                    self.files.forget(slot.key)  # takes no space
            with self._lock:
                slot.mount = after

    def _held_by(self, slot: SharedSlot) -> Held:
        mount = slot.mount
        return Held(self.files.place(slot.key), mount.commit, mount.files, mount.size_bytes)


@contextmanager
def _locked(lock: threading.Lock, deadline_s: float) -> Iterator[None]:
    if not lock.acquire(timeout=_left_s(deadline_s)):
        raise DeadlineExceeded("another call for this mount takes long; try again")
    try:
        yield
    finally:
        lock.release()


def _wishes_of(mount: SharedMount, volume: str) -> list[Wanted]:
    return [usage.wanted for usage in mount.users if usage.user.volume == volume]


def _left_s(deadline_s: float) -> float:
    return max(deadline_s - time.monotonic(), 0.001)

"""MountService over the mounts of this node.

An acquire mounts, records the user, and answers. A release removes the user's record and answers;
upkeep unmounts. So whatever ends in between leaves at worst a mount without users, which upkeep
removes. A mount has one lock for work that may take long, and another for its record, so that a
release waits for no mount.

Calls that wait for one mount are done together. One look at it serves all calls that came before
the look, and one file has the changes of all that wait (``RecordWriter``). So hundreds of
containers that start at once cost a mount one look and one or two files.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Denied,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.mount.helper.deadline_calls import left_s
from lodefs.mount.helper.interface import NodeMounts, ResolvedCommit, Source
from lodefs.mount.service.interface import WRITABLE, Health, Holding, MountClaim, MountHandle, User
from lodefs.mount.service.machine_clock import CLOCK, Clock
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mount import (
    SharedMount,
    Usage,
    check_store,
    lapsed,
    made,
    new_key,
    stale_users,
    started,
    unused,
    used,
)
from lodefs.mount.service.shared_slot import RecordWriter, SharedSlot, locked

HEALTH_TIMEOUT_S = 2.0  # for the proxy to answer for a snapshot
_NODE_IS_SLOW = (
    "another call for this mount waits for the node's proxy or its store, which is slow or out of "
    "reach; try again"
)
_log = logging.getLogger("lodefs.mounter")


class Acquiring:
    """An acquire under way. A release that comes meanwhile cancels it, so that it cannot record a
    user that nobody would release any more. ``slot``: the mount, once there is one."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.slot: SharedSlot | None = None
        self.is_void = False

    def put_into(self, mount: SharedMount, usage: Usage) -> SharedMount:
        """Adds the user to the mount. Raises: Unavailable if it was released meanwhile."""
        if self.is_void:
            raise Unavailable(f"volume {self.user.volume} was released meanwhile; try again")
        return used(mount, usage)


class SharedMounts:
    """See MountService. ``on_change`` is called when upkeep may have work; ``stores``: those that
    volumes may name."""

    def __init__(
        self,
        files: MountFiles,
        node: NodeMounts,
        *,
        boot: str,
        stores: Collection[str] = (),
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = CLOCK,
    ) -> None:
        self.files = files
        self.node = node
        self.clock = clock
        self._boot = boot
        self._stores = stores
        self._on_change = on_change
        self._lock = threading.Lock()
        self.records = RecordWriter(files, self._lock)
        self._slots: dict[str, SharedSlot] = {}
        self._under_way: list[Acquiring] = []
        for mount in files.load():
            slot = self._add(mount)
            slot.is_written = True
            if started(mount, boot) != mount:
                self.records.write(slot, partial(started, boot=boot), is_release=True)

    def resolve(self, wanted: MountClaim, token: str | None, timeout_s: float) -> ResolvedCommit:
        """See MountService."""
        check_store(wanted, self._stores)
        with self.files.lent(token) as path:
            source = msgspec.structs.replace(wanted.source, token_file=path)
            return self.node.resolve(source, wanted.rev, timeout_s)

    def acquire(
        self, user: User, wanted: MountClaim, token: str | None, timeout_s: float
    ) -> MountHandle:
        """See MountService."""
        check_store(wanted, self._stores)
        asked_s = time.monotonic()
        deadline_s = asked_s + timeout_s
        with (
            self._acquiring(user) as under_way,
            self._held(user, wanted, token, deadline_s) as slot,
        ):
            if not user.keeps_data:
                with locked(slot.lock, deadline_s, _NODE_IS_SLOW):
                    self._check_token(slot, user, wanted, token, deadline_s)
                    if slot.looked_s < asked_s:
                        self.bring_up(slot, deadline_s)
            under_way.slot = slot
            is_new = slot.mount.usage(user) is None
            usage = Usage(user, wanted, self.clock.now_s())
            self.records.write(slot, partial(under_way.put_into, usage=usage), left_s(deadline_s))
        if wanted.pin_s is not None:
            self._on_change()
        return msgspec.structs.replace(self._held_by(slot), is_new=is_new)

    def adopt(
        self,
        user: User,
        wanted: MountClaim,
        token: str | None,
        place: str,
        found: ResolvedCommit,
        timeout_s: float,
    ) -> None:
        """See MountService."""
        check_store(wanted, self._stores)
        deadline_s = time.monotonic() + timeout_s
        status = self.node.look(place, timeout_s)
        same = status is not None and status.alive and status.ready
        if status is None or not same or status.commit != found.commit:
            if status is not None:
                self.node.unmount(place, left_s(deadline_s))
            raise NotFound(f"{place}: there is no living mount of {found.commit}")
        with self._lock:
            slot = next((slot for slot in self._slots.values() if slot.place == place), None)
            if slot is None:
                key = self.files.key_at(place)
                where: str | msgspec.UnsetType = place if key is None else msgspec.UNSET
                key = key or new_key(wanted.source.repo, found.commit, secrets.token_hex(4))
                if token is not None:
                    self.files.keep_token(key, token)
                fresh = made(key, wanted.source, found, self._boot, has_token=token is not None)
                slot = self._add(msgspec.structs.replace(fresh, place=where))
            slot.holders += 1
        with self._staying(slot):
            usage = Usage(user, wanted, self.clock.now_s())
            self.records.write(slot, partial(used, usage=usage), left_s(deadline_s))

    def release(self, user: User, timeout_s: float) -> None:
        """See MountService. Cancels an acquire that is under way, unless its user may have another
        one."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            under_way = () if user.is_counted else self._under_way
            overtaken = [one for one in under_way if one.user == user]
            for one in overtaken:
                one.is_void = True
            writing = [one.slot for one in overtaken if one.slot is not None]
            held = [slot for slot in self._slots.values() if slot.mount.usage(user) is not None]
        for slot in {slot.key: slot for slot in (*held, *writing)}.values():
            self.records.write(
                slot, partial(unused, user=user), left_s(deadline_s), is_release=True
            )
            slot.given.pop(user, None)
            self._on_change()

    def forget(self, driver: str, volume: str, older_s: float, timeout_s: float) -> int:
        """See MountService. If other drivers share a mount, the kernel does not show for whom it is
        shown. Then the driver that says its volume is unused is believed, since nothing is
        unmounted for it."""
        left = 0
        for slot in self.slots():
            if any(usage.user.driver == driver for usage in slot.mount.users):
                self.drop_stale(slot, older_s, (driver, volume), timeout_s)
                left += sum(
                    usage.count
                    for usage in slot.mount.users
                    if usage.user.wishes_of == (driver, volume, False)
                )
        return left

    def drop_stale(
        self, slot: SharedSlot, older_s: float, of: tuple[str, str] | None, timeout_s: float
    ) -> int:
        """Releases users that their driver has forgotten, as far as the kernel shows: all of a
        mount, or those ``of`` a driver's volume. Returns their number."""
        mount = slot.mount
        stale = [
            usage
            for usage in stale_users(mount, self.clock.now_s(), older_s)
            if of is None or usage.user.wishes_of[:2] == of
        ]
        others = [
            usage
            for usage in mount.users
            if usage.user.wishes_of[:2] != of and not usage.user.keeps_data
        ]
        try:
            if not stale or (self.node.showing(_places(slot)) and not (of and others)):
                return 0
        except Unavailable as error:
            _log.debug("cannot see who shows %s: %s", slot.key, error)
            return 0
        self.records.write(slot, partial(lapsed, stale=stale), timeout_s, is_release=True)
        self._on_change()
        return len(stale)

    def holdings(self, driver: str, volume: str, timeout_s: float) -> list[Holding]:
        """See MountService."""
        found: dict[str, Holding] = {}
        for slot in self.slots():
            mount = slot.mount
            for usage in mount.users:
                name = usage.user.volume
                if usage.user.driver != driver or volume not in ("", name):
                    continue
                there = found.get(name) or Holding(name)
                if usage.user.keeps_data:
                    found[name] = msgspec.structs.replace(
                        there,
                        kept_commit=mount.commit,
                        pinned_until_s=mount.pinned_until_s,
                        pin_problem=slot.pin_problem,
                    )
                else:
                    count = there.references + usage.count
                    found[name] = msgspec.structs.replace(
                        there, place=slot.place, references=count, is_dead=slot.is_dead
                    )
        alone = found.get(volume)
        if alone is not None and alone.place and not alone.is_dead:
            with suppress(LodefsError):
                traffic = self.node.traffic(alone.place, timeout_s)
                found[volume] = msgspec.structs.replace(alone, traffic=traffic)
        return [found[name] for name in sorted(found)]

    def health(self, volume: str, timeout_s: float) -> Health:
        """See MountService."""
        deadline_s = time.monotonic() + timeout_s
        wishes_of = ("", volume, False)
        slot = next((s for s in self.slots() if _wishes_of(s.mount, wishes_of)), None)
        if slot is None:
            raise NotFound(f"volume {volume} has no mount on this node")
        held = self._held_by(slot)
        status = self.node.look(held.place, left_s(deadline_s))
        if status is None or not status.alive:
            return Health(held, "its mount is dead and is being made again")
        try:
            limit_s = min(HEALTH_TIMEOUT_S, left_s(deadline_s))
            self.node.resolve(self.source_of(slot.mount), slot.mount.commit, limit_s)
        except LodefsError as error:
            return Health(held, f"the node's proxy is not well: {error}")
        if slot.renewal_problem:
            return Health(held, f"it still uses its earlier token: {slot.renewal_problem}")
        return Health(held)

    def ping(self, timeout_s: float) -> None:
        """See MountService."""

    def close(self) -> None:
        """Ends all writing: calls under way raise Unavailable. Mounts are not touched."""
        self.records.close()

    def slots(self) -> list[SharedSlot]:
        """Returns all mounts, for reading."""
        with self._lock:
            return list(self._slots.values())

    def by_state(self) -> dict[str, int]:
        """Returns the number of mounts with users, and of those that wait for the next one."""
        used = [slot.mount.is_mounted for slot in self.slots()]
        return {"used": used.count(True), "idle": used.count(False)}

    def source_of(self, mount: SharedMount) -> Source:
        """Returns the source of a mount, with the file of its token."""
        path = self.files.token_path(mount.key) if mount.has_token else ""
        return msgspec.structs.replace(mount.source, token_file=path)

    def bring_up(self, slot: SharedSlot, deadline_s: float) -> None:
        """Ensures that it is mounted. The caller holds the slot's lock."""
        mount, begun_s = slot.mount, time.monotonic()
        self.files.make_place(slot.place)
        status = self.node.look(slot.place, left_s(deadline_s))
        if status is not None and not status.ready:  # left incomplete by a killed service
            self.node.unmount(slot.place, left_s(deadline_s))
        if status is None or not status.alive or not status.ready:
            self.node.mount(self.source_of(mount), mount.commit, slot.place, left_s(deadline_s))
        slot.is_dead, slot.looked_s = False, begun_s

    def take_down(self, slot: SharedSlot, timeout_s: float) -> bool:
        """Unmounts a mount that no user wants; False if one wants it, or is about to."""
        with self._lock:
            if slot.holders or slot.mount.is_mounted:
                return False
            if not slot.mount.users:
                self._slots.pop(slot.key, None)  # later users get another one
        place = slot.place
        # With a descriptor that somebody keeps, its processes would serve nobody, for ever.
        abort = slot.mount.was_attached is True and not self.node.showing({place}).get(place)
        slot.looked_s = -math.inf  # also for an acquire that began before it was seen
        self.node.unmount(place, timeout_s, abort=abort)
        if slot.key not in self._slots:
            self.files.remove(slot.key)
        self.files.remove_place(place)
        return True

    def pinned(self, slot: SharedSlot, until_s: float) -> None:
        """Records that its data is pinned until this time (Unix)."""
        self.records.write(
            slot, lambda mount: msgspec.structs.replace(mount, pinned_until_s=until_s)
        )

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
        self, user: User, wanted: MountClaim, token: str | None, deadline_s: float
    ) -> Iterator[SharedSlot]:
        """Yields the slot for a user, which stays during the block."""
        slot = self._of_user(user, wanted) or self._of_snapshot(wanted, token, deadline_s)
        with self._staying(slot):
            yield slot

    @contextmanager
    def _staying(self, slot: SharedSlot) -> Iterator[None]:
        """Keeps a slot until the block ends; this thread is one of its holders."""
        try:
            yield
        finally:
            with self._lock:
                slot.holders -= 1
                if not slot.is_written and not slot.holders:
                    self._slots.pop(slot.key, None)
                    self.files.remove(slot.key)
                    self.files.remove_place(slot.place)  # a mount there stays for upkeep

    def _of_user(self, user: User, wanted: MountClaim) -> SharedSlot | None:
        """Returns the mount of a user, or of its volume at another target."""
        with self._lock:
            wishes_of = user.wishes_of
            slots = [slot for slot in self._slots.values() if _wishes_of(slot.mount, wishes_of)]
            for slot in slots:
                if any(wish != wanted for wish in _wishes_of(slot.mount, wishes_of)):
                    raise AlreadyExists(
                        f"volume {user.volume} is in use with other options: end the containers, "
                        "pods or jobs that use it first"
                    )
            if slots:
                slots[0].holders += 1
            return slots[0] if slots else None

    def _of_snapshot(self, wanted: MountClaim, token: str | None, deadline_s: float) -> SharedSlot:
        """Returns the mount for a claim, a new one if there is none."""
        source, rev = wanted.source, wanted.rev
        with self._lock:  # a claim for a mounted commit needs no proxy
            known = None if token is not None else self._find(source, rev, None)
            if known is not None:
                known.holders += 1
                return known
        found = self.resolve(wanted, token, left_s(deadline_s))
        with self._lock:
            slot = self._find(source, found.commit, token)
            if slot is None:
                key = new_key(source.repo, found.commit, secrets.token_hex(4))
                if token is not None:
                    self.files.keep_token(key, token)
                fresh = made(key, source, found, self._boot, has_token=token is not None)
                slot = self._add(fresh)
            slot.holders += 1
            return slot

    def _add(self, mount: SharedMount) -> SharedSlot:
        place = mount.place or self.files.place(mount.key)
        slot = self._slots[mount.key] = SharedSlot(mount, place)
        return slot

    def _find(self, source: Source, commit: str, token: str | None) -> SharedSlot | None:
        """Returns a mount of a commit that the given token opened; or one that needed no token."""
        wanted = (source, commit, token is not None)
        for slot in self._slots.values():
            is_same = (slot.mount.source, slot.mount.commit, slot.mount.has_token) == wanted
            if is_same and (token is None or token == self.files.token(slot.key)):
                return slot
        return None

    def _check_token(
        self,
        slot: SharedSlot,
        user: User,
        wanted: MountClaim,
        token: str | None,
        deadline_s: float,
    ) -> None:
        """A token that is new to its user replaces the mount's, if the proxy accepts it. A new user
        without a token must not need one. Raises: Denied; the mount keeps its token."""
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
        self.resolve(checked, token, left_s(deadline_s))
        if token is None:
            return
        self.files.keep_token(slot.key, token)
        slot.given[user] = token
        if not mount.has_token:
            self.records.write(slot, lambda old: msgspec.structs.replace(old, has_token=True))
        self._renew(slot, deadline_s)

    def _is_denied(self, wanted: MountClaim, token: str | None, deadline_s: float) -> bool:
        """Whether a token is no longer accepted, as far as that can be checked now."""
        try:
            self.resolve(wanted, token, left_s(deadline_s))
        except Denied:
            return True
        except LodefsError:
            return False
        return False

    def _renew(self, slot: SharedSlot, deadline_s: float) -> None:
        """Makes a living mount use the stored token. A failure does not concern the caller: health
        reports it, and the next acquire tries again."""
        try:
            status = self.node.look(slot.place, left_s(deadline_s))
            if status is not None and status.alive:
                self.node.renew(self.source_of(slot.mount), slot.place, left_s(deadline_s))
        except LodefsError as error:
            slot.renewal_problem = str(error)
            _log.warning("the mount %s keeps its earlier token: %s", slot.key, error)
        else:
            slot.renewal_problem = ""
            _log.info("the mount %s now has another token", slot.key)

    def _held_by(self, slot: SharedSlot) -> MountHandle:
        mount = slot.mount
        return MountHandle(slot.place, mount.commit, mount.files, mount.size_bytes)


def _places(slot: SharedSlot) -> set[str]:
    """Returns the path of a mount, and of writable mounts over it, which containers show
    instead."""
    users = [usage.user for usage in slot.mount.users]
    return {slot.place, *(user.target for user in users if user.driver == WRITABLE)}


def _wishes_of(mount: SharedMount, wishes_of: tuple[str, str, bool]) -> list[MountClaim]:
    return [usage.wanted for usage in mount.users if usage.user.wishes_of == wishes_of]

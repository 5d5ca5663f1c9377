"""A shared mount: its record, changes of the record, and what upkeep must do. Pure."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Denied
from lodefs.mount.helper.interface import MountStatus, ResolvedCommit, Source
from lodefs.mount.service.interface import MountClaim, User

IDLE_S = 10.0  # a mount without users stays this long for the next pod of a job
PIN_S = 86400  # duration of a pin that upkeep renews
PIN_RETRY_S = 60.0
UNPIN_PATIENCE_S = 2 * PIN_RETRY_S  # with a proxy that does not take a pin back
STALE_S = 60.0  # a starting container does not show its mounts at once
CHECK_S = 60.0  # between scans of all processes for a mount's users
KEY_NAME_CHARS_MAX = 40
_SAFE = frozenset(string.ascii_letters + string.digits + "._-")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user, its claim, and the time of the last one (Unix). ``count``: how often it holds it."""

    user: User
    wanted: MountClaim
    since_s: float
    count: int = 1


class SharedMount(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a mount in the state directory. Users belong to the boot ``boot``.

    ``has_token``: the file of tokens with the mount's key has the token; no record has it.
    ``pin_stays``: its data stays pinned without users, until the pin expires. ``was_attached``:
    descriptors of it were handed out, which nobody can see. ``place``: its path if that is not the
    usual one, since the mount was made before the service had it.
    """

    key: str
    source: Source
    commit: str
    files: int
    size_bytes: int
    has_token: bool
    boot: str
    users: tuple[Usage, ...] = ()
    pinned_until_s: float = 0.0
    pin_stays: bool = False
    was_attached: bool | msgspec.UnsetType = msgspec.UNSET
    place: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_mounted(self) -> bool:
        """Whether a user wants it mounted."""
        return any(not usage.user.keeps_data for usage in self.users)

    def usage(self, user: User) -> Usage | None:
        """Returns the claim of a user; None for another user."""
        return next((usage for usage in self.users if usage.user == user), None)


def check_store(wanted: MountClaim, allowed: Collection[str]) -> None:
    """Raises Denied for a store that the administrator of the node has not allowed. Otherwise
    everyone who makes volumes could open directories of the node, and reach hosts, with the node's
    rights. "" is the store of the node's proxy."""
    store = wanted.source.store
    if store and wanted.any_store is not True and _plain(store) not in map(_plain, allowed):
        raise Denied(
            f"volumeAttributes store: {store.partition('?')[0]} is not allowed on this node; leave "
            "it out for the store of the node's proxy, or start `lodefs mounter --allow-store URL` "
            "with exactly this URL"
        )


def new_key(repo: str, commit: str, unique: str) -> str:
    """Returns the name of a mount's files. It begins with the repository, for administrators."""
    safe = "".join(c if c in _SAFE else "_" for c in repo[:KEY_NAME_CHARS_MAX]).lstrip(".")
    return f"{safe}-{commit[:12]}-{unique}"


def made(
    key: str, source: Source, found: ResolvedCommit, boot: str, *, has_token: bool
) -> SharedMount:
    """Returns a mount without users."""
    return SharedMount(
        key=key,
        source=source,
        commit=found.commit,
        files=found.files,
        size_bytes=found.size_bytes,
        has_token=has_token,
        boot=boot,
    )


def _plain(store: str) -> str:
    return store.removeprefix("file://").rstrip("/")


def used(mount: SharedMount, usage: Usage) -> SharedMount:
    """Adds a user. An existing one is counted once more, or nothing changes."""
    user = usage.user
    old = mount.usage(user)
    if old is not None:
        if not user.is_counted:
            return mount
        usage = msgspec.structs.replace(usage, count=old.count + 1)
    return msgspec.structs.replace(
        mount,
        users=(*(one for one in mount.users if one is not old), usage),
        pin_stays=mount.pin_stays or bool(usage.wanted.pin_s and not user.keeps_data),
        was_attached=mount.was_attached or user.is_attached or msgspec.UNSET,
    )


def unused(mount: SharedMount, user: User) -> SharedMount:
    """Removes a user, or counts it once less."""
    return msgspec.structs.replace(
        mount,
        users=tuple(
            msgspec.structs.replace(usage, count=usage.count - 1) if usage.user == user else usage
            for usage in mount.users
            if usage.user != user or usage.count > 1
        ),
    )


def lapsed(mount: SharedMount, stale: Collection[Usage]) -> SharedMount:
    """Removes users, however often they are counted. A user that was counted since stays."""
    left = tuple(usage for usage in mount.users if usage not in stale)
    return msgspec.structs.replace(mount, users=left)


def stale_users(mount: SharedMount, now_s: float, older_s: float) -> list[Usage]:
    """Returns counted users that are old enough for their containers to show the mount. A clock
    that was set back makes them old."""
    return [
        usage
        for usage in mount.users
        if usage.user.is_counted and not 0 <= now_s - usage.since_s <= older_s
    ]


def started(mount: SharedMount, boot: str) -> SharedMount:
    """Returns the record at a start of the service, without users of an earlier boot."""
    if mount.boot == boot:
        return mount
    return msgspec.structs.replace(mount, boot=boot, users=())


def pin_due_s(mount: SharedMount, now_s: float) -> int:
    """Returns the seconds for which its data must be pinned now; 0: not at all."""
    wishes = [(u.wanted.pin_s, u.since_s) for u in mount.users if u.wanted.pin_s is not None]
    if any(pin_s == 0 for pin_s, _ in wishes):
        return 0 if mount.pinned_until_s - now_s > PIN_S / 2 else PIN_S
    ends_s = max((since_s + pin_s for pin_s, since_s in wishes if pin_s), default=0.0)
    return max(0, round(ends_s - now_s)) if ends_s > mount.pinned_until_s + 1 else 0


def is_pinned_for_nobody(mount: SharedMount, now_s: float) -> bool:
    """Whether its data is still pinned, and no user wants that."""
    is_wanted = mount.pin_stays or any(u.wanted.pin_s is not None for u in mount.users)
    return mount.pinned_until_s > now_s and not is_wanted


def holds_pin(one: SharedMount, other: SharedMount, now_s: float) -> bool:
    """Whether a mount has a pin that releasing the other's pin would remove, since a node releases
    a directory with everything below it. Stores are not compared: one has several names."""
    same = (one.source.repo, one.commit) == (other.source.repo, other.commit)
    top, path = other.source.path, one.source.path
    is_below = not top or path == top or path.startswith(top + b"/")
    return same and is_below and one.pinned_until_s > now_s


class DropStale(NamedTuple):
    """It has old users that their driver may have forgotten: check who shows the mount."""

    key: str


class MountAgain(NamedTuple):
    """It has users, and is not mounted, or dead: mount it again."""

    key: str


class ReviveMount(NamedTuple):
    """It has lost its supervisor: start another one."""

    key: str


class UnmountIdle(NamedTuple):
    """No user wants it mounted."""

    key: str


class PinData(NamedTuple):
    """The step that keeps its data in the cache for this long from now on."""

    key: str
    pin_s: int


class UnpinData(NamedTuple):
    """No user wants its data kept any more."""

    key: str


class WriteAgain(NamedTuple):
    """Its file is out of date, since the disk refused a write."""

    key: str


class Sweep(NamedTuple):
    """A mount point whose mount has no record: remove it."""

    key: str


MountAction = DropStale | MountAgain | ReviveMount | UnmountIdle | PinData | UnpinData | WriteAgain
Action = MountAction | Sweep


class SharedView(NamedTuple):
    """A mount, and whether its file is out of date. Times are the machine's uptime: since when no
    user wants it mounted, the last check of who shows it, the last failed pin."""

    mount: SharedMount
    idle_since_s: float | None = None
    is_behind: bool = False
    checked_s: float = -CHECK_S
    pin_failed_s: float = -PIN_RETRY_S


class UpkeepTimes(NamedTuple):
    """Now, as the machine's uptime and as Unix time; and how long a mount stays without users."""

    uptime_s: float
    now_s: float
    idle_s: float = IDLE_S


def decide(
    views: Iterable[SharedView],
    statuses: Mapping[str, MountStatus],
    places: Iterable[str],
    now: UpkeepTimes,
) -> list[Action]:
    """Returns the actions to take, one at most for each key. ``places``: keys of existing mount
    points; ``statuses``: mounts by key."""
    actions: list[Action] = []
    known = set()
    for view in views:
        known.add(view.mount.key)
        status = statuses.get(view.mount.key)
        actions += list(itertools.islice(_of(view, status, now), 1))
    return actions + [Sweep(key) for key in sorted({*places, *statuses} - known)]


def _of(view: SharedView, status: MountStatus | None, now: UpkeepTimes) -> Iterator[Action]:
    """Yields the actions for a mount, the most urgent first."""
    mount = view.mount
    if mount.is_mounted:
        is_due = now.uptime_s - view.checked_s >= CHECK_S
        if is_due and stale_users(mount, now.now_s, STALE_S):
            yield DropStale(mount.key)  # first, since the next ones may fail each time
        if status is None or not status.alive:
            yield MountAgain(mount.key)
        elif not status.supervised:
            yield ReviveMount(mount.key)
    if now.uptime_s - view.pin_failed_s >= PIN_RETRY_S:
        if pin_s := pin_due_s(mount, now.now_s):
            yield PinData(mount.key, pin_s)
        if is_pinned_for_nobody(mount, now.now_s):
            yield UnpinData(mount.key)
    if not mount.is_mounted:
        since_s = now.uptime_s if view.idle_since_s is None else view.idle_since_s
        # Once the mount is gone nobody knows its pin, and the proxy may be starting again
        patience_s = UNPIN_PATIENCE_S if is_pinned_for_nobody(mount, now.now_s) else 0.0
        is_over = now.uptime_s - since_s >= now.idle_s + patience_s
        if is_over if status is not None or patience_s else not mount.users:
            yield UnmountIdle(mount.key)
    if view.is_behind and mount.users:
        yield WriteAgain(mount.key)

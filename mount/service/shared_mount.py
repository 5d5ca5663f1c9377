"""A shared mount: what is written down of it, how that changes, and what upkeep has to do. Pure."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Denied
from lodefs.mount.helper.interface import MountStatus, ResolvedCommit, Source
from lodefs.mount.service.interface import MountClaim, User

IDLE_S = 10.0  # a mount without users: the next pod of a job may want it
PIN_S = 86400  # of a pin that upkeep renews
PIN_RETRY_S = 60.0
STALE_S = 60.0  # a container that starts does not show its mounts at once
CHECK_S = 60.0  # between looks at who shows a mount: all processes are looked at
KEY_NAME_CHARS_MAX = 40
_SAFE = frozenset(string.ascii_letters + string.digits + "._-")


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A user, what it asked for, and when last (Unix time). ``count``: how often it holds it."""

    user: User
    wanted: MountClaim
    since_s: float
    count: int = 1


class SharedMount(msgspec.Struct, frozen=True, kw_only=True):
    """What the state directory has of a mount. Users are of the boot ``boot``.

    ``has_token``: the token is in the file of tokens that has the mount's key; no state has it.
    ``pin_stays``: its data stays pinned when nobody uses it any more, until that expires.
    ``was_attached``: descriptors of it were handed out, which nobody can see. ``place``: where it
    is, if not where all are: it was made before the service had it.
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
        """What a user asked for; None where it is none."""
        return next((usage for usage in self.users if usage.user == user), None)


def check_store(wanted: MountClaim, allowed: Collection[str]) -> None:
    """Denied where a volume names a store that the administrator of the node has not allowed: who
    makes volumes would open directories of the node, and reach hosts, by its rights. "" is the
    store of the node's proxy."""
    store = wanted.source.store
    if store and wanted.any_store is not True and _plain(store) not in map(_plain, allowed):
        raise Denied(
            f"volumeAttributes store: {store.partition('?')[0]} is not allowed on this node; leave "
            "it out for the store of the node's proxy, or have `lodefs mounter --allow-store URL` "
            "say the very same URL"
        )


def new_key(repo: str, commit: str, unique: str) -> str:
    """The name of a mount's files: where an administrator looks, the repository is told."""
    safe = "".join(c if c in _SAFE else "_" for c in repo[:KEY_NAME_CHARS_MAX]).lstrip(".")
    return f"{safe}-{commit[:12]}-{unique}"


def made(
    key: str, source: Source, found: ResolvedCommit, boot: str, *, has_token: bool
) -> SharedMount:
    """A mount without users."""
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
    """With one user more; one that is there already counts once more, or nothing changes."""
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
    """Without a user, or with one that counts once less."""
    return msgspec.structs.replace(
        mount,
        users=tuple(
            msgspec.structs.replace(usage, count=usage.count - 1) if usage.user == user else usage
            for usage in mount.users
            if usage.user != user or usage.count > 1
        ),
    )


def lapsed(mount: SharedMount, stale: Collection[Usage]) -> SharedMount:
    """Without some users, however often each of them counts; who was counted again since stays."""
    left = tuple(usage for usage in mount.users if usage not in stale)
    return msgspec.structs.replace(mount, users=left)


def stale_users(mount: SharedMount, now_s: float, older_s: float) -> list[Usage]:
    """Counted users that are old enough for their containers to show the mount. A clock that was
    set back makes them old."""
    return [
        usage
        for usage in mount.users
        if usage.user.is_counted and not 0 <= now_s - usage.since_s <= older_s
    ]


def started(mount: SharedMount, boot: str) -> SharedMount:
    """As it is at a start of the service: nobody of an earlier boot is left."""
    if mount.boot == boot:
        return mount
    return msgspec.structs.replace(mount, boot=boot, users=())


def pin_due_s(mount: SharedMount, now_s: float) -> int:
    """For how many seconds its data is to be pinned now; 0: it need not be."""
    wishes = [(u.wanted.pin_s, u.since_s) for u in mount.users if u.wanted.pin_s is not None]
    if any(pin_s == 0 for pin_s, _ in wishes):
        return 0 if mount.pinned_until_s - now_s > PIN_S / 2 else PIN_S
    ends_s = max((since_s + pin_s for pin_s, since_s in wishes if pin_s), default=0.0)
    return max(0, round(ends_s - now_s)) if ends_s > mount.pinned_until_s + 1 else 0


def is_pinned_for_nobody(mount: SharedMount, now_s: float) -> bool:
    """Whether its data is pinned still, and no user wants that."""
    is_wanted = mount.pin_stays or any(u.wanted.pin_s is not None for u in mount.users)
    return mount.pinned_until_s > now_s and not is_wanted


def holds_pin(one: SharedMount, other: SharedMount, now_s: float) -> bool:
    """Whether a mount has a pin that letting go of the other's would take away: a node lets go of
    a directory with all below it. Stores do not count: one has several names."""
    same = (one.source.repo, one.commit) == (other.source.repo, other.commit)
    top, path = other.source.path, one.source.path
    is_below = not top or path == top or path.startswith(top + b"/")
    return same and is_below and one.pinned_until_s > now_s


class DropStale(NamedTuple):
    """It has old users whom their driver may have forgotten: see who shows the mount."""

    key: str


class MountAgain(NamedTuple):
    """It has users, and is not mounted, or dead: mount it again."""

    key: str


class ReviveMount(NamedTuple):
    """It has lost its supervisor: start another one."""

    key: str


class UnmountIdle(NamedTuple):
    """Nobody wants it mounted."""

    key: str


class PinData(NamedTuple):
    """Keep its data in the cache for so long from now on."""

    key: str
    pin_s: int


class UnpinData(NamedTuple):
    """Nobody wants its data kept any more."""

    key: str


class WriteAgain(NamedTuple):
    """Its file says less than is known: the disk took nothing."""

    key: str


class Sweep(NamedTuple):
    """A mount point without a mount that is written down: take it away."""

    key: str


MountAction = DropStale | MountAgain | ReviveMount | UnmountIdle | PinData | UnpinData | WriteAgain
Action = MountAction | Sweep


class SharedView(NamedTuple):
    """A mount, and whether its file is behind. Of the machine's uptime: since when upkeep has seen
    that nobody wants it mounted, when it looked last who shows it, when a pin of it failed."""

    mount: SharedMount
    idle_since_s: float | None = None
    is_behind: bool = False
    checked_s: float = -CHECK_S
    pin_failed_s: float = -PIN_RETRY_S


class UpkeepTimes(NamedTuple):
    """Now: seconds since the machine started, and the Unix time; and how long a mount stays
    without users."""

    uptime_s: float
    now_s: float
    idle_s: float = IDLE_S


def decide(
    views: Iterable[SharedView],
    statuses: Mapping[str, MountStatus],
    places: Iterable[str],
    now: UpkeepTimes,
) -> list[Action]:
    """What is to be done, one action at most for each key. ``places``: keys of the mount points
    that are there; ``statuses``: mounts by key."""
    actions: list[Action] = []
    known = set()
    for view in views:
        known.add(view.mount.key)
        status = statuses.get(view.mount.key)
        actions += list(itertools.islice(_of(view, status, now), 1))
    return actions + [Sweep(key) for key in sorted({*places, *statuses} - known)]


def _of(view: SharedView, status: MountStatus | None, now: UpkeepTimes) -> Iterator[Action]:
    """What would be good for a mount, the most urgent first."""
    mount = view.mount
    if mount.is_mounted:
        is_due = now.uptime_s - view.checked_s >= CHECK_S
        if is_due and stale_users(mount, now.now_s, STALE_S):
            yield DropStale(mount.key)  # first: what is next may fail each time
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
        is_over = now.uptime_s - since_s >= now.idle_s
        if is_over if status is not None else not mount.users:
            yield UnmountIdle(mount.key)
    if view.is_behind and mount.users:
        yield WriteAgain(mount.key)

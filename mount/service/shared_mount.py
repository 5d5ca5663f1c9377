"""A shared mount: what is written down of it, how that changes, and what upkeep has to do. Pure."""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Denied
from lodefs.mount.node.interface import MountStatus, ResolvedCommit, Source
from lodefs.mount.service.interface import User, Wanted

IDLE_S = 10.0  # a mount without users: the next pod of a job may want it
PIN_S = 86400  # of a pin that upkeep renews
PIN_RETRY_S = 60.0
KEY_NAME_CHARS_MAX = 40
_SAFE = frozenset(string.ascii_letters + string.digits + "._-")


class Usage(msgspec.Struct, frozen=True):
    """A user, what it asked for, and since when (Unix time)."""

    user: User
    wanted: Wanted
    since_s: float


class SharedMount(msgspec.Struct, frozen=True, kw_only=True):
    """What the state directory has of a mount. Users are of the boot ``boot``.

    ``has_token``: the token is in the file of tokens that has the mount's key; no state has it.
    ``pin_stays``: its data stays pinned when nobody uses it any more, until that expires.
    ``was_attached``: descriptors of it were handed out, which nobody can see.
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

    def usage(self, user: User) -> Usage | None:
        """What a user asked for; None where it is none."""
        return next((usage for usage in self.users if usage.user == user), None)


def check_store(store: str, allowed: Collection[str]) -> None:
    """Denied where a volume names a store that the administrator of the node has not allowed: who
    makes volumes would open directories of the node, and reach hosts, by its rights. "" is the
    store of the node's proxy."""
    if store and _plain(store) not in map(_plain, allowed):
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
    """With one user more; unchanged where it is one already."""
    if mount.usage(usage.user) is not None:
        return mount
    return msgspec.structs.replace(
        mount,
        users=(*mount.users, usage),
        pin_stays=mount.pin_stays or bool(usage.wanted.pin_s),
        was_attached=mount.was_attached or usage.user.is_attached or msgspec.UNSET,
    )


def unused(mount: SharedMount, user: User) -> SharedMount:
    """Without a user."""
    left = tuple(usage for usage in mount.users if usage.user != user)
    return msgspec.structs.replace(mount, users=left)


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


class MountAgain(NamedTuple):
    """It has users, and is not mounted, or dead: mount it again."""

    key: str


class ReviveMount(NamedTuple):
    """It has lost its supervisor: start another one."""

    key: str


class UnmountIdle(NamedTuple):
    """Nobody uses it."""

    key: str


class PinData(NamedTuple):
    """Keep its data in the cache for so long from now on."""

    key: str
    pin_s: int


class WriteAgain(NamedTuple):
    """Its file says less than is known: the disk took nothing."""

    key: str


class Sweep(NamedTuple):
    """A mount point without a mount that is written down: take it away."""

    key: str


Action = MountAgain | ReviveMount | UnmountIdle | PinData | WriteAgain | Sweep


class SharedView(NamedTuple):
    """A mount, since when upkeep has seen it without users (of the machine's uptime), and whether
    its file is behind."""

    mount: SharedMount
    idle_since_s: float | None = None
    is_behind: bool = False


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
    mount = view.mount
    if not mount.users:
        since_s = now.uptime_s if view.idle_since_s is None else view.idle_since_s
        if status is None or now.uptime_s - since_s >= now.idle_s:
            yield UnmountIdle(mount.key)
        return
    if status is None or not status.alive:
        yield MountAgain(mount.key)
    elif not status.supervised:
        yield ReviveMount(mount.key)
    if pin_s := pin_due_s(mount, now.now_s):
        yield PinData(mount.key, pin_s)
    if view.is_behind:
        yield WriteAgain(mount.key)

"""What upkeep has to do, of what is written down and what is mounted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lodefs.mount.docker.volume import Volume, doubtful, follow_due, pin_due_s
from lodefs.mount.node.interface import MountStatus

UNUSED_S = 10.0  # a Mount that was late may be asked for again
CHECK_S = 60.0  # between looks at who holds a mount: all processes are looked at


class StartSupervisor(NamedTuple):
    """A mount has lost its supervisor: start another one."""

    key: str


class Remount(NamedTuple):
    """Containers have the volume, and it is not mounted, or its mount is dead: mount it again."""

    key: str


class TakeDown(NamedTuple):
    """Nobody has the volume: unmount it."""

    key: str


class DropStale(NamedTuple):
    """Old references: where nobody holds the mount, dockerd has forgotten them."""

    key: str
    mount_ids: tuple[str, ...]


class Follow(NamedTuple):
    """Look whether the branch has a new commit."""

    key: str


class PinVolume(NamedTuple):
    """Keep the volume's data in the cache for so long from now on."""

    key: str
    pin_s: int


class Clear(NamedTuple):
    """A mount point without a volume: take it away."""

    key: str


Action = StartSupervisor | Remount | TakeDown | DropStale | Follow | PinVolume | Clear


class Times(NamedTuple):
    """Now: the boot, the seconds since, and the Unix time."""

    boot: str
    uptime_s: float
    now_s: float


class VolumeState(NamedTuple):
    """A volume and what upkeep remembers of it: since when its mount is unused, and when it was
    last looked who holds it (both since the machine started)."""

    volume: Volume
    unused_since_s: float | None = None
    checked_s: float = 0.0


def decide(
    views: Iterable[VolumeState],
    statuses: Mapping[str, MountStatus],
    places: Iterable[str],
    damaged: frozenset[str],
    times: Times,
) -> list[Action]:
    """One action at most for each key.

    ``standings`` by key; ``places``: keys of the mount points that are there; ``damaged``: keys of
    volumes that cannot be read, which nothing is done with.
    """
    actions: list[Action] = []
    known = set(damaged)
    for view in views:
        key = view.volume.key
        known.add(key)
        actions += _first(_of(view, statuses.get(key), times))
    actions += [Clear(key) for key in sorted({*places, *statuses} - known)]
    return actions


def _first(actions: Iterator[Action]) -> list[Action]:
    return [action for action, _ in zip(actions, range(1), strict=False)]


def _of(view: VolumeState, standing: MountStatus | None, times: Times) -> Iterator[Action]:
    """What would be good for a volume, the most urgent first."""
    volume = view.volume
    key = volume.key
    if volume.count(times.boot):
        stale = doubtful(volume, times.boot, times.uptime_s)
        if stale and times.uptime_s - view.checked_s >= CHECK_S:
            yield DropStale(key, tuple(stale))  # first: what is next may fail each time
        if standing is None or not standing.alive:
            yield Remount(key)
        elif not standing.supervised:
            yield StartSupervisor(key)
    elif standing is not None:
        if _is_useless(standing, volume) or _since(view, times) >= UNUSED_S:
            yield TakeDown(key)
    elif follow_due(volume, times.now_s):
        yield Follow(key)
    if pin_s := pin_due_s(volume, times.now_s):
        yield PinVolume(key, pin_s)


def _is_useless(standing: MountStatus, volume: Volume) -> bool:
    """Whether the next container could not use the mount as it is."""
    return not (standing.alive and standing.supervised and standing.commit == volume.commit)


def _since(view: VolumeState, times: Times) -> float:
    return 0.0 if view.unused_since_s is None else times.uptime_s - view.unused_since_s

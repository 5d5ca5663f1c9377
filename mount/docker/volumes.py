"""What dockerd asks of volumes: each call is answered in time, whatever the node does.

A Mount is done in this order: mount, write the reference, answer; an Unmount: drop the reference,
unmount when it was the last, answer. So whatever ends in between leaves at worst a mount without
references, which upkeep takes away. Mounts that wait for one volume are done together, for one look
at its mount and one file (volume_table).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InUse,
    LodefsError,
    Unavailable,
)
from lodefs.mount.docker.options import SplitUrl, parse_options
from lodefs.mount.docker.volume import (
    REMOVE_STALE_S,
    Volume,
    about,
    check_mount_id,
    check_name,
    created,
    doubtful,
    forgotten,
    holds_pin,
    key_of,
    referenced,
    released,
)
from lodefs.mount.docker.volume_files import Damaged, Record
from lodefs.mount.docker.volume_table import Change, Slot, VolumeTable, no_such
from lodefs.mount.node.deadline_calls import Calls, LateError
from lodefs.mount.node.interface import MountStatus, NodeMounts, Source, Traffic

ANSWER_TIMEOUT_S = 0.9
WORK_TIMEOUT_S = 30.0  # for what goes on after its caller was answered
FIRST_TRY, WHY_TRY = 0.75, 0.15  # of the caller's time
TRAFFIC_TIMEOUT_S = 0.1
NODE_SHARE = 0.2  # of the answer time: longer than a node takes that is well
_NODE_SLOW = "the node's proxy or its store is slow, or out of reach"
_PLUGIN_SLOW = "the plugin, or the disk of its state directory, is busy"
_log = logging.getLogger("lodefs.docker")

T = TypeVar("T")


class Shown(msgspec.Struct, frozen=True):
    """A volume as it is now. ``place`` "": it is not mounted. ``traffic`` None: not known."""

    record: Record
    place: str
    standing: MountStatus | None
    traffic: Traffic | None


class Volumes:
    """The volumes of this node. Every method may be called by any thread, and returns, or raises
    one of errors.py's classes, within ``answer_timeout_s``."""

    def __init__(
        self,
        table: VolumeTable,
        node: NodeMounts,
        calls: Calls,
        split_url: SplitUrl,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_change`` is told when upkeep may have something to do."""
        self._table = table
        self._records = table.records
        self._clock = table.clock
        self._node = node
        self._calls = calls
        self._split_url = split_url
        self._answer_timeout_s = answer_timeout_s
        self._on_change = on_change
        self._asking: dict[object, tuple[str, float]] = {}  # the node: which key, since when
        self.boot = table.clock.boot

    def create(self, name: str, given: Mapping[str, str]) -> None:
        """Make a volume; fine where there is the same one.

        InvalidInput (name, options, path), NotFound (repository, revision), Denied,
        AlreadyExists (with other options), Unavailable.
        """
        key = key_of(check_name(name))
        self._answer(
            ("create", name, frozenset(given.items())),
            f"creating volume {name!r}",
            partial(self._create, key, name, dict(given)),
            blame=key,
        )
        self._on_change()

    def remove(self, name: str) -> None:
        """Remove a volume that nobody uses. NotFound, InUse, Unavailable."""
        key = key_of(check_name(name))
        self._answer(
            ("remove", name), f"removing volume {name!r}", partial(self._remove, key, name)
        )

    def mount(self, name: str, mount_id: str) -> str:
        """Have a volume mounted on the directory that is returned, until ``unmount`` with the same
        ID was called as often. NotFound, Corrupt, InvalidInput, Denied, Unavailable."""
        key = key_of(check_name(name))
        check_mount_id(mount_id)
        call = ("mount", name, object())  # each counts: only the volume's lock has them wait
        return self._answer(
            call,
            f"mounting volume {name!r}",
            partial(self._mount, key, name, mount_id, lambda: self._calls.is_wanted(call)),
            lambda _place: self._take_back(key, name, mount_id),
            blame=key,
        )

    def unheard(self, name: str, mount_id: str) -> None:
        """The caller of ``mount`` went before it had the answer: it counts as not called. Done in
        the background."""
        work = partial(self._take_back, key_of(name), name, mount_id)
        try:
            self._calls.begin(("take back", name, object()), work)
        except Unavailable as error:
            _log.warning(
                "a mount of %s stays noted for a while: %s", name, error, extra=about(name)
            )

    def unmount(self, name: str, mount_id: str) -> None:
        """Take a mount back; fine for an ID that has none. NotFound, Corrupt, Unavailable."""
        key = key_of(check_name(name))
        check_mount_id(mount_id)
        self._answer(
            ("unmount", name, object()),
            f"unmounting volume {name!r}",
            partial(self._unmount, key, name, mount_id),
        )

    def path(self, name: str) -> str:
        """Where a volume is mounted; "" where it is not. NotFound."""
        return self._place(self._table.find(check_name(name)))

    def get(self, name: str) -> Shown:
        """A volume with all that is known of it. NotFound."""
        slot = self._table.find(check_name(name))
        if slot.standing is not None and slot.standing.alive:
            self._ask_traffic(slot)
        record = slot.record
        if record is None:
            raise no_such(name)
        return self._shown(slot, record)

    def list(self) -> list[Shown]:
        """All volumes whose names are known."""
        found = [
            self._shown(slot, record)
            for slot in self._table.slots()
            if (record := slot.record) is not None and record.name
        ]
        return sorted(found, key=lambda shown: shown.record.name)

    def _answer(
        self,
        key: tuple[object, ...],
        what: str,
        work: Callable[[], T],
        late: Callable[[T], None] = lambda _result: None,
        blame: str = "",
    ) -> T:
        """``blame``: the key of the volume that may have waited for the node; "": none."""
        try:
            return self._calls.run(key, work, self._answer_timeout_s, late)
        except LateError as error:
            why = f" ({self._why_late(blame)})" if blame else ""
            raise DeadlineExceeded(f"{what}{why}: {error}") from error
        except Unavailable as error:
            raise type(error)(f"{what}: {error}") from error

    def _why_late(self, key: str) -> str:
        """What a call that is late waits for: the node, which it or another one asks, or us."""
        before_s = time.monotonic() - NODE_SHARE * self._answer_timeout_s
        asking = list(self._asking.values())
        is_node = any(asked == key and since_s <= before_s for asked, since_s in asking)
        return _NODE_SLOW if is_node else _PLUGIN_SLOW

    @contextmanager
    def _asking_node(self, key: str) -> Iterator[None]:
        """Notes since when a volume waits for the node, and says of errors that it was the node."""
        asking = object()
        self._asking[asking] = key, time.monotonic()
        try:
            yield
        except Unavailable as error:
            raise type(error)(f"{_NODE_SLOW}: {error}") from error
        finally:
            del self._asking[asking]

    def _create(self, key: str, name: str, given: Mapping[str, str]) -> None:
        with self._asking_node(key):
            options = parse_options(given, self._split_url)  # a URL may need a look at its store
        with self._table.changing(key) as slot:
            if slot.record is not None:
                if slot.volume(name).options != options:
                    raise AlreadyExists(
                        f"there is a volume {name!r} with other options: remove it first, or "
                        "choose another name"
                    )
                return
            source, rev = options.source, options.rev
            found = self._in_time(slot, partial(self._node.resolve, source, rev), source, rev)
            self._table.write(slot, created(name, options, found, self._clock.now_s()))
        told = (name, options.source.repo, found.commit)
        _log.info("created volume %s: %s@%s", *told, extra=about(name))

    def _mount(self, key: str, name: str, mount_id: str, is_wanted: Callable[[], bool]) -> str:
        clock = self._clock

        def with_one_more(volume: Volume) -> Volume:
            return referenced(volume, mount_id, clock.boot, clock.uptime_s())

        change = Change(name, with_one_more, is_wanted=is_wanted, needs_mount=True)
        with self._table.changing(key, change) as slot:
            if not change.is_written and is_wanted():
                volume = slot.volume(name)
                bring_up = partial(self.bring_up, slot, volume)
                self._in_time(slot, bring_up, volume.options.source, volume.commit)
                self._table.write_waiting(slot, volume, is_mounted=True)
        if not change.is_written:
            raise DeadlineExceeded("it does not count")
        return self._records.place(key)

    def _in_time(self, slot: Slot, work: Callable[[float], T], source: Source, rev: str) -> T:
        """First within the caller's time, so that it hears what is wrong; what is only slow is
        then done with more time, in the background."""
        with self._asking_node(slot.key):
            try:
                return work(FIRST_TRY * self._answer_timeout_s)
            except DeadlineExceeded:
                with suppress(DeadlineExceeded):  # but not a proxy that is not there
                    self._node.resolve(source, rev, WHY_TRY * self._answer_timeout_s)
                return work(WORK_TIMEOUT_S)

    def bring_up(self, slot: Slot, volume: Volume, timeout_s: float) -> None:
        """Mount a volume where it is not mounted, or where its mount is dead."""
        place = self._records.make_place(slot.key)
        source = volume.options.source
        try:
            self._node.mount(source, volume.commit, place, timeout_s)
        except InUse:
            if not self._is_up(slot, volume, place):
                raise
        slot.standing = MountStatus(
            place, source.repo, volume.commit, source.path, alive=True, supervised=True
        )

    def _is_up(self, slot: Slot, volume: Volume, place: str) -> bool:
        """Whether the living mount on ``place`` is the volume's. One of an older commit, which
        nobody uses, is replaced; so is one that a plugin before this one left half made, which
        may be taken away yet."""
        standing = slot.standing
        if standing is None or not standing.ready or standing.commit != volume.commit:
            there = self._node.standing(WORK_TIMEOUT_S)
            standing = next((one for one in there if one.place == place), None)
        source = volume.options.source
        if standing is not None:  # else it went meanwhile
            is_same = (standing.repo, standing.commit) == (source.repo, volume.commit)
            if is_same and standing.ready:
                return True
            if not is_same and volume.count(self._clock.boot):
                return False
        self._node.unmount(place, WORK_TIMEOUT_S)
        self._node.mount(source, volume.commit, place, WORK_TIMEOUT_S)
        return True

    def _take_back(self, key: str, name: str, mount_id: str) -> None:
        """A Mount was done too late, or unheard: dockerd will not unmount it."""
        change = self._release(name, mount_id)
        with self._table.changing(key, change) as slot:
            if isinstance(slot.record, Volume) and not change.is_written:
                self._table.write_waiting(slot, slot.record)

    def _unmount(self, key: str, name: str, mount_id: str) -> None:
        change = self._release(name, mount_id)
        with self._table.changing(key, change) as slot:
            if change.is_written and slot.record is None:
                return  # removed since
            volume = slot.volume(name)
            if not change.is_written:
                volume = self._table.write_waiting(slot, volume)
            elif slot.standing is None:
                return  # taken down with the others
            if not volume.count(self._clock.boot):
                self.take_down(slot)

    def _release(self, name: str, mount_id: str) -> Change:
        return Change(name, lambda volume: released(volume, mount_id, self._clock.boot))

    def take_down(self, slot: Slot) -> None:
        """Unmount a volume; fine where it is not mounted."""
        self._node.unmount(self._records.place(slot.key), WORK_TIMEOUT_S)
        slot.standing = slot.traffic = None
        slot.unused_since_s = None

    def _remove(self, key: str, name: str) -> None:
        with self._table.changing(key) as slot:
            if slot.record is None:
                raise no_such(name)
            if isinstance(slot.record, Damaged):
                self._check_unused(slot, name)
                self.take_down(slot)
                self._records.set_aside(key)
            else:
                self._check_unreferenced(slot, slot.volume(name))
                self.take_down(slot)
                self._records.remove(key)
            removed, slot.record = slot.record, None
            self._records.remove_place(key)
        if isinstance(removed, Volume):
            self.unpin(removed)
        _log.info("removed volume %s", name, extra=about(name))

    def _check_unreferenced(self, slot: Slot, volume: Volume) -> None:
        """InUse where containers have the volume. Mounts that dockerd forgot do not count."""
        boot = self._clock.boot
        stale = doubtful(volume, boot, self._clock.uptime_s(), REMOVE_STALE_S)
        if stale and self._node.users(self._records.place(slot.key)) == 0:
            volume = forgotten(volume, stale)
            self._table.write(slot, volume)
        if count := volume.count(boot):
            raise InUse(f"volume {volume.name!r} is in use: {_mounts(count)} of it are not undone")

    def _check_unused(self, slot: Slot, name: str) -> None:
        """InUse where a damaged volume is a living mount that somebody holds, or may hold."""
        place = self._records.place(slot.key)
        alive = any(one.place == place and one.alive for one in self._node.standing(WORK_TIMEOUT_S))
        if alive and self._node.users(place) != 0:
            raise InUse(f"volume {name!r} is damaged and in use: stop its containers first")

    def unpin(self, volume: Volume) -> None:
        """Let a commit's data go in the background; where that would take another volume's pin
        away, it expires."""
        source, commit = volume.options.source, volume.commit
        if not volume.pinned_until_s or any(
            holds_pin(other, volume) for other in self._table.volumes()
        ):
            return

        def log(error: LodefsError) -> None:
            told = (source.repo, commit, error)
            _log.warning("%s@%s stays pinned for a while: %s", *told, extra=about(volume.name))

        def work() -> None:
            try:
                self._node.unpin(source, commit, WORK_TIMEOUT_S)
            except LodefsError as error:
                log(error)

        try:
            self._calls.begin(("unpin", source, commit), work)
        except Unavailable as error:
            log(error)

    def _ask_traffic(self, slot: Slot) -> None:
        """What was read by now; what is known already, where that takes long."""

        def ask() -> None:
            slot.traffic = self._node.traffic(self._records.place(slot.key), WORK_TIMEOUT_S)

        try:
            self._calls.run(("traffic", slot.key), ask, TRAFFIC_TIMEOUT_S)
        except LodefsError as error:
            _log.debug("traffic of %s: %s", slot.key, error)

    def _place(self, slot: Slot) -> str:
        return self._records.place(slot.key) if slot.standing is not None else ""

    def _shown(self, slot: Slot, record: Record) -> Shown:
        return Shown(record, self._place(slot), slot.standing, slot.traffic)


def _mounts(count: int) -> str:
    return f"{count} mount{'s' if count > 1 else ''}"

"""Keeps mounts as their volumes want them: after a start as well as every few seconds.

A look at all mounts, then ``plan.decide``, then each action in a thread of its own, which does
nothing where dockerd was faster: it changes a volume only if nobody did since the look.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.docker.reconcile_plan import (
    Action,
    Clear,
    DropStale,
    Follow,
    PinVolume,
    Remount,
    StartSupervisor,
    TakeDown,
    Times,
    VolumeState,
    decide,
)
from lodefs.mount.docker.volume import (
    Volume,
    about,
    forgotten,
    is_same_data,
    look_failed,
    looked,
    pin_failed,
    pinned,
)
from lodefs.mount.docker.volume_files import Damaged
from lodefs.mount.docker.volume_table import Slot, VolumeTable
from lodefs.mount.docker.volumes import WORK_TIMEOUT_S, Volumes
from lodefs.mount.node.deadline_calls import Calls
from lodefs.mount.node.interface import MountStatus, NodeMounts

INTERVAL_S = 5.0
LOOK_TIMEOUT_S = 3.0
WELL_S = 15.0  # without a round for longer, something hangs
_log = logging.getLogger("lodefs.docker")


class Upkeep:
    """The upkeep of one table. ``start`` it after what must not have threads."""

    def __init__(
        self,
        table: VolumeTable,
        node: NodeMounts,
        volumes: Volumes,
        calls: Calls,
        woken: threading.Event,
    ) -> None:
        """``woken`` is set when there may be something to do; ``looked`` after the first look."""
        self.looked = threading.Event()
        self._table = table
        self._records = table.records
        self._clock = table.clock
        self._node = node
        self._volumes = volumes
        self._calls = calls
        self._said: dict[object, str] = {}  # what was logged last, so that it is once
        self._woken = woken
        self._ended = False
        self._begun_s = self._clock.uptime_s()
        self._thread = threading.Thread(target=self._run, name="lodefs-upkeep", daemon=True)

    def start(self) -> None:
        """Begin with a round at once."""
        self._thread.start()

    def is_well(self) -> bool:
        """Whether rounds still happen."""
        return self._clock.uptime_s() - self._begun_s < WELL_S

    def stop(self, timeout_s: float) -> None:
        """No more rounds; actions under way may go on."""
        self._ended = True
        self._woken.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ended:
            self._begun_s = self._clock.uptime_s()
            try:
                self.round()
            except LodefsError as error:
                self._log("round", f"upkeep: {error}")
            except Exception:  # noqa: BLE001 - a mistake of ours must not end all upkeep
                _log.exception("upkeep")
            self._woken.wait(INTERVAL_S)
            self._woken.clear()

    def round(self) -> None:
        """Look once, and begin what is to be done. Unavailable where nothing can be seen."""
        slots = self._table.slots()
        turns = {slot.key: slot.turn for slot in slots}
        statuses = self._look()
        for slot in slots:
            self._table.see(slot, turns[slot.key], statuses.get(slot.key))
        self.looked.set()
        views = [
            self._view(slot, slot.record, statuses.get(slot.key))
            for slot in slots
            if isinstance(slot.record, Volume)
        ]
        damaged = frozenset(slot.key for slot in slots if not isinstance(slot.record, Volume))
        clock = self._clock
        times = Times(clock.boot, clock.uptime_s(), clock.now_s())
        for action in decide(views, statuses, self._records.places(), damaged, times):
            turn = turns.get(action.key, 0)
            self._calls.begin((type(action), action.key), partial(self._carry_out, action, turn))
        self._said.pop("round", None)

    def _look(self) -> dict[str, MountStatus]:
        """All mounts on our mount points, by key."""
        begun_s, found = time.monotonic(), {}
        all_mounts = self._node.standing(LOOK_TIMEOUT_S)
        _log.debug("saw %d mounts in %.3f s", len(all_mounts), time.monotonic() - begun_s)
        for standing in all_mounts:
            key = self._records.key_at(standing.place)
            if key is not None:
                found[key] = standing
        return found

    def _view(self, slot: Slot, volume: Volume, standing: MountStatus | None) -> VolumeState:
        if standing is None or volume.count(self._clock.boot):
            slot.unused_since_s = None
        elif slot.unused_since_s is None:
            slot.unused_since_s = self._clock.uptime_s()
        return VolumeState(volume, slot.unused_since_s, slot.checked_s)

    def _carry_out(self, action: Action, turn: int) -> None:
        logged = (type(action), action.key)
        try:
            self._act(action, turn)
            self._said.pop(logged, None)
        except LodefsError as error:
            what = f"{type(action).__name__} of {action.key}"
            self._log(logged, f"{what}: {error}", self._name(action.key))
        except Exception:  # noqa: BLE001 - a mistake of ours
            what, name = type(action).__name__, self._name(action.key)
            _log.exception("%s of %s", what, action.key, extra=about(name))

    def _act(self, action: Action, turn: int) -> None:
        match action:
            case Follow():
                self._follow(action.key, turn)
            case PinVolume():
                self._pin(action.key, action.pin_s)
            case Clear():
                self._clear(action.key)
            case _:
                with self._table.changing_if(action.key, turn) as slot:
                    if slot is not None and isinstance(slot.record, Volume):
                        self._mend(action, slot, slot.record)

    def _mend(
        self, action: StartSupervisor | Remount | TakeDown | DropStale, slot: Slot, volume: Volume
    ) -> None:
        place, name, extra = self._records.place(slot.key), volume.name, about(volume.name)
        match action:
            case StartSupervisor():
                self._node.revive(place, WORK_TIMEOUT_S)
                _log.warning("volume %s: its mount has a supervisor again", name, extra=extra)
            case Remount():
                self._volumes.bring_up(slot, volume, WORK_TIMEOUT_S)
                _log.warning("volume %s is mounted again: its mount was dead", name, extra=extra)
            case TakeDown():
                if not self._node.users(place):
                    self._volumes.take_down(slot)
                    _log.info("unmounted volume %s: nobody has it", name, extra=extra)
            case DropStale():
                slot.checked_s = self._clock.uptime_s()
                self._woken.set()  # the mount may have to be mended
                if self._node.users(place) == 0:
                    self._table.write(slot, forgotten(volume, list(action.mount_ids)))
                    _log.warning(
                        "volume %s: dropped %d references that no container holds",
                        name,
                        len(action.mount_ids),
                        extra=extra,
                    )

    def _follow(self, key: str, turn: int) -> None:
        """Resolved without the lock: a container that starts meanwhile does not wait for it."""
        volume = self._volume(key)
        if volume is None:
            return
        failure: LodefsError | None = None
        try:
            found = self._node.resolve(volume.options.source, volume.options.rev, WORK_TIMEOUT_S)
            after = looked(volume, found, self._clock.now_s())
        except LodefsError as error:
            failure = error
            after = look_failed(volume, str(error), self._clock.now_s())
        with self._table.changing_if(key, turn) as slot:
            if slot is None:
                return
            self._table.write(slot, after)
        if failure is not None:
            raise failure
        if after.commit != volume.commit:
            extra = about(volume.name)
            _log.info("volume %s moved to %s", volume.name, after.commit, extra=extra)
            self._volumes.unpin(volume)
            self._woken.set()

    def _pin(self, key: str, pin_s: int) -> None:
        volume = self._volume(key)
        if volume is None:
            return
        failure: LodefsError | None = None
        try:
            self._node.pin(volume.options.source, volume.commit, pin_s, WORK_TIMEOUT_S)
        except LodefsError as error:
            failure = error
        now_s = self._clock.now_s()
        with self._table.changing(key) as slot:
            there = slot.record
            if isinstance(there, Volume) and is_same_data(there, volume):
                after = pinned(there, pin_s, now_s)
                if failure is not None:
                    after = pin_failed(there, str(failure), now_s)
                self._table.write(slot, after)
                volume = None
        if failure is not None:
            raise failure
        if volume is not None:  # removed, or moved to another commit, meanwhile
            self._volumes.unpin(pinned(volume, pin_s, now_s))

    def _clear(self, key: str) -> None:
        """Of a mount that is alive, only when nobody can hold it."""
        with self._table.changing(key) as slot:
            if slot.record is not None:
                return
            place = self._records.place(key)
            alive = key in self._look() and self._node.users(place) != 0
            if alive:
                self._log((Clear, key), f"{place} is mounted, in use, and no volume's", key)
                return
            self._node.unmount(place, WORK_TIMEOUT_S)
            self._records.remove_place(key)

    def _volume(self, key: str) -> Volume | None:
        record = next((slot.record for slot in self._table.slots() if slot.key == key), None)
        return None if isinstance(record, Damaged) else record

    def _name(self, key: str) -> str:
        """What a volume is called in the log; its key where it has no name."""
        volume = self._volume(key)
        return volume.name if volume is not None else key

    def _log(self, what: object, line: str, name: str = "") -> None:
        if self._said.get(what) != line:
            self._said[what] = line
            _log.warning("%s", line, extra=about(name) if name else None)

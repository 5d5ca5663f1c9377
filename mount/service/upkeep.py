"""Keeps shared mounts as their users want them, after a start and every few seconds.

Each round looks at all mounts, calls ``shared_mount.decide``, and runs each action in a thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from lodefs.chunkstore.errors import LodefsError, told
from lodefs.mount.helper.deadline_calls import Calls
from lodefs.mount.helper.interface import MountStatus
from lodefs.mount.service.shared_mount import (
    IDLE_S,
    STALE_S,
    Action,
    DropStale,
    MountAction,
    MountAgain,
    PinData,
    ReviveMount,
    SharedView,
    Sweep,
    UnmountIdle,
    UnpinData,
    UpkeepTimes,
    WriteAgain,
    decide,
    holds_pin,
)
from lodefs.mount.service.shared_mounts import SharedMounts
from lodefs.mount.service.shared_slot import SharedSlot

INTERVAL_S, INTERVAL_S_MIN = 5.0, 0.2
WELL_S = 15.0  # if no round has run for longer, something hangs
LOOK_TIMEOUT_S = 3.0
WORK_TIMEOUT_S = 30.0
_log = logging.getLogger("lodefs.mounter")


class MountUpkeep:
    """The upkeep of one service. ``start`` creates threads. ``woken`` is set when there may be
    work; ``idle_s``: how long a mount stays without users."""

    def __init__(
        self,
        mounts: SharedMounts,
        calls: Calls,
        woken: threading.Event,
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        self._idle_s = idle_s
        self._mounts = mounts
        self._files = mounts.files
        self._node = mounts.node
        self._calls = calls
        self._woken = woken
        self._ended = False
        self._begun_s = time.monotonic()
        self._said: dict[object, str] = {}  # the last line logged, so that it is not repeated
        self._thread = threading.Thread(target=self._run, name="lodefs-upkeep", daemon=True)

    def start(self) -> None:
        """Begins with a round at once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the rounds; actions under way may continue."""
        self._ended = True
        self._woken.set()
        self._thread.join(timeout_s)

    def is_well(self) -> bool:
        """Whether rounds still happen."""
        return time.monotonic() - self._begun_s < WELL_S

    def take_over(self) -> None:
        """Replaces the processes that serve the mounts by those of this program."""
        for key, status in self._look().items():
            if status.alive:
                self._carry_out(ReviveMount(key))

    def round(self) -> None:
        """Looks once, and begins what must be done. Raises: Unavailable if nothing can be seen."""
        slots = self._mounts.slots()
        begun_s = time.monotonic()
        statuses = self._look()
        clock = self._mounts.clock
        uptime_s = clock.uptime_s()
        times = UpkeepTimes(uptime_s, clock.now_s(), self._idle_s)
        for slot in slots:
            status = statuses.get(slot.key)
            if slot.looked_s < begun_s:  # otherwise it was mounted meanwhile
                slot.is_dead = status is None or not status.alive
        views = [self._view(slot, uptime_s) for slot in slots]
        fresh = {
            slot.key for slot in self._mounts.slots()
        }  # mounts that were begun since count as known
        for action in decide(views, statuses, self._files.places(), times):
            if not (isinstance(action, Sweep) and action.key in fresh):
                self._calls.begin((type(action), action.key), partial(self._carry_out, action))

    def _run(self) -> None:
        while not self._ended:
            self._begun_s = time.monotonic()
            try:
                self.round()
            except LodefsError as error:
                self._say("round", f"upkeep: {error}")
            except Exception:  # noqa: BLE001 - a bug must not end all upkeep
                _log.exception("upkeep")
            self._woken.wait(min(INTERVAL_S, max(self._idle_s, INTERVAL_S_MIN)))
            self._woken.clear()

    def _look(self) -> dict[str, MountStatus]:
        keys = {slot.place: slot.key for slot in self._mounts.slots()}

        def key_at(place: str) -> str | None:
            return keys.get(place) or self._files.key_at(place)

        found = self._node.list_mounts(LOOK_TIMEOUT_S, lambda place: key_at(place) is not None)
        return {key: status for status in found if (key := key_at(status.place)) is not None}

    def _view(self, slot: SharedSlot, uptime_s: float) -> SharedView:
        if slot.mount.is_mounted or slot.holders:
            slot.idle_since_s = None
        elif slot.idle_since_s is None:
            slot.idle_since_s = uptime_s
        return SharedView(
            slot.mount, slot.idle_since_s, slot.is_behind, slot.checked_s, slot.pin_failed_s
        )

    def _carry_out(self, action: Action) -> None:
        try:
            self._act(action)
            self._said.pop((type(action), action.key), None)
        except LodefsError as error:
            what = f"{type(action).__name__} of {action.key}"
            self._say((type(action), action.key), f"{what}: {error}")
        except Exception:  # noqa: BLE001 - a bug
            _log.exception("%s of %s", type(action).__name__, action.key)

    def _act(self, action: Action) -> None:
        slot = next((s for s in self._mounts.slots() if s.key == action.key), None)
        if isinstance(action, Sweep):
            if slot is None:
                place = self._files.place(action.key)
                self._node.unmount(place, WORK_TIMEOUT_S)
                self._files.remove(action.key)
                self._files.remove_place(place)
            return
        if slot is None or not slot.lock.acquire(blocking=False):
            return  # another call is at work on it
        try:
            self._mend(action, slot)
        finally:
            slot.lock.release()

    def _mend(self, action: MountAction, slot: SharedSlot) -> None:
        match action:
            case DropStale():
                slot.checked_s = self._mounts.clock.uptime_s()
                self._woken.set()  # the mount may need repair
                if count := self._mounts.drop_stale(slot, STALE_S, None, WORK_TIMEOUT_S):
                    _log.warning("%s: dropped %d users that do not show it", slot.key, count)
            case MountAgain():
                self._mounts.bring_up(slot, time.monotonic() + WORK_TIMEOUT_S)
                _log.warning("%s was mounted again, since its mount was dead", slot.key)
            case ReviveMount():
                self._node.revive(slot.place, WORK_TIMEOUT_S)
                _log.warning("%s has a supervisor again", slot.key)
            case UnmountIdle():
                if self._mounts.take_down(slot, WORK_TIMEOUT_S):
                    _log.info("unmounted %s, which has no users", slot.key)
            case PinData():
                with self._noting_pin(slot):
                    self._pin(slot, action.pin_s)
            case UnpinData():
                with self._noting_pin(slot):
                    self._unpin(slot)
            case WriteAgain():
                self._mounts.records.write(slot, lambda mount: mount)
                _log.info("the file of %s is written again", slot.key)

    def _pin(self, slot: SharedSlot, pin_s: int) -> None:
        source = self._mounts.source_of(slot.mount)
        self._node.pin(source, slot.mount.commit, pin_s, WORK_TIMEOUT_S)
        self._mounts.pinned(slot, self._mounts.clock.now_s() + pin_s)

    def _unpin(self, slot: SharedSlot) -> None:
        """Lets its data go. If that would remove another mount's pin, lets the pin expire."""
        mount, now_s = slot.mount, self._mounts.clock.now_s()
        others = [other.mount for other in self._mounts.slots() if other is not slot]
        if not any(holds_pin(other, mount, now_s) for other in others):
            source = self._mounts.source_of(mount)
            self._node.unpin(source, mount.commit, WORK_TIMEOUT_S)
        self._mounts.pinned(slot, 0.0)

    @contextmanager
    def _noting_pin(self, slot: SharedSlot) -> Iterator[None]:
        """Records why the block fails, for questions about the pin."""
        try:
            yield
        except LodefsError as error:
            slot.pin_problem, slot.pin_failed_s = told(str(error)), self._mounts.clock.uptime_s()
            raise
        slot.pin_problem = ""

    def _say(self, what: object, line: str) -> None:
        if self._said.get(what) != line:
            self._said[what] = line
            _log.warning("%s", line)

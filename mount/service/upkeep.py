"""Keeps shared mounts as their users want them: after a start as well as every few seconds.

A look at all mounts, then ``shared_mount.decide``, then each action in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.node.deadline_calls import Calls
from lodefs.mount.node.interface import MountStatus
from lodefs.mount.service.shared_mount import (
    IDLE_S,
    Action,
    MountAgain,
    PinData,
    ReviveMount,
    SharedView,
    Sweep,
    UnmountIdle,
    UpkeepTimes,
    WriteAgain,
    decide,
)
from lodefs.mount.service.shared_mounts import SharedMounts, SharedSlot

INTERVAL_S, INTERVAL_S_MIN = 5.0, 0.2
LOOK_TIMEOUT_S = 3.0
WORK_TIMEOUT_S = 30.0
_log = logging.getLogger("lodefs.mounter")


class MountUpkeep:
    """The upkeep of one service. ``start`` it after what must not have threads. ``woken`` is set
    when there may be something to do; ``idle_s``: for so long a mount stays without users."""

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
        self._said: dict[object, str] = {}  # what was logged last, so that it is once
        self._thread = threading.Thread(target=self._run, name="lodefs-upkeep", daemon=True)

    def start(self) -> None:
        """Begin with a round at once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """No more rounds; actions under way may go on."""
        self._ended = True
        self._woken.set()
        self._thread.join(timeout_s)

    def take_over(self) -> None:
        """Have all mounts served by processes of this program, in the place of those of another."""
        for key, status in self._look().items():
            if status.alive:
                self._carry_out(ReviveMount(key))

    def round(self) -> None:
        """Look once, and begin what is to be done. Unavailable where nothing can be seen."""
        slots = self._mounts.slots()
        statuses = self._look()
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        times = UpkeepTimes(uptime_s, time.time(), self._idle_s)
        views = [self._view(slot, uptime_s) for slot in slots]
        fresh = {slot.key for slot in self._mounts.slots()}  # what was begun since counts as known
        for action in decide(views, statuses, self._files.places(), times):
            if not (isinstance(action, Sweep) and action.key in fresh):
                self._calls.begin((type(action), action.key), partial(self._carry_out, action))

    def _run(self) -> None:
        while not self._ended:
            try:
                self.round()
            except LodefsError as error:
                self._say("round", f"upkeep: {error}")
            except Exception:  # noqa: BLE001 - a mistake of ours must not end all upkeep
                _log.exception("upkeep")
            self._woken.wait(min(INTERVAL_S, max(self._idle_s, INTERVAL_S_MIN)))
            self._woken.clear()

    def _look(self) -> dict[str, MountStatus]:
        found = {}
        for status in self._node.standing(LOOK_TIMEOUT_S):
            key = self._files.key_at(status.place)
            if key is not None:
                found[key] = status
        return found

    def _view(self, slot: SharedSlot, uptime_s: float) -> SharedView:
        if slot.mount.users or slot.holders:
            slot.idle_since_s = None
        elif slot.idle_since_s is None:
            slot.idle_since_s = uptime_s
        return SharedView(slot.mount, slot.idle_since_s, slot.is_behind)

    def _carry_out(self, action: Action) -> None:
        try:
            self._act(action)
            self._said.pop((type(action), action.key), None)
        except LodefsError as error:
            what = f"{type(action).__name__} of {action.key}"
            self._say((type(action), action.key), f"{what}: {error}")
        except Exception:  # noqa: BLE001 - a mistake of ours
            _log.exception("%s of %s", type(action).__name__, action.key)

    def _act(self, action: Action) -> None:
        slot = next((s for s in self._mounts.slots() if s.key == action.key), None)
        if isinstance(action, Sweep):
            if slot is None:
                self._node.unmount(self._files.place(action.key), WORK_TIMEOUT_S)
                self._files.remove(action.key)
                self._files.remove_place(action.key)
            return
        if slot is None or not slot.lock.acquire(blocking=False):
            return  # somebody is at it
        try:
            self._mend(action, slot)
        finally:
            slot.lock.release()

    def _mend(
        self,
        action: MountAgain | ReviveMount | UnmountIdle | PinData | WriteAgain,
        slot: SharedSlot,
    ) -> None:
        match action:
            case MountAgain():
                self._mounts.bring_up(slot, time.monotonic() + WORK_TIMEOUT_S)
                _log.warning("%s is mounted again: its mount was dead", slot.key)
            case ReviveMount():
                self._node.revive(self._files.place(slot.key), WORK_TIMEOUT_S)
                _log.warning("%s has a supervisor again", slot.key)
            case UnmountIdle():
                if slot.mount.pinned_until_s > time.time() and not slot.mount.pin_stays:
                    self._unpin(slot)
                if self._mounts.take_down(slot, WORK_TIMEOUT_S):
                    _log.info("unmounted %s: nobody uses it", slot.key)
            case PinData():
                source = self._mounts.source_of(slot.mount)
                self._node.pin(source, slot.mount.commit, action.pin_s, WORK_TIMEOUT_S)
                self._mounts.pinned(slot, time.time() + action.pin_s)
            case WriteAgain():
                self._mounts.write_again(slot)
                _log.info("the file of %s is written again", slot.key)

    def _unpin(self, slot: SharedSlot) -> None:
        """Let its data go, unless another mount of the commit has it pinned: then it expires."""
        mount = slot.mount
        others = [
            other.mount
            for other in self._mounts.slots()
            if other is not slot and other.mount.pinned_until_s > time.time()
        ]
        same = [(other.source.repo, other.commit) for other in others]
        if (mount.source.repo, mount.commit) not in same:
            source = self._mounts.source_of(mount)
            self._node.unpin(source, mount.commit, WORK_TIMEOUT_S)

    def _say(self, what: object, line: str) -> None:
        if self._said.get(what) != line:
            self._said[what] = line
            _log.warning("%s", line)

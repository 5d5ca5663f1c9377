"""All volumes in memory: each is changed by one thread at a time, and looked at without a lock.

Changes of references are written in groups: who has a volume's lock writes its own change and
all that wait for the lock by then, in one file, before any of them is answered. So hundreds of
Mounts at once cost a volume a look at its mount and a file or two, and not one each; and what was
answered is on disk, as it is when each is written alone: neither kill -9 nor a power cut can take
an answered reference, or the volume itself, away.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt, InUse, NotFound
from lodefs.mount.docker.volume import Volume, about, key_of
from lodefs.mount.docker.volume_files import Damaged, Record, Records
from lodefs.mount.node.interface import MountStatus, Traffic

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FIRST_PROCESS = Path("/proc/1/stat")
_log = logging.getLogger("lodefs.docker")


class Clock(NamedTuple):
    """Unix time, seconds since the machine started, and which start that was."""

    now_s: Callable[[], float]
    uptime_s: Callable[[], float]
    boot: str


def machine_clock() -> Clock:
    """The machine's own; or, in a container, that of the container: our mounts live as long as its
    first process, so which start it was is told by when that process started (proc_pid_stat(5))."""
    started = _FIRST_PROCESS.read_text().rpartition(") ")[2].split()[19]
    boot = f"{_BOOT_ID.read_text().strip()}-{started}"
    return Clock(time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME), boot)


class Change:
    """A change of the references of the volume ``name``, which waits to be written.

    ``is_wanted``: whether somebody still waits for it; ``needs_mount``: it may be written only
    while the volume is known to be mounted.
    """

    def __init__(
        self,
        name: str,
        apply: Callable[[Volume], Volume],
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        needs_mount: bool = False,
    ) -> None:
        self.name = name
        self.apply = apply
        self.is_wanted = is_wanted
        self.needs_mount = needs_mount
        self.is_written = False


class Slot:
    """A volume's place in the table; only ``Table.changing`` gives one that may be changed.

    ``standing``: its mount as it was seen last. ``turn`` is another one after each change.
    ``unused_since_s``: since when upkeep sees a mount without references, ``checked_s``: when it
    asked last who holds the mount; both since the machine started.
    """

    def __init__(self, key: str, record: Record | None = None) -> None:
        self.key = key
        self.lock = threading.Lock()
        self.holders = 0  # threads that have the lock, or wait for it; guarded by the table's
        self.waiting: list[Change] = []  # in the order in which they came; the table's too
        self.turn = 0
        self.record = record
        self.standing: MountStatus | None = None
        self.traffic: Traffic | None = None
        self.unused_since_s: float | None = None
        self.checked_s = 0.0

    def volume(self, name: str) -> Volume:
        """The volume of that name. NotFound; Corrupt where its file is damaged; InUse."""
        record = self.record
        if record is None:
            raise no_such(name)
        if isinstance(record, Damaged):
            raise Corrupt(
                f"the state of volume {name!r} is damaged: {record.why}. `docker volume rm` moves "
                f"it aside (volumes/{record.key}.damaged); then create the volume again"
            )
        if record.name != name:
            raise InUse(f"the files of {name!r} would be those of volume {record.name!r}")
        return record


def no_such(name: str) -> NotFound:
    """There is no volume of that name."""
    return NotFound(f"there is no volume {name!r}")


class VolumeTable:
    """The volumes of a state directory."""

    def __init__(self, records: Records, clock: Clock) -> None:
        self.records = records
        self.clock = clock
        self._lock = threading.Lock()
        self._turns = itertools.count(1)
        self._slots: dict[str, Slot] = {}
        for record in records.load():
            if isinstance(record, Damaged):
                name = record.name or record.key
                _log.error("volume %s: %s", name, record.why, extra=about(name))
            self._slots[record.key] = Slot(record.key, record)

    def slots(self) -> list[Slot]:
        """All slots, to look at."""
        with self._lock:
            return list(self._slots.values())

    def volumes(self) -> list[Volume]:
        """All that are not damaged."""
        return [slot.record for slot in self.slots() if isinstance(slot.record, Volume)]

    def find(self, name: str) -> Slot:
        """The slot of a volume, to look at; it may be damaged. NotFound."""
        with self._lock:
            slot = self._slots.get(key_of(name))
        if slot is None or slot.record is None:
            raise no_such(name)
        return slot

    @contextmanager
    def changing(self, key: str, change: Change | None = None) -> Iterator[Slot]:
        """The slot of a key, for this thread alone; without a record where there is no volume.

        ``change`` may be written by another thread, with its own, before this one has the slot.
        """
        with self._lock:
            slot = self._slots.setdefault(key, Slot(key))
            slot.holders += 1
            if change is not None:
                slot.waiting.append(change)
        try:
            with slot.lock:
                try:
                    yield slot
                finally:
                    slot.turn = next(self._turns)
        finally:
            self._leave(slot, change)

    @contextmanager
    def changing_if(self, key: str, turn: int) -> Iterator[Slot | None]:
        """The same, where nothing happened since ``turn`` and nobody else is at it; else None."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None or not slot.lock.acquire(blocking=False):
                slot = None
            else:
                slot.holders += 1
        if slot is None:
            yield None
            return
        try:
            if slot.turn != turn:
                yield None
            else:
                try:
                    yield slot
                finally:
                    slot.turn = next(self._turns)
        finally:
            slot.lock.release()
            self._leave(slot)

    def see(self, slot: Slot, turn: int, standing: MountStatus | None) -> None:
        """Note what a mount is like, unless something happened since ``turn``."""
        if slot.lock.acquire(blocking=False):
            try:
                if slot.turn == turn:
                    slot.standing = standing
            finally:
                slot.lock.release()

    def write(self, slot: Slot, volume: Volume) -> None:
        """A volume's new state, on disk and then in memory. Errors of Records.write."""
        if volume != slot.record:
            self.records.write(volume)
            slot.record = volume

    def write_waiting(self, slot: Slot, volume: Volume, *, is_mounted: bool = False) -> Volume:
        """Write all changes that wait for a volume and are wanted, as one. Errors of write; then
        none of them is done, and each thread that waits tries its own."""
        with self._lock:
            waiting = list(slot.waiting)
        changes = [
            change
            for change in waiting
            if not change.is_written
            and change.name == volume.name
            and (is_mounted or not change.needs_mount)
            and change.is_wanted()
        ]
        for change in changes:
            volume = change.apply(volume)
        self.write(slot, volume)
        for change in changes:
            change.is_written = True
        return volume

    def _leave(self, slot: Slot, change: Change | None = None) -> None:
        with self._lock:
            if change is not None:
                slot.waiting.remove(change)
            slot.holders -= 1
            if not slot.holders and slot.record is None:
                self._slots.pop(slot.key, None)

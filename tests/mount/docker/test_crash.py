"""The plugin dies at any step of anything: nothing is lost, and nothing is left."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from lodefs.chunkstore.errors import LodefsError
from lodefs.mount.docker.volume import Volume
from lodefs.mount.docker.volume_files import Records
from lodefs.mount.service.mount_files import MountFiles
from lodefs.mount.service.shared_mount import SharedMount
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import OLD, WAIT_S, Rig, memory_mounts

T = TypeVar("T")
CATS = {"repo": "vision/cats"}
THREADS, TURNS = 32, 12
STEPS = 60
NAMES = ["a", "b", "c", "d"]


class KilledError(BaseException):
    """The process does not exist any more."""


class Fuse:
    """Kills the process at one of its steps; from then on it does nothing."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    @property
    def blown(self) -> bool:
        return self.left < 0

    def step(self) -> None:
        self.left -= 1
        if self.blown:
            raise KilledError

    def around(self, act: Callable[[], T]) -> T:
        self.step()
        result = act()
        self.step()
        return result


class MortalMounts(MemoryMounts):
    """The kernel's mounts, by orders of a process that may die before and after each."""

    fuse = Fuse(10**9)

    def _call(self, method: str, timeout_s: float, act: Callable[[], T]) -> T:
        call = super()._call
        return self.fuse.around(lambda: call(method, timeout_s, act))


class MortalRecords(Records):
    """The disk, likewise."""

    def __init__(self, directory: Path, fuse: Fuse) -> None:
        super().__init__(directory)
        self._fuse = fuse

    def write(self, volume: Volume) -> None:
        write = super().write
        self._fuse.around(lambda: write(volume))

    def remove(self, key: str) -> None:
        remove = super().remove
        self._fuse.around(lambda: remove(key))


class MortalFiles(MountFiles):
    """That of the mount service, likewise."""

    fuse = Fuse(10**9)

    def write(self, mount: SharedMount) -> None:
        write = super().write
        self.fuse.around(lambda: write(mount))

    def remove(self, key: str) -> None:
        remove = super().remove
        self.fuse.around(lambda: remove(key))


def mortal_rig(state: Path, memory: MemoryMounts, fuse: Fuse) -> Rig:
    """A plugin that dies where the fuse says."""
    files = MortalFiles(state / "mounter", state.with_name("run"), state / "mounts")
    files.fuse = fuse
    return Rig(state, memory, records=MortalRecords(state, fuse), files=files)


class Story:
    """A dockerd with two containers, which notes what it was promised."""

    def __init__(self) -> None:
        self.exists = False
        self.held: set[str] = set()

    def tell(self, rig: Rig) -> None:
        """Create, mount twice, unmount twice, remove."""
        rig.volumes.create("a", CATS)
        self.exists = True
        for one in ("one", "two"):
            rig.volumes.mount("a", one)
            self.held.add(one)
        for one in ("one", "two"):
            self.held.discard(one)  # from here on dockerd does not need it
            rig.volumes.unmount("a", one)
        rig.hands.forward(11)
        rig.round(3)
        self.exists = False
        rig.volumes.remove("a")


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_kill_at_any_step(tmp_path: Path, steps: int) -> None:
    """The next plugin has all that dockerd was promised; what dockerd gives back goes, and then
    there are no mounts, files or directories."""
    memory = MortalMounts(memory_mounts().repos)
    memory.fuse = fuse = Fuse(steps)
    story = Story()
    first = mortal_rig(tmp_path, memory, fuse)
    with contextlib.suppress(KilledError):
        story.tell(first)
    assert first.calls.wait_idle(WAIT_S)
    assert first.chores.wait_idle(WAIT_S)
    first.close()
    memory.fuse = Fuse(10**9)

    rig = Rig(tmp_path, memory, first.hands)
    memory.are_all_shown = bool(story.held)
    rig.settle()
    if story.exists:
        assert [shown.record.name for shown in rig.volumes.list()] == ["a"]
    if story.held:
        assert memory.mounts[rig.volumes.path("a")].alive
        assert memory.mounts[rig.volumes.path("a")].commit == OLD
    for one in story.held:
        rig.volumes.unmount("a", one)
    memory.are_all_shown = False
    rig.hands.forward(61)  # of a Mount that was killed before its answer a reference may be left
    rig.settle()
    if rig.volumes.list():
        rig.volumes.remove("a")
    rig.settle()
    assert memory.mounts == {}
    assert rig.files.places() == []
    assert rig.records.load() == []
    rig.close()


def test_the_story_has_fewer_steps_than_are_tried(tmp_path: Path) -> None:
    """The kills of the test above are all that there can be."""
    memory = MortalMounts(memory_mounts().repos)
    memory.fuse = fuse = Fuse(10**9)
    rig = mortal_rig(tmp_path, memory, fuse)
    Story().tell(rig)
    assert 10**9 - fuse.left < STEPS
    rig.close()


class Crowd:
    """Containers that mount and unmount, each in a thread, and what went wrong for them."""

    def __init__(self, rig: Rig, memory: MemoryMounts) -> None:
        self.rig = rig
        self.memory = memory
        self.failures: list[str] = []
        self.ended = threading.Event()

    def live(self, number: int) -> None:
        dice = random.Random(number)
        for turn in range(TURNS):
            mount_id = f"{number}-{turn}" if dice.random() < 0.8 else f"shared-{number % 3}"
            try:
                self.use(dice.choice(NAMES), mount_id)
            except LodefsError as error:
                self.failures.append(repr(error))

    def use(self, name: str, mount_id: str) -> None:
        place = self.rig.volumes.mount(name, mount_id)
        made = self.memory.mounts.get(place)
        if made is None or not made.alive or made.commit != OLD:
            self.failures.append(f"{name} is not mounted for {mount_id}")
        if self.rig.volumes.get(name).held.place != place:
            self.failures.append(f"{name} is not said to be mounted")
        if self.memory.mounts.get(place) is not made:
            self.failures.append(f"{name} was mounted anew under {mount_id}")
        self.rig.volumes.unmount(name, mount_id)

    def look(self) -> None:
        while not self.ended.is_set():
            self.rig.round()
            self.rig.hands.forward(3)


def test_many_threads(tmp_path: Path) -> None:
    """While 32 threads mount and unmount four volumes, and upkeep looks all the time, nobody's
    mount goes before its Unmount; at the end there are none."""
    memory = memory_mounts()
    memory.are_all_shown = True  # time flies here, and references would soon be stale
    rig = Rig(tmp_path / "state", memory)
    for name in NAMES:
        rig.volumes.create(name, CATS)
    crowd = Crowd(rig, memory)
    upkeep = threading.Thread(target=crowd.look, daemon=True)
    upkeep.start()
    threads = [
        threading.Thread(target=crowd.live, args=(number,), daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    crowd.ended.set()
    upkeep.join(WAIT_S)
    assert not crowd.failures
    rig.settle()
    assert memory.mounts == {}
    for name in NAMES:
        rig.volumes.remove(name)
    assert rig.records.load() == []
    rig.close()

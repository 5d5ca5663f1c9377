"""Upkeep: what it adopts, revives, takes away, follows and pins, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.docker.status import status_of
from lodefs.mount.docker.volume import PIN_S, Volume
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import NEW, OLD, Rig

CATS = {"repo": "vision/cats"}


def again(rig: Rig, tmp_path: Path) -> Rig:
    """The plugin's process ends and another one starts."""
    rig.close()
    return Rig(tmp_path / "state", rig.node, rig.hands)


def volume(rig: Rig) -> Volume:
    record = rig.volumes.get("a").record
    assert isinstance(record, Volume)
    return record


def status(rig: Rig) -> dict[str, object]:
    return status_of(rig.volumes.get("a"), rig.hands.boot)


def test_a_restart_adopts(rig: Rig, memory: MemoryMounts, tmp_path: Path) -> None:
    """Another plugin on the same state knows mounts and references; readers notice nothing."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.mounts[place].users = 1
    made = memory.mounts[place]
    other = again(rig, tmp_path)
    other.settle()
    assert memory.mounts == {place: made}
    assert other.volumes.path("a") == place
    assert status(other)["state"] == "mounted"
    other.volumes.mount("a", "two")
    other.volumes.unmount("a", "one")
    assert memory.mounts == {place: made}
    other.volumes.unmount("a", "two")
    assert not memory.mounts
    other.close()


def test_a_mount_without_a_supervisor_is_revived(rig: Rig, memory: MemoryMounts) -> None:
    """Containers that have it keep the same mount."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    made = memory.mounts[place]
    memory.kill(place, wholly=False)
    rig.round()
    assert memory.mounts == {place: made}
    assert made.supervised


def test_a_dead_mount_with_references_is_mounted_again(rig: Rig, memory: MemoryMounts) -> None:
    """The volume is there again, and its references are as before."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.kill(place)
    memory.fail("mount", Unavailable("the proxy is not there"))
    rig.round()
    assert status(rig)["state"] == "dead"
    rig.round()
    assert memory.mounts[place].alive
    assert volume(rig).count(rig.hands.boot) == 1


def test_an_unused_mount_goes_after_a_while(rig: Rig, memory: MemoryMounts, tmp_path: Path) -> None:
    """One that was killed between mounting and writing the reference is left for a retry first."""
    rig.volumes.create("a", CATS)
    memory.fail_after("mount", Unavailable("killed"))
    with pytest.raises(Unavailable):
        rig.volumes.mount("a", "one")
    other = again(rig, tmp_path)
    other.round()
    assert memory.mounts
    other.hands.forward(11)
    other.round()
    assert not memory.mounts
    assert other.volumes.path("a") == ""
    other.close()


def test_an_unused_mount_that_somebody_holds_stays(rig: Rig, memory: MemoryMounts) -> None:
    """A mount that another namespace holds is not unmounted behind its back."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.mounts[place].users = 2
    memory.fail("unmount", Unavailable("busy"))
    with pytest.raises(Unavailable):
        rig.volumes.unmount("a", "one")
    rig.settle()
    assert place in memory.mounts
    memory.mounts[place].users = 0
    rig.settle()
    assert not memory.mounts


def test_references_of_an_earlier_boot_are_void(
    rig: Rig, memory: MemoryMounts, tmp_path: Path
) -> None:
    """After the machine has started again nothing is mounted, and nothing in use."""
    rig.volumes.create("a", CATS)
    rig.volumes.mount("a", "one")
    memory.mounts.clear()
    rig.hands.reboot()
    other = again(rig, tmp_path)
    other.settle()
    assert not memory.mounts
    assert status(other)["references"] == 0
    other.volumes.mount("a", "two")
    assert status(other)["references"] == 1
    other.volumes.unmount("a", "two")
    other.volumes.remove("a")
    other.close()


def test_stale_references_are_dropped(
    rig: Rig, memory: MemoryMounts, caplog: pytest.LogCaptureFixture
) -> None:
    """Only old ones, only where nobody holds the mount, and not where that cannot be seen."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "lost")
    for users, left in ((None, 1), (1, 1), (0, 0)):
        memory.mounts[place].users = users
        rig.hands.forward(61)
        rig.round()
        assert volume(rig).count(rig.hands.boot) == left
    assert "dropped 1 references" in caplog.text
    rig.settle()
    assert not memory.mounts


def test_stale_references_of_a_mount_that_fails(rig: Rig, memory: MemoryMounts) -> None:
    """They are dropped also where the mount can be neither revived nor made again; what a
    container holds is mended in the same minute."""
    for name in ("a", "b", "held"):
        rig.volumes.create(name, CATS)
        rig.volumes.mount(name, "one")
    memory.kill(rig.place("a"))
    memory.kill(rig.place("b"), wholly=False)
    memory.kill(rig.place("held"), wholly=False)
    memory.mounts[rig.place("held")].users = 1
    rig.hands.forward(61)
    rig.round()
    assert rig.upkeep._woken.is_set()
    rig.round(2)
    assert set(memory.mounts) == {rig.place("held")}
    assert memory.mounts[rig.place("held")].supervised


def test_a_young_reference_is_not_stale(rig: Rig, memory: MemoryMounts) -> None:
    """A container that has not started yet holds no mount, and keeps its reference."""
    rig.volumes.create("a", CATS)
    rig.volumes.mount("a", "starting")
    rig.hands.forward(59)
    rig.round()
    assert volume(rig).count(rig.hands.boot) == 1


def test_asking_who_holds_a_mount_is_rare(rig: Rig, memory: MemoryMounts) -> None:
    """A container that runs for long is not looked for every few seconds."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.mounts[place].users = 1
    rig.hands.forward(61)
    for _ in range(10):
        rig.round()
        rig.hands.forward(5)
    assert memory.calls["users"] == 1


def test_mount_points_without_a_volume_are_cleared(
    rig: Rig, memory: MemoryMounts, tmp_path: Path
) -> None:
    """Dead and unused mounts go; one that is alive and held stays, and so do other mounts."""
    rig.volumes.create("a", CATS)
    source = volume(rig).options.source
    empty, dead, unused, held = (rig.records.make_place(k) for k in ("e", "d", "u", "h"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for place in (dead, unused, held, str(elsewhere)):
        memory.mount(source, OLD, place, 1)
    memory.kill(dead)
    memory.mounts[held].users = 1
    rig.round()
    assert set(memory.mounts) == {held, str(elsewhere)}
    assert rig.records.places() == ["h"]
    assert not Path(empty).exists()


def test_a_volume_follows_its_branch_when_unused(rig: Rig, memory: MemoryMounts) -> None:
    """It moves when its time has come, and never while a container has it."""
    rig.volumes.create("a", CATS | {"follow": "1h"})
    place = rig.volumes.mount("a", "one")
    memory.repos["vision/cats"].revisions["main"] = NEW
    memory.mounts[place].users = 1
    rig.hands.forward(7200)
    rig.settle()
    assert volume(rig).commit == OLD
    assert memory.mounts[place].commit == OLD
    rig.volumes.unmount("a", "one")
    rig.round()
    assert volume(rig).commit == NEW
    assert memory.mounts[rig.volumes.mount("a", "two")].commit == NEW


def test_a_volume_looks_at_its_branch_as_often_as_told(rig: Rig, memory: MemoryMounts) -> None:
    """Not before its time, and once then."""
    rig.volumes.create("a", CATS | {"follow": "1h"})
    rig.hands.forward(3599)
    rig.round()
    assert memory.calls["resolve"] == 1
    rig.hands.forward(1)
    rig.round(3)
    assert memory.calls["resolve"] == 2


def test_a_branch_that_cannot_be_looked_at(rig: Rig, memory: MemoryMounts) -> None:
    """The error is shown, it is tried again soon, and the volume works as it is."""
    rig.volumes.create("a", CATS | {"follow": "1h"})
    memory.fail("resolve", Unavailable("the store does not answer"))
    rig.hands.forward(3600)
    rig.round(2)
    assert status(rig)["follow_error"] == "the store does not answer"
    rig.volumes.mount("a", "one")
    rig.volumes.unmount("a", "one")
    rig.hands.forward(60)
    rig.round()
    assert "follow_error" not in status(rig)


def test_following_never_moves_a_volume_under_a_container(rig: Rig, memory: MemoryMounts) -> None:
    """A container that starts while the branch is resolved keeps the commit that it got."""
    rig.volumes.create("a", CATS | {"follow": "1h"})
    memory.repos["vision/cats"].revisions["main"] = NEW
    rig.hands.forward(3600)
    with memory.hold("resolve") as gate:
        rig.upkeep.round()
        assert gate.reached.wait(60)
        place = rig.volumes.mount("a", "one")
    assert rig.chores.wait_idle(60)
    assert volume(rig).commit == OLD
    assert memory.mounts[place].commit == OLD


def test_pins_are_renewed(rig: Rig, memory: MemoryMounts) -> None:
    """A pin lasts as long as its volume, and goes with it."""
    rig.volumes.create("a", CATS | {"cache_pin": "true"})
    rig.round(3)
    assert memory.calls["pin"] == 1
    assert memory.pins == {("vision/cats", OLD, b""): PIN_S}
    rig.hands.forward(PIN_S * 0.6)
    rig.round(3)
    assert memory.calls["pin"] == 2
    rig.volumes.remove("a")
    assert rig.calls.wait_idle(60)
    assert memory.pins == {}


def test_a_pin_for_a_time_is_made_once(rig: Rig, memory: MemoryMounts) -> None:
    """It is not renewed."""
    rig.volumes.create("a", CATS | {"cache_pin": "1h"})
    rig.round(2)
    assert memory.pins == {("vision/cats", OLD, b""): 3600}
    rig.hands.forward(10_000)
    rig.round(2)
    assert memory.calls["pin"] == 1


def test_pins_move_with_the_branch(rig: Rig, memory: MemoryMounts) -> None:
    """The new commit is pinned and the old one let go, unless another volume pins it."""
    rig.volumes.create("a", CATS | {"cache_pin": "true", "follow": "1h"})
    rig.volumes.create("b", CATS | {"cache_pin": "true"})
    rig.round()
    memory.repos["vision/cats"].revisions["main"] = NEW
    rig.hands.forward(3600)
    rig.round(3)
    assert set(memory.pins) == {("vision/cats", OLD, b""), ("vision/cats", NEW, b"")}
    rig.volumes.remove("b")
    assert rig.calls.wait_idle(60)
    assert set(memory.pins) == {("vision/cats", NEW, b"")}


def test_pins_of_others_stay(rig: Rig, memory: MemoryMounts) -> None:
    """A volume that is removed takes no pin away that another one has, be it of other owners, of a
    directory below, or of the store under its full name; what nobody else has goes."""
    pinned = CATS | {"cache_pin": "true"}
    rig.volumes.create("a", pinned)
    rig.volumes.create("owned", pinned | {"uid": "1000", "store": "s3://same"})
    rig.volumes.create("train", pinned | {"path": "train"})
    rig.round()
    root, train = ("vision/cats", OLD, b""), ("vision/cats", OLD, b"train")
    for name, left in (("a", {root, train}), ("train", {root}), ("owned", set())):
        rig.volumes.remove(name)
        assert rig.calls.wait_idle(60)
        assert set(memory.pins) == left


def test_a_pin_of_a_part_stays(rig: Rig, memory: MemoryMounts) -> None:
    """Letting a directory go would take pins below it along: it expires instead."""
    rig.volumes.create("a", CATS | {"cache_pin": "true"})
    rig.volumes.create("train", CATS | {"cache_pin": "true", "path": "train"})
    rig.round()
    rig.volumes.remove("a")
    assert rig.calls.wait_idle(60)
    assert ("vision/cats", OLD, b"train") in memory.pins


def test_a_pin_that_fails_is_tried_again(rig: Rig, memory: MemoryMounts) -> None:
    """The error is shown until it is mended, and the volume works."""
    memory.fail("pin", Unavailable("no space"))
    rig.volumes.create("a", CATS | {"cache_pin": "true"})
    rig.round(3)
    assert memory.calls["pin"] == 1
    assert status(rig)["pin_error"] == "no space"
    rig.hands.forward(61)
    rig.round()
    assert "pin_error" not in status(rig)
    assert memory.pins


def test_a_round_that_sees_nothing_does_nothing(rig: Rig, memory: MemoryMounts) -> None:
    """Where the mounts cannot be listed, none is taken for gone."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.fail("standing", Unavailable("stuck"))
    with pytest.raises(Unavailable):
        rig.round()
    assert rig.volumes.path("a") == place
    assert memory.calls["mount"] == 1
    assert rig.upkeep.is_well()


def test_one_stuck_volume_does_not_hold_up_others(rig: Rig, memory: MemoryMounts) -> None:
    """Rounds go on while an action hangs."""
    for name in ("a", "b"):
        rig.volumes.create(name, CATS)
        rig.volumes.mount(name, "one")
    memory.kill(rig.place("a"), wholly=False)
    with memory.hold("revive") as gate:
        rig.upkeep.round()
        assert gate.reached.wait(60)
        memory.kill(rig.place("b"))
        rig.upkeep.round()
        for _ in range(10_000):
            if memory.mounts[rig.place("b")].alive:
                break
            gate.open.wait(0.001)
        assert memory.mounts[rig.place("b")].alive
    assert rig.chores.wait_idle(60)


def test_the_thread_works(rig: Rig, memory: MemoryMounts) -> None:
    """Upkeep by itself: a round at the start, and an end when it is told."""
    rig.volumes.create("a", CATS)
    rig.volumes.mount("a", "one")
    memory.kill(rig.place("a"))
    rig.upkeep.start()
    assert rig.upkeep.looked.wait(60)
    rig.upkeep.stop(60)
    assert rig.chores.wait_idle(60)
    assert memory.mounts[rig.place("a")].alive

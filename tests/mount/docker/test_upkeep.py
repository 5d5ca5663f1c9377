"""What volumes want while dockerd asks nothing: branches that move on, data that is kept."""

from __future__ import annotations

from pathlib import Path

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.docker.status import status_of
from lodefs.mount.docker.volume import Volume
from lodefs.mount.service.shared_mount import PIN_S
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
    return status_of(rig.volumes.get("a"))


def test_a_restart_knows_all(rig: Rig, memory: MemoryMounts, tmp_path: Path) -> None:
    """Another plugin on the same state knows mounts and references; readers notice nothing."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.shown[place] = frozenset({0})
    made = memory.mounts[place]
    other = again(rig, tmp_path)
    other.settle()
    assert memory.mounts == {place: made}
    assert other.volumes.path("a") == place
    assert status(other)["state"] == "mounted"
    other.volumes.mount("a", "two")
    for name in ("one", "two"):
        assert memory.mounts == {place: made}
        other.volumes.unmount("a", name)
    other.settle()
    assert not memory.mounts
    other.close()


def test_a_dead_mount_is_shown_as_such(rig: Rig, memory: MemoryMounts) -> None:
    """Until it is mounted again, which keeps its references."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.kill(place)
    memory.fail("mount", Unavailable("the proxy is not there"))
    rig.round()
    assert status(rig)["state"] == "dead"
    rig.round()
    assert status(rig)["state"] == "mounted"
    assert memory.mounts[place].alive
    assert rig.references() == 1


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


def test_a_volume_follows_its_branch_when_unused(rig: Rig, memory: MemoryMounts) -> None:
    """It moves when its time has come, and never while a container has it."""
    rig.volumes.create("a", CATS | {"follow": "1h"})
    place = rig.volumes.mount("a", "one")
    memory.repos["vision/cats"].revisions["main"] = NEW
    memory.shown[place] = frozenset({0})
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
    rig.volumes.create("same", CATS)
    rig.volumes.mount("same", "one")  # so that no mount waits for the branch
    memory.repos["vision/cats"].revisions["main"] = NEW
    rig.hands.forward(3600)
    with memory.hold("resolve") as gate:
        rig.upkeep.round()
        assert gate.reached.wait(60)
        place = rig.volumes.mount("a", "one")
    assert rig.chores.wait_idle(60)
    assert volume(rig).commit == OLD
    assert memory.mounts[place].commit == OLD


def test_pins_are_renewed(rig: Rig, memory: MemoryMounts, tmp_path: Path) -> None:
    """A pin lasts as long as its volume, over starts of the machine, and goes with it."""
    rig.volumes.create("a", CATS | {"cache_pin": "true"})
    rig.round(3)
    assert memory.calls["pin"] == 1
    assert memory.calls["mount"] == 0
    assert memory.pins == {("vision/cats", OLD, b""): PIN_S}
    assert "pinned_until" in status(rig)
    rig.hands.forward(PIN_S * 0.6)
    rig.round(3)
    assert memory.calls["pin"] == 2
    rig.hands.reboot()
    rig = again(rig, tmp_path)
    rig.hands.forward(PIN_S * 0.6)
    rig.round(3)
    assert memory.calls["pin"] == 3
    rig.volumes.remove("a")
    rig.round(2)
    assert memory.pins == {}
    assert rig.service.slots() == []
    rig.close()


def test_a_pin_for_a_time_is_made_once(rig: Rig, memory: MemoryMounts) -> None:
    """It is not renewed, and goes with its volume."""
    rig.volumes.create("a", CATS | {"cache_pin": "1h"})
    rig.round(2)
    assert memory.pins == {("vision/cats", OLD, b""): 3600}
    rig.hands.forward(1800)
    rig.round(2)
    assert memory.calls["pin"] == 1
    rig.volumes.remove("a")
    rig.round(2)
    assert memory.pins == {}


def test_a_pin_stays_beside_mounts(rig: Rig, memory: MemoryMounts) -> None:
    """Containers come and go, and the data stays pinned; once the volume is gone, it is let go
    although others have the snapshot mounted."""
    for name, options in (("a", CATS | {"cache_pin": "true"}), ("other", CATS)):
        rig.volumes.create(name, options)
        rig.volumes.mount(name, "one")
    rig.round(2)
    assert len(memory.mounts) == 1
    rig.volumes.unmount("a", "one")
    rig.settle()
    assert memory.pins
    rig.volumes.remove("a")
    rig.round(2)
    assert memory.pins == {}
    assert len(memory.mounts) == 1


def test_pins_move_with_the_branch(rig: Rig, memory: MemoryMounts) -> None:
    """The new commit is pinned and the old one let go, unless another volume pins it."""
    rig.volumes.create("a", CATS | {"cache_pin": "true", "follow": "1h"})
    rig.volumes.create("b", CATS | {"cache_pin": "true"})
    rig.round(2)
    memory.repos["vision/cats"].revisions["main"] = NEW
    rig.hands.forward(3600)
    rig.round(3)
    assert set(memory.pins) == {("vision/cats", OLD, b""), ("vision/cats", NEW, b"")}
    rig.volumes.remove("b")
    rig.round(2)
    assert set(memory.pins) == {("vision/cats", NEW, b"")}


def test_pins_of_others_stay(rig: Rig, memory: MemoryMounts) -> None:
    """A volume that is removed takes no pin away that another one has, be it of other owners, of a
    directory below, or of the store under its full name; what nobody else has goes."""
    pinned = CATS | {"cache_pin": "true"}
    rig.volumes.create("a", pinned)
    rig.volumes.create("owned", pinned | {"uid": "1000", "store": "s3://same"})
    rig.volumes.create("train", pinned | {"path": "train"})
    rig.round(2)
    root, train = ("vision/cats", OLD, b""), ("vision/cats", OLD, b"train")
    for name, left in (("a", {root, train}), ("train", {root}), ("owned", set())):
        rig.volumes.remove(name)
        rig.round(2)
        assert set(memory.pins) == left


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

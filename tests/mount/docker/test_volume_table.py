"""The table of volumes: who may change one, and what is too late to count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.mount.docker.volume import key_of
from lodefs.mount.docker.volume_table import VolumeTable, machine_clock
from lodefs.mount.node.interface import MountStatus
from tests.support.docker.rig import OLD, WAIT_S, Rig, memory_mounts

KEY = key_of("a")
STANDING = MountStatus("/p", "vision/cats", OLD, b"", alive=True, supervised=True)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[VolumeTable]:
    rig = Rig(tmp_path / "state", memory_mounts())
    rig.volumes.create("a", {"repo": "vision/cats"})
    yield rig.table
    rig.close()


def test_nothing_is_done_on_an_old_look(table: VolumeTable) -> None:
    """Whoever looked before a change may neither act nor note what was seen."""
    slot = table.find("a")
    turn = slot.turn
    with table.changing_if(KEY, turn) as mine:
        assert mine is slot
    with table.changing_if(KEY, turn) as mine:
        assert mine is None
    table.see(slot, turn, STANDING)
    assert slot.standing is None
    table.see(slot, slot.turn, STANDING)
    assert slot.standing == STANDING


def test_nobody_waits_to_act_on_a_look(table: VolumeTable) -> None:
    """While another thread changes a volume, what was seen of it does not count."""
    slot = table.find("a")
    with table.changing(KEY):
        with table.changing_if(KEY, slot.turn) as mine:
            assert mine is None
        table.see(slot, slot.turn, STANDING)
    assert slot.standing is None


def test_changes_wait_for_each_other(table: VolumeTable) -> None:
    """Two threads are never at one volume, and other volumes are free meanwhile."""
    operation: list[str] = []

    def second() -> None:
        with table.changing(KEY):
            operation.append("second")

    thread = threading.Thread(target=second, daemon=True)
    with table.changing(KEY):
        thread.start()
        with table.changing("another"):
            operation.append("first")
    thread.join(WAIT_S)
    assert operation == ["first", "second"]


def test_slots_without_a_volume_go(table: VolumeTable) -> None:
    """Asking for volumes that are not there leaves nothing behind."""
    for number in range(10):
        with table.changing(f"key-{number}") as slot:
            assert slot.record is None
        with table.changing_if(f"key-{number}", 0) as none:
            assert none is None
    assert [slot.key for slot in table.slots()] == [KEY]


def test_the_clock_of_the_machine() -> None:
    """A boot has an id, which stays the same, and time goes on."""
    clock = machine_clock()
    assert clock.boot == machine_clock().boot
    assert clock.boot.startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    assert 0 < clock.uptime_s() <= clock.uptime_s()
    assert clock.now_s() > 1_700_000_000

"""Volumes of a plugin that mounted by itself: what it left in use, and in its files, goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import InUse, Unavailable
from lodefs.mount.docker import earlier_mounts
from lodefs.mount.docker.options import Options
from lodefs.mount.docker.volume import Reference, Volume
from lodefs.mount.docker.volume_files import Records, decode_record
from lodefs.mount.helper.interface import Source
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import OLD, Rig

GOLDEN = Path(__file__).parents[2] / "golden" / "docker-volume.json"
VOLUME = Volume(
    name="a",
    options=Options(source=Source(repo="vision/cats")),
    commit=OLD,
    files=3,
    size_bytes=3000,
    created_at_s=1_700_000_000.0,
    looked_at_s=1_700_000_000.0,
    boot="boot-1",
    references={"one": Reference(2, 900.0), "two": Reference(1, 990.0)},
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the earlier plugin has mounted the volume."""
    path = tmp_path / "state" / "mounts" / VOLUME.key
    path.mkdir(parents=True)
    return path


@pytest.fixture
def earlier(tmp_path: Path, memory: MemoryMounts, place: Path) -> Iterator[Rig]:
    """The next plugin, on the state of the earlier one, whose mount containers have."""
    records = Records(tmp_path / "state")
    records.write(VOLUME)
    records.close()
    memory.mount(VOLUME.options.source, OLD, str(place), 1)
    memory.shown[str(place)] = frozenset({0})
    rig = Rig(tmp_path / "state", memory)
    yield rig
    rig.close()


def hand_over(rig: Rig, folder: Path, boot: str = "boot-1") -> bool:
    return earlier_mounts.hand_over(rig.volumes, rig.service, folder, boot, lambda _source: None)


def test_a_mount_in_use_is_taken_over(earlier: Rig, memory: MemoryMounts, place: Path) -> None:
    """Its references count as they did; upkeep leaves it alone while containers have it; another
    volume of the snapshot shares it; after the last Unmount it goes, and the volume can be
    removed."""
    made = memory.mounts[str(place)]
    assert hand_over(earlier, place.parent)
    assert hand_over(earlier, place.parent)  # once: it changes nothing again
    assert earlier.references() == 3
    earlier.settle()
    assert memory.mounts == {str(place): made}
    assert earlier.volumes.path("a") == str(place)
    memory.kill(str(place), wholly=False)
    earlier.round(2)
    assert made.supervised
    earlier.volumes.create("b", {"repo": "vision/cats"})
    for name in ("a", "b"):
        assert earlier.volumes.mount(name, "three") == str(place)
    with pytest.raises(InUse):
        earlier.volumes.remove("a")
    for mount_id in ("one", "one", "two", "three"):
        earlier.volumes.unmount("a", mount_id)
    earlier.volumes.remove("a")
    earlier.settle()
    assert memory.mounts == {str(place): made}
    earlier.volumes.unmount("b", "three")
    earlier.settle()
    assert memory.mounts == {}
    assert not place.exists()


def test_the_file_has_no_references_then(earlier: Rig, tmp_path: Path, place: Path) -> None:
    """The record is converted once: what another start reads is what the service does not have."""
    assert hand_over(earlier, place.parent)
    path = tmp_path / "state" / "volumes" / f"{VOLUME.key}.json"
    plain = msgspec.structs.replace(VOLUME, boot="", references={})
    assert decode_record(path.read_bytes()) == plain
    earlier.close()
    again = Rig(tmp_path / "state", earlier.node)
    assert hand_over(again, place.parent)
    assert again.references() == 3
    again.close()


def test_a_service_with_another_root(
    earlier: Rig, memory: MemoryMounts, tmp_path: Path, place: Path
) -> None:
    """The service of the node has it where it is, and knows it at its next start."""
    records, folder = earlier.records, tmp_path / "elsewhere"
    node = Rig(folder, memory, records=records)
    assert hand_over(node, place.parent)
    assert node.volumes.path("a") == str(place)
    node.files.close()
    again = Rig(folder, memory, records=records)
    again.settle()
    assert memory.mounts[str(place)].alive
    assert again.references() == 3
    for mount_id in ("one", "one", "two"):
        again.volumes.unmount("a", mount_id)
    again.settle()
    assert memory.mounts == {}
    assert not place.exists()
    again.files.close()


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"])
def test_nothing_is_mounted_any_more(
    earlier: Rig, memory: MemoryMounts, place: Path, boot: str
) -> None:
    """References of a mount that has died, or of an earlier boot, are void."""
    memory.kill(str(place))
    assert hand_over(earlier, place.parent, boot)
    assert earlier.references() == 0
    earlier.settle()
    assert memory.mounts == {}
    earlier.volumes.remove("a")


def test_a_mount_that_nobody_refers_to(earlier: Rig, memory: MemoryMounts, place: Path) -> None:
    """One that was killed between its mount and its reference goes after a while."""
    plain = msgspec.structs.replace(VOLUME, boot="", references={})
    with earlier.volumes.using(VOLUME.key, alone=True):
        earlier.volumes.write(plain)
    assert hand_over(earlier, place.parent)
    assert earlier.references() == 0
    earlier.settle()
    assert memory.mounts == {}


def test_what_fails_is_tried_again(earlier: Rig, memory: MemoryMounts, place: Path) -> None:
    """Until then the file keeps its references."""
    memory.fail("look", Unavailable("busy"))
    assert not hand_over(earlier, place.parent)
    [volume] = earlier.volumes.records()
    assert volume == VOLUME
    assert hand_over(earlier, place.parent)
    assert earlier.references() == 3


def test_the_golden_file_is_converted(tmp_path: Path, memory: MemoryMounts) -> None:
    """What version 1 has written is understood: options and commit stay, references of another
    boot go, and its pin is the service's."""
    old = decode_record(GOLDEN.read_bytes())
    (tmp_path / "state" / "volumes").mkdir(parents=True)
    (tmp_path / "state" / "volumes" / f"{old.key}.json").write_bytes(GOLDEN.read_bytes())
    rig = Rig(tmp_path / "state", memory)
    assert hand_over(rig, tmp_path / "state" / "mounts")
    [volume] = rig.volumes.records()
    assert isinstance(volume, Volume)
    assert (volume.options, volume.commit) == (old.options, old.commit)
    assert (volume.references, volume.pinned_until_s) == ({}, 0.0)
    assert rig.references(old.name) == 0
    rig.close()

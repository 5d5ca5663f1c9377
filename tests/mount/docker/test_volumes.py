"""Volumes: what dockerd asks of them, in the right order, twice, too late, and out of order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Corrupt,
    DeadlineExceeded,
    Denied,
    InUse,
    InvalidInput,
    NotFound,
    Unavailable,
)
from lodefs.mount.docker.volume import Volume
from lodefs.mount.docker.volume_files import Damaged
from lodefs.mount.helper.interface import Traffic
from lodefs.mount.volumes.changes import key_of
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import NEW, OLD, WAIT_S, Rig

CATS = {"repo": "vision/cats"}


def volume(rig: Rig, name: str = "a") -> Volume:
    record = rig.volumes.get(name).record
    assert isinstance(record, Volume)
    return record


def test_a_life(rig: Rig, memory: MemoryMounts) -> None:
    """Created, mounted for two containers, unmounted by both, removed: a while later nothing is
    left."""
    rig.volumes.create("a", CATS)
    assert rig.volumes.path("a") == ""
    place = rig.volumes.mount("a", "one")
    assert rig.volumes.mount("a", "two") == place == rig.volumes.path("a")
    assert memory.mounts[place].commit == OLD
    rig.volumes.unmount("a", "one")
    assert place in memory.mounts
    rig.volumes.unmount("a", "two")
    assert rig.volumes.path("a") == ""
    rig.volumes.remove("a")
    assert rig.volumes.list() == []
    assert rig.records.load() == []
    assert memory.mounts
    rig.settle()
    assert not memory.mounts
    assert rig.files.places() == []


def test_volumes_of_a_snapshot_share_a_mount(rig: Rig, memory: MemoryMounts) -> None:
    """However many volumes there are; but one of another owner, or of another directory, has one
    of its own."""
    for name in ("a", "b", "c"):
        rig.volumes.create(name, CATS)
    rig.volumes.create("owned", CATS | {"uid": "1000"})
    rig.volumes.create("train", CATS | {"path": "train"})
    names = ("a", "b", "c", "owned", "train")
    places = [rig.volumes.mount(name, "one") for name in names]
    assert len(set(places[:3])) == 1
    assert len(set(places)) == len(memory.mounts) == 3
    rig.volumes.unmount("a", "one")
    rig.volumes.remove("a")
    rig.settle()
    assert len(memory.mounts) == 3


def test_nobody_gets_the_mount_of_another_token(
    rig: Rig, memory: MemoryMounts, tmp_path: Path
) -> None:
    """Beside a mount that a token has opened, volumes without it, or with a wrong one, are refused;
    with the same one they share it."""
    for name in ("right", "wrong", "same"):
        (tmp_path / name).write_text("right-token")
        rig.volumes.create(name, {"repo": "secret", "token_file": str(tmp_path / name)})
    place = rig.volumes.mount("right", "one")
    (tmp_path / "wrong").write_text("wrong-token")
    with pytest.raises(Denied):
        rig.volumes.mount("wrong", "one")
    with pytest.raises(Denied):
        rig.volumes.create("none", {"repo": "secret"})
    assert rig.volumes.mount("same", "one") == place
    assert rig.references("wrong") == 0


def test_a_branch_is_resolved_once(rig: Rig, memory: MemoryMounts) -> None:
    """A volume stays at the commit that its branch was when it was created."""
    rig.volumes.create("a", CATS)
    memory.repos["vision/cats"].revisions["main"] = NEW
    assert memory.mounts == {}
    place = rig.volumes.mount("a", "one")
    assert memory.mounts[place].commit == OLD
    rig.hands.forward(1e6)
    rig.settle()
    assert volume(rig).commit == OLD


def test_create_twice(rig: Rig) -> None:
    """The same options are fine, others are refused, and the first volume stays."""
    rig.volumes.create("a", CATS)
    rig.volumes.create("a", {"REPO": "vision/cats", "commit": "main"})
    with pytest.raises(AlreadyExists, match="other options"):
        rig.volumes.create("a", CATS | {"commit": "v1"})
    assert volume(rig).options.rev == "main"


def test_what_cannot_be_created(rig: Rig, memory: MemoryMounts, tmp_path: Path) -> None:
    """Each reason is told, and there is no volume then."""
    (tmp_path / "token").write_text("wrong")
    with pytest.raises(NotFound, match="no/such"):
        rig.volumes.create("a", {"repo": "no/such"})
    with pytest.raises(NotFound, match="v9"):
        rig.volumes.create("a", CATS | {"commit": "v9"})
    with pytest.raises(InvalidInput, match="nowhere"):
        rig.volumes.create("a", CATS | {"path": "nowhere"})
    with pytest.raises(Denied, match="token"):
        rig.volumes.create("a", {"repo": "secret", "token_file": str(tmp_path / "token")})
    memory.fail("resolve", Unavailable("unix:/run/lodefs/proxy.sock: Connection refused"))
    with pytest.raises(Unavailable, match=r"creating volume .a.: .*Connection refused"):
        rig.volumes.create("a", CATS)
    with pytest.raises(InvalidInput, match="'foo'"):
        rig.volumes.create("a", CATS | {"foo": "1"})
    assert rig.volumes.list() == []
    assert rig.records.load() == []


def test_no_such_volume(rig: Rig) -> None:
    """Every call names the volume that is not there, also one that was removed."""
    rig.volumes.create("gone", CATS)
    rig.volumes.remove("gone")
    for call in (
        lambda: rig.volumes.mount("gone", "one"),
        lambda: rig.volumes.unmount("gone", "one"),
        lambda: rig.volumes.remove("gone"),
        lambda: rig.volumes.path("gone"),
        lambda: rig.volumes.get("gone"),
    ):
        with pytest.raises(NotFound, match="gone"):
            call()


def test_remove_while_mounted(rig: Rig, memory: MemoryMounts) -> None:
    """A volume in use stays, and its mount too."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    with pytest.raises(InUse, match=r"'a' is in use \(1 mount\): remove its containers first"):
        rig.volumes.remove("a")
    assert memory.mounts[place].alive
    rig.volumes.unmount("a", "one")
    rig.volumes.remove("a")


def test_remove_believes_no_reference_that_nobody_holds(rig: Rig, memory: MemoryMounts) -> None:
    """An old reference without a container does not keep a volume; one that is held does."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "lost")
    rig.hands.forward(61)
    memory.shown[place] = frozenset({0})
    with pytest.raises(InUse):
        rig.volumes.remove("a")
    memory.is_blind = True
    with pytest.raises(InUse):
        rig.volumes.remove("a")
    memory.shown, memory.is_blind = {}, False
    rig.volumes.remove("a")
    rig.settle()
    assert not memory.mounts


def test_remove_of_a_volume_whose_mount_others_have(rig: Rig, memory: MemoryMounts) -> None:
    """Of a shared mount nobody sees for which volume it is shown: dockerd is believed that no
    container has the one that it removes, and the other one keeps the mount."""
    for name in ("a", "b"):
        rig.volumes.create(name, CATS)
        place = rig.volumes.mount(name, "one")
    memory.shown[place] = frozenset({0})
    with pytest.raises(InUse):
        rig.volumes.remove("a")  # a container that starts shows it nowhere yet
    rig.hands.forward(61)
    rig.volumes.remove("a")
    with pytest.raises(InUse):
        rig.volumes.remove("b")
    rig.settle()
    assert memory.mounts[place].alive


def test_unmount_of_unknown_ids(rig: Rig, memory: MemoryMounts) -> None:
    """An ID that has no mount, and one that had, change nothing for others."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    rig.volumes.unmount("a", "never")
    assert place in memory.mounts
    rig.volumes.unmount("a", "one")
    rig.volumes.unmount("a", "one")
    assert rig.references() == 0


def test_one_id_may_mount_twice(rig: Rig, memory: MemoryMounts) -> None:
    """`docker cp` mounts under the ID of the running container, and unmounts under it: the
    container keeps its mount."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    rig.volumes.mount("a", "one")
    rig.volumes.unmount("a", "one")
    assert place in memory.mounts
    assert rig.references() == 1
    rig.volumes.unmount("a", "one")
    assert rig.references() == 0


@pytest.mark.parametrize("name", ["", "n" * 256, "a\nb"])
def test_bad_names(rig: Rig, name: str) -> None:
    """A name that is none is refused by every call."""
    for call in (
        lambda: rig.volumes.create(name, CATS),
        lambda: rig.volumes.mount(name, "one"),
        lambda: rig.volumes.unmount(name, "one"),
        lambda: rig.volumes.remove(name),
        lambda: rig.volumes.path(name),
        lambda: rig.volumes.get(name),
    ):
        with pytest.raises(InvalidInput, match="name"):
            call()


@pytest.mark.parametrize("name", ["..", "../../x", "a/b", ".a", "n" * 255, "flickr 30k"])
def test_odd_names(rig: Rig, tmp_path: Path, name: str) -> None:
    """Any printable name of up to 255 bytes works, and stays inside the state directory."""
    rig.volumes.create(name, CATS)
    place = Path(rig.volumes.mount(name, "one"))
    assert place.parent == tmp_path / "state" / "mounts"
    assert rig.volumes.list()[0].record.name == name
    rig.volumes.unmount(name, "one")
    rig.volumes.remove(name)


@pytest.mark.parametrize("mount_id", ["", "a b", "x" * 257, "a\n", "\ud800"])
def test_bad_ids(rig: Rig, mount_id: str) -> None:
    """An ID that is no word is refused."""
    rig.volumes.create("a", CATS)
    with pytest.raises(InvalidInput, match="ID"):
        rig.volumes.mount("a", mount_id)


def test_a_dead_mount_is_replaced_by_the_next(rig: Rig, memory: MemoryMounts) -> None:
    """A container that starts on a mount whose processes have died gets a living one."""
    rig.volumes.create("a", CATS)
    place = rig.volumes.mount("a", "one")
    memory.kill(place)
    assert rig.volumes.mount("a", "two") == place
    assert memory.mounts[place].alive


def test_a_mount_that_fails_leaves_no_reference(rig: Rig, memory: MemoryMounts) -> None:
    """The error is the node's; the volume can be mounted later."""
    rig.volumes.create("a", CATS)
    memory.fail("mount", Unavailable("the proxy is not there"))
    with pytest.raises(Unavailable, match="proxy"):
        rig.volumes.mount("a", "one")
    assert rig.references() == 0
    rig.volumes.mount("a", "one")


def test_damaged_volumes(tmp_path: Path, rig: Rig, memory: MemoryMounts) -> None:
    """One is listed with its state, cannot be mounted, and can be removed and made anew; another
    one is not touched."""
    for name in ("bad", "good"):
        rig.volumes.create(name, CATS)
    path = tmp_path / "state" / "volumes" / f"{key_of('bad')}.json"
    path.write_bytes(path.read_bytes().replace(OLD.encode(), NEW.encode()))
    rig.close()
    again = Rig(tmp_path / "state", memory)
    assert [shown.record.name for shown in again.volumes.list()] == ["bad", "good"]
    assert isinstance(again.volumes.get("bad").record, Damaged)
    with pytest.raises(Corrupt, match="docker volume rm"):
        again.volumes.mount("bad", "one")
    with pytest.raises(Corrupt):
        again.volumes.create("bad", CATS)
    again.settle()
    again.volumes.mount("good", "one")
    again.volumes.remove("bad")
    assert path.with_suffix(".damaged").exists()
    again.volumes.create("bad", CATS)
    again.volumes.mount("bad", "one")
    again.close()


def test_a_damaged_volume_in_use_is_not_removed(
    tmp_path: Path, rig: Rig, memory: MemoryMounts
) -> None:
    """What containers hold keeps even a volume that nothing else is known of, and is held for it
    meanwhile."""
    rig.volumes.create("bad", CATS)
    place = rig.volumes.mount("bad", "one")
    (tmp_path / "state" / "volumes" / f"{key_of('bad')}.json").write_bytes(b"{")
    rig.close()
    again = Rig(tmp_path / "state", memory)
    memory.shown[place] = frozenset({0})
    again.settle()
    assert memory.mounts[place].alive
    with pytest.raises(InUse, match=r"damaged, and in use .* remove its containers"):
        again.volumes.remove("bad")
    assert again.volumes.list() == []  # nobody knows its name, until somebody asks with it
    memory.shown.clear()
    again.hands.forward(61)
    again.volumes.remove("bad")
    again.settle()
    assert not memory.mounts
    again.close()


def until(holds: Callable[[], bool]) -> None:
    """Returns when something holds; AssertionError after a minute."""
    ends_s, pause = time.monotonic() + WAIT_S, threading.Event()
    while not holds():
        assert time.monotonic() < ends_s
        pause.wait(0.001)


class TestLate:
    """Answers come in time, whatever the node does."""

    def test_a_late_create_goes_on(self, rig: Rig, memory: MemoryMounts) -> None:
        """It is answered in time, and the volume is there when it is done."""
        with (
            memory.hold("resolve") as gate,
            rig.late_at(gate),
            pytest.raises(DeadlineExceeded, match="creating volume 'a'"),
        ):
            rig.volumes.create("a", CATS)
        assert rig.calls.wait_idle(WAIT_S)
        assert volume(rig).commit == OLD

    def test_a_late_mount_has_no_reference(self, rig: Rig, memory: MemoryMounts) -> None:
        """Nobody will unmount it: upkeep does, after a while."""
        rig.volumes.create("a", CATS)
        with (
            memory.hold("mount") as gate,
            rig.late_at(gate),
            pytest.raises(DeadlineExceeded, match="mounting volume 'a'"),
        ):
            rig.volumes.mount("a", "one")
        assert rig.calls.wait_idle(WAIT_S)
        assert rig.references() == 0
        assert memory.mounts
        rig.round()
        assert memory.mounts
        rig.settle()
        assert not memory.mounts

    def test_who_is_late_is_told_why(self, rig: Rig, memory: MemoryMounts) -> None:
        """It is the node when the node is asked, also by somebody else; else it is the plugin."""
        rig.volumes.create("a", CATS)
        with memory.hold("mount"), rig.late_at(rig.volumes.told):
            with pytest.raises(DeadlineExceeded, match=r"mounting volume .a. \(mount is not done"):
                rig.volumes.mount("a", "one")
            with pytest.raises(DeadlineExceeded, match="proxy or its store, which is slow"):
                rig.volumes.mount("a", "two")
        assert rig.calls.wait_idle(WAIT_S)
        with (
            rig.volumes.using(key_of("a"), alone=True),
            rig.late_at(),
            pytest.raises(DeadlineExceeded, match="the plugin, or the disk of its state") as late,
        ):
            rig.volumes.mount("a", "three")
        assert "proxy" not in str(late.value)
        assert rig.calls.wait_idle(WAIT_S)
        assert rig.references() == 0

    def test_the_same_mount_again(self, rig: Rig, memory: MemoryMounts) -> None:
        """A second try that waits for the first one's work has its result, and one reference."""
        rig.volumes.create("a", CATS)
        with ThreadPoolExecutor(1) as threads, memory.hold("mount") as gate:
            with rig.late_at(gate), pytest.raises(DeadlineExceeded):
                rig.volumes.mount("a", "one")
            second = threads.submit(rig.volumes.mount, "a", "one")
            until(lambda: any(call.waiting for call in list(rig.calls._running.values())))
            gate.open.set()
            assert second.result(WAIT_S) in memory.mounts
        assert rig.calls.wait_idle(WAIT_S)
        assert rig.references() == 1

    def test_what_fails_late_is_logged(
        self, rig: Rig, memory: MemoryMounts, caplog: pytest.LogCaptureFixture
    ) -> None:
        """An error that nobody waits for any more can be found."""
        rig.volumes.create("a", CATS)
        memory.fail("mount", Unavailable("no disk"))
        with memory.hold("mount") as gate, rig.late_at(gate), pytest.raises(DeadlineExceeded):
            rig.volumes.mount("a", "one")
        assert rig.calls.wait_idle(WAIT_S)
        [line] = [one for one in caplog.records if one.levelname == "WARNING"]
        assert line.getMessage().startswith("mount a")
        assert "no disk" in line.getMessage()

    def test_an_unmount_waits_for_no_mount(self, rig: Rig, memory: MemoryMounts) -> None:
        """The reference is gone at once, whatever the node does."""
        rig.volumes.create("a", CATS)
        rig.volumes.mount("a", "one")
        with memory.hold("unmount"), memory.hold("look"), memory.hold("mount"):
            rig.volumes.unmount("a", "one")
            assert rig.references() == 0
            rig.volumes.remove("a")

    def test_looking_never_waits(self, rig: Rig, memory: MemoryMounts) -> None:
        """Get, List and Path answer while mounting and counting are stuck, and so do other
        volumes."""
        for name, path in (("a", ""), ("b", "train")):
            rig.volumes.create(name, CATS | {"path": path})
        place = rig.volumes.mount("a", "one")
        memory.mounts[place].traffic = Traffic(cache_bytes=5)
        assert rig.volumes.get("a").held.traffic == Traffic(cache_bytes=5)
        with memory.hold("traffic"), memory.hold("look") as gate, memory.hold("resolve"):
            with rig.late_at(gate), pytest.raises(DeadlineExceeded):
                rig.volumes.mount("a", "two")
            assert rig.volumes.get("a").held.traffic == Traffic(cache_bytes=5)
            assert rig.volumes.path("a") == place
            assert len(rig.volumes.list()) == 2
        assert rig.calls.wait_idle(WAIT_S)

    def test_counts_that_come_too_late(self, rig: Rig, memory: MemoryMounts) -> None:
        """A mount that does not say its counts in time has those that were seen last, also when
        the service answers in time without them."""
        rig.volumes.create("a", CATS)
        memory.mounts[rig.volumes.mount("a", "one")].traffic = Traffic(cache_bytes=5)
        assert rig.volumes.get("a").held.traffic == Traffic(cache_bytes=5)
        memory.fail("traffic", DeadlineExceeded("it is not done after 0.1 s"))
        assert rig.volumes.get("a").held.traffic == Traffic(cache_bytes=5)

    def test_many_calls_on_one_stuck_volume(self, rig: Rig, memory: MemoryMounts) -> None:
        """There are not more threads than allowed, and the refusal is an answer too."""
        rig.calls._calls_max = 4
        rig.volumes.create("a", CATS)
        with memory.hold("mount") as gate, rig.late_at(gate):
            for number in range(4):
                with pytest.raises(DeadlineExceeded):
                    rig.volumes.mount("a", f"id-{number}")
            with pytest.raises(Unavailable, match="4 calls"):
                rig.volumes.mount("a", "id-5")
        assert rig.calls.wait_idle(WAIT_S)
        assert rig.references() == 0

"""What happens to shared mounts between calls, and over starts of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import DeadlineExceeded, Denied, NoSpace, NotFound, Unavailable
from lodefs.mount.service.interface import MountClaim, Source, User
from lodefs.mount.service.mount_files import MountFiles
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import Hands
from tests.support.service.service_rig import WAIT_S, ServiceRig

CATS = MountClaim(source=Source(repo="vision/cats"), rev="main")
SECRET = MountClaim(source=Source(repo="secret"), rev="main")
USER = User("v1", "/t1")


def acquire(rig: ServiceRig, user: User = USER, wanted: MountClaim = CATS) -> str:
    return rig.mounts.acquire(user, wanted, None, WAIT_S).place


def test_one_mount_for_each_snapshot(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A hundred volumes of two snapshots are two mounts, made once each."""
    part = MountClaim(source=Source(repo="vision/cats", path=b"train"), rev="main")
    for number in range(100):
        acquire(rig, User(f"v{number}", f"/t{number}"), (CATS, part)[number % 2])
    assert len(memory.mounts) == 2
    assert memory.calls["mount"] == 2


def test_what_nobody_uses_goes_after_a_while(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A mount stays for the next user a while; then mount, mount point and record are gone."""
    place = acquire(rig)
    rig.mounts.release(USER, WAIT_S)
    rig.round(2)
    assert place in memory.mounts
    assert acquire(rig) == place
    rig.idle()
    assert place in memory.mounts
    rig.mounts.release(USER, WAIT_S)
    rig.idle()
    assert memory.mounts == {}
    assert rig.places() == []
    rig = rig.again()
    assert rig.mounts.slots() == []


def test_mounts_are_known_after_kill(rig: ServiceRig, memory: MemoryMounts) -> None:
    """Another start of the service knows who holds what, and makes nothing anew."""
    place = acquire(rig)
    rig = rig.again()
    rig.idle()
    assert acquire(rig) == place
    assert acquire(rig, User("v2", "/t2")) == place
    assert memory.calls["mount"] == 1


def test_a_reboot_leaves_nobody(rig: ServiceRig, memory: MemoryMounts) -> None:
    """After a reboot nobody holds what was held before, and what is left of it is swept."""
    acquire(rig)
    memory.mounts.clear()
    rig = rig.again("boot-2")
    rig.round(3)
    assert rig.places() == []
    assert rig.mounts.slots() == []
    acquire(rig)
    assert len(memory.mounts) == 1


def test_leftovers_are_swept(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A mount, or a mount point, that nobody has written down is taken away."""
    left = rig.files.place("left-1")
    for place in (left, rig.files.place("left-2")):
        rig.files.make_place(place)
    memory.mount(Source(repo="vision/cats"), "c1" * 32, left, WAIT_S)
    held = acquire(rig)
    rig.round(2)
    assert list(memory.mounts) == [held]
    assert len(rig.places()) == 1


def test_supervisors_and_dead_mounts(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A mount without a supervisor gets another one, a dead one is mounted again."""
    place = acquire(rig)
    memory.kill(place, wholly=False)
    rig.round()
    assert memory.mounts[place].supervised
    memory.kill(place)
    rig.round()
    assert memory.mounts[place].alive
    memory.kill(place)
    assert acquire(rig) == place
    assert memory.mounts[place].alive


def test_health_tells_what_is_wrong(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A dead mount and a proxy that does not answer are problems, with their reason."""
    place = acquire(rig)
    memory.kill(place)
    assert "dead" in rig.mounts.health("v1", WAIT_S).problem
    rig.round()
    memory.fail("resolve", Unavailable("no proxy here"))
    assert "no proxy here" in rig.mounts.health("v1", WAIT_S).problem
    assert rig.mounts.health("v1", WAIT_S).problem == ""


def test_a_release_waits_for_no_mount(rig: ServiceRig, memory: MemoryMounts) -> None:
    """While a mount hangs, its other users are released, and an acquire is late in time."""
    place = acquire(rig)
    memory.kill(place)
    with memory.hold("mount"):
        with pytest.raises(DeadlineExceeded):
            rig.mounts.acquire(User("v2", "/t2"), CATS, None, 0.05)
        rig.mounts.release(USER, WAIT_S)
    rig.idle()
    assert memory.mounts == {}


def test_a_mount_that_fails_leaves_nothing(rig: ServiceRig, memory: MemoryMounts) -> None:
    """An acquire that could not mount leaves no record, no mount point and no token."""
    memory.fail("mount", Unavailable("the kernel is out of mounts"))
    with pytest.raises(Unavailable):
        acquire(rig)
    assert rig.mounts.slots() == []
    assert rig.places() == []
    rig = rig.again()
    assert rig.mounts.slots() == []


def test_a_token_rotates_without_a_new_mount(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A new token that is right is given to the mount that there is; one that is wrong is Denied,
    and the mount keeps its own."""
    held = rig.mounts.acquire(USER, SECRET, "right-token", WAIT_S)
    memory.repos["secret"].token = "next-token"
    assert rig.mounts.acquire(USER, SECRET, "next-token", WAIT_S).place == held.place
    assert memory.renewed == [(held.place, "next-token")]
    with pytest.raises(Denied):
        rig.mounts.acquire(USER, SECRET, "wrong-token", WAIT_S)
    assert memory.calls["mount"] == 1
    other = rig.mounts.acquire(User("v2", "/t2"), SECRET, "next-token", WAIT_S)
    assert other == held
    [slot] = rig.mounts.slots()
    assert rig.files.token(slot.key) == "next-token"
    state = b"".join(path.read_bytes() for path in (rig.folder / "state").rglob("*.json"))
    assert b"-token" not in state


def test_a_release_on_a_full_disk(
    rig: ServiceRig, memory: MemoryMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that takes nothing keeps no user: who is released is gone for the service, also for
    its next start where it was the last one, and is written down when there is space again. A new
    user is NoSpace, and holds nothing."""
    other = MountClaim(source=Source(repo="vision/cats", path=b"train"), rev="main")
    for user in (USER, User("v2", "/t2")):
        acquire(rig, user)
    last = User("v3", "/t3")
    acquire(rig, last, other)

    def full(*_: object) -> None:
        raise NoSpace("the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(MountFiles, "write", full)
        for user in (USER, last):
            rig.mounts.release(user, WAIT_S)
            with pytest.raises(NotFound):
                rig.mounts.health(user.volume, WAIT_S)
        rig.round()
        with pytest.raises(NoSpace):
            acquire(rig, User("v4", "/t4"))
        assert {mount.users[0].user.volume for mount in rig.files.load()} == {"v1"}
    rig.round()
    rig = rig.again()
    [slot] = rig.mounts.slots()
    assert [usage.user.volume for usage in slot.mount.users] == ["v2"]
    memory.mounts.clear()
    with monkeypatch.context() as disk:
        disk.setattr(MountFiles, "write", full)
        rig = rig.again("boot-2")
        assert [slot.mount.users for slot in rig.mounts.slots()] == [()]
        assert rig.files.load() == []
    rig.idle()
    assert rig.places() == []


def test_pins(rig: ServiceRig, memory: MemoryMounts) -> None:
    """Data is pinned while a volume that wants it is there; for a fixed time it stays pinned."""
    commit = "c1" * 32
    pinned = MountClaim(source=Source(repo="vision/cats"), rev="main", pin_s=0)
    acquire(rig, wanted=pinned)
    rig.round()
    assert memory.pins == {("vision/cats", commit, b""): 86400}
    rig.round()
    assert memory.calls["pin"] == 1
    rig.mounts.release(USER, WAIT_S)
    rig.idle()
    assert memory.pins == {}
    fixed = MountClaim(source=Source(repo="vision/cats"), rev="main", pin_s=7200)
    acquire(rig, wanted=fixed)
    rig.round()
    rig.mounts.release(USER, WAIT_S)
    rig.idle()
    assert memory.mounts == {}
    [pin_s] = memory.pins.values()
    assert 7000 < pin_s <= 7200


def test_a_pin_that_is_not_taken_back_at_once(memory: MemoryMounts, tmp_path: Path) -> None:
    """The proxy is being started again: the pin is taken back then, and not kept for a day. A proxy
    that stays away does not keep the mount for long."""
    hands = Hands()
    rig = ServiceRig(tmp_path, memory, clock=hands.clock())
    wanted = MountClaim(source=Source(repo="vision/cats"), rev="main", pin_s=0)
    for failures in (1, 100):
        acquire(rig, wanted=wanted)
        rig.round()
        memory.fail("unpin", Unavailable("connection refused"), times=failures)
        rig.mounts.release(USER, WAIT_S)
        rig.idle()
        assert len(memory.mounts) == len(memory.pins) == 1
        for _ in range(3):
            hands.forward(61)
            rig.round(2)
        assert memory.mounts == {}
        assert len(memory.pins) == (failures == 100)
    rig.end()


def test_who_has_retired_writes_nothing(rig: ServiceRig, memory: MemoryMounts) -> None:
    """After another service took the mounts over, calls here fail and change nothing of it."""
    place = acquire(rig)
    rig.mounts.close()
    with pytest.raises(Unavailable, match="another service"):
        rig.mounts.release(USER, WAIT_S)
    rig = rig.again()
    assert acquire(rig) == place


def test_a_mount_that_cannot_take_another_token(rig: ServiceRig, memory: MemoryMounts) -> None:
    """Where the kernel cannot do that, the token is kept for the next mount, its users get what
    they ask for, health tells it, and it is tried again."""
    rig.mounts.acquire(USER, SECRET, "right-token", WAIT_S)
    memory.repos["secret"].token = "next-token"
    memory.fail("renew", Unavailable("not before Linux 6.9"), times=2)
    for _ in range(2):
        rig.mounts.acquire(USER, SECRET, "next-token", WAIT_S)
        assert "Linux 6.9" in rig.mounts.health("v1", WAIT_S).problem
    rig.mounts.acquire(USER, SECRET, "next-token", WAIT_S)
    assert rig.mounts.health("v1", WAIT_S).problem == ""
    assert memory.calls["renew"] == 3


def test_a_token_that_died_is_replaced_by_a_known_one(
    rig: ServiceRig, memory: MemoryMounts
) -> None:
    """Of two users one gave another token, and is gone: when that is revoked, the token that the
    other one gives again and again takes its place."""
    users = (User("v1", "/t1"), User("v2", "/t2"))
    for user in users:
        held = rig.mounts.acquire(user, SECRET, "right-token", WAIT_S)
    memory.repos["secret"].token = "next-token"
    rig.mounts.acquire(users[0], SECRET, "next-token", WAIT_S)
    rig.mounts.release(users[0], WAIT_S)
    memory.repos["secret"].token = "right-token"
    memory.fail("resolve", Unavailable("no proxy here"))
    for _ in range(3):
        rig.mounts.acquire(users[1], SECRET, "right-token", WAIT_S)
    assert memory.renewed == [(held.place, "next-token"), (held.place, "right-token")]


def test_users_do_not_take_each_others_tokens_away(rig: ServiceRig, memory: MemoryMounts) -> None:
    """Of two users with one token, one gets another: the other's, which it gives again and again,
    does not come back. A user that is new, and has none, is Denied."""
    users = (User("v1", "/t1"), User("v2", "/t2"))
    for user in users:
        rig.mounts.acquire(user, SECRET, "right-token", WAIT_S)
    memory.repos["secret"].token = "next-token"
    rig.mounts.acquire(users[0], SECRET, "next-token", WAIT_S)
    for _ in range(3):
        rig.mounts.acquire(users[1], SECRET, "right-token", WAIT_S)
        rig.mounts.acquire(users[0], SECRET, "next-token", WAIT_S)
    assert [token for _, token in memory.renewed] == ["next-token"]
    with pytest.raises(Denied):
        rig.mounts.acquire(User("v1", "/other"), SECRET, None, WAIT_S)

"""What a mount service allows, and calls of it that overtake each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, NoSpace, NotFound, Unavailable
from lodefs.chunkstore.protocol.figures.component_counts import ComponentCounts
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.interface import DOCKER, WRITABLE, MountClaim, Source, User
from lodefs.mount.service.shared_mount import SharedMount
from tests.support.docker.memory_mounts import MemoryMounts
from tests.support.docker.rig import OLD
from tests.support.mount.mounts import until
from tests.support.service.service_rig import WAIT_S, ServiceRig, served

CATS = MountClaim(source=Source(repo="vision/cats"), rev="main")
USER = User("v1", "/t1")


def of_store(store: str) -> MountClaim:
    return MountClaim(source=Source(repo="vision/cats", store=store), rev="main")


@pytest.mark.parametrize(
    "store",
    [
        "/etc",
        "/stores/open/../closed",
        "s3://bucket/open?endpoint_url=http://169.254.169.254",
        "s3://bucket/open/below",
    ],
)
def test_stores_that_nobody_allowed(tmp_path: Path, memory: MemoryMounts, store: str) -> None:
    """A volume that names a store which is not listed is Denied before anybody looks at it."""
    rig = ServiceRig(tmp_path, memory, stores=("s3://bucket/open", "/stores/open"))
    with pytest.raises(Denied, match="--allow-store"):
        rig.mounts.acquire(USER, of_store(store), None, WAIT_S)
    with pytest.raises(Denied, match="--allow-store"):
        rig.mounts.resolve(of_store(store), None, WAIT_S)
    assert not memory.calls
    assert rig.mounts.slots() == []
    rig.end()


def test_stores_that_are_allowed(tmp_path: Path, memory: MemoryMounts) -> None:
    """One that is listed may be named, however a directory is written; none needs no list."""
    stores = ("s3://b/p?region=eu-1", "file:///stores/open/")
    rig = ServiceRig(tmp_path, memory, stores=stores)
    for number, store in enumerate(("", *stores, "/stores/open")):
        rig.mounts.acquire(User(f"v{number}", "/t"), of_store(store), None, WAIT_S)
    rig.end()


def test_calls_count(rig: ServiceRig, tmp_path: Path) -> None:
    """Each call counts once, with its error; mounts are used until their last user goes."""
    counts = ComponentCounts("mounter")
    with served(rig.mounts, tmp_path / "s.sock", counts):
        remote = RemoteMounts(tmp_path / "s.sock")
        remote.acquire(USER, CATS, None, WAIT_S)
        assert rig.mounts.by_state() == {"used": 1, "idle": 0}
        with pytest.raises(NotFound):
            remote.health("none", WAIT_S)
        remote.release(USER, WAIT_S)
        assert rig.mounts.by_state() == {"used": 0, "idle": 1}
    found = counts.figures({}).calls
    assert {name: (calls.count, calls.errors) for name, calls in found.items()} == {
        "Acquire": (1, {}),
        "Health": (1, {"NotFound": 1}),
        "Release": (1, {}),
    }


def test_a_failure_that_repeats_a_long_call_fits_into_its_answer(
    rig: ServiceRig, tmp_path: Path
) -> None:
    """A path that is no good comes back in the error, escaped, and cut: the caller hears why."""
    wanted = MountClaim(source=Source(repo="vision/cats", path=b"\1" * 60_000), rev="main")
    with served(rig.mounts, tmp_path / "s.sock"):
        remote = RemoteMounts(tmp_path / "s.sock")
        with pytest.raises(InvalidInput, match=r"has no directory"):
            remote.resolve(wanted, None, WAIT_S)


def test_who_mounts_again_while_it_is_looked_up_stays(
    rig: ServiceRig, memory: MemoryMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that starts again has its ID again, which may be dropped just then as one that
    dockerd forgot: its new mount counts."""
    user = User("v1", "id", driver=DOCKER)
    rig.mounts.acquire(user, CATS, None, WAIT_S)
    [slot] = rig.mounts.slots()
    rig.mounts.acquire(User("v2", "id", driver=DOCKER), CATS, None, WAIT_S)

    def showing(_places: object) -> dict[str, frozenset[int]]:
        rig.mounts.acquire(user, CATS, None, WAIT_S)
        return {}

    monkeypatch.setattr(memory, "showing", showing)
    rig.mounts.drop_stale(slot, -1.0, None, WAIT_S)
    assert [(usage.user, usage.count) for usage in slot.mount.users] == [(user, 2)]


def test_a_container_may_show_a_writable_mount_instead(
    rig: ServiceRig, memory: MemoryMounts
) -> None:
    """Whom dockerd may have forgotten stays while the writable mount over the snapshot is shown."""
    user, above = User("v1", "id", driver=DOCKER), User("w", "/writable", driver=WRITABLE)
    for one in (user, above):
        rig.mounts.acquire(one, CATS, None, WAIT_S)
    [slot] = rig.mounts.slots()
    memory.shown["/writable"] = frozenset({0})
    assert rig.mounts.drop_stale(slot, -1.0, None, WAIT_S) == 0
    memory.shown.clear()
    assert rig.mounts.drop_stale(slot, -1.0, None, WAIT_S) == 1
    assert [usage.user for usage in slot.mount.users] == [above]


def test_a_mount_that_has_lost_its_token_is_no_ones_without_one(rig: ServiceRig) -> None:
    """Who gives no token gets no mount that was opened by one, also when its file is gone."""
    secret = MountClaim(source=Source(repo="secret"), rev=OLD)
    rig.mounts.acquire(USER, secret, "right-token", WAIT_S)
    [slot] = rig.mounts.slots()
    Path(rig.files.token_path(slot.key)).unlink()
    with pytest.raises(Denied):
        rig.mounts.acquire(User("v2", "/t2"), secret, None, WAIT_S)


def test_a_mount_that_went_while_an_acquire_waited_is_made_again(
    rig: ServiceRig, memory: MemoryMounts
) -> None:
    """It was seen after the acquire had begun, and taken away since; its data is kept, so that the
    service knows it still."""
    known = MountClaim(source=CATS.source, rev=OLD)
    rig.mounts.acquire(User("v0", "", driver=DOCKER), known, None, WAIT_S)
    with memory.hold("resolve") as gate, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(rig.mounts.acquire, USER, CATS, None, WAIT_S)
        assert gate.reached.wait(WAIT_S)
        rig.mounts.acquire(User("v2", "/t2"), known, None, WAIT_S)
        rig.mounts.release(User("v2", "/t2"), WAIT_S)
        rig.idle()
        assert not memory.mounts
        gate.open.set()
        assert slow.result(WAIT_S).place in memory.mounts


def test_a_release_overtakes_an_acquire(rig: ServiceRig, memory: MemoryMounts) -> None:
    """A volume that is released while it is mounted is not written down when that is done, and its
    mount goes; an acquire that begins afterwards counts."""
    failures: list[BaseException] = []

    def late() -> None:
        try:
            rig.mounts.acquire(USER, CATS, None, WAIT_S)
        except Unavailable as error:
            failures.append(error)

    with memory.hold("mount") as gate:
        first = threading.Thread(target=late)
        first.start()
        assert gate.reached.wait(WAIT_S)
        rig.mounts.release(USER, WAIT_S)
    first.join(WAIT_S)
    assert "released meanwhile" in str(failures[0])
    rig.idle()
    assert memory.mounts == {}
    assert rig.places() == []
    assert rig.mounts.acquire(USER, CATS, None, WAIT_S).is_new


def test_a_release_while_a_user_is_written_down(rig: ServiceRig) -> None:
    """A release that comes while the record is written waits for that, and holds."""
    write, begun, go = rig.files.write, threading.Event(), threading.Event()

    def slow(mount: SharedMount) -> None:
        begun.set()
        assert go.wait(WAIT_S)
        write(mount)

    rig.files.write = slow  # type: ignore[method-assign]
    threads = [
        threading.Thread(target=call)
        for call in (
            lambda: rig.mounts.acquire(USER, CATS, None, WAIT_S),
            lambda: rig.mounts.release(USER, WAIT_S),
        )
    ]
    threads[0].start()
    assert begun.wait(WAIT_S)
    threads[1].start()
    until(lambda: rig.mounts._under_way[0].is_void)
    go.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert [slot.mount.users for slot in rig.mounts.slots()] == [()]


def waiting(rig: ServiceRig, call: Callable[[User], object]) -> list[BaseException | None]:
    """What calls of twenty users end with, which all wait until a record may be written."""
    [slot] = rig.mounts.slots()
    users = [User(f"w{number}", "/t") for number in range(20)]
    with ThreadPoolExecutor(20) as threads:
        with slot.writing:
            done = [threads.submit(call, user) for user in users]
            until(lambda: len(slot.pending) == len(users))
        return [one.exception(WAIT_S) for one in done]


def test_calls_that_wait_are_done_together(rig: ServiceRig, memory: MemoryMounts) -> None:
    """However many acquires or releases of a mount wait, its record is written once, and what was
    answered is in it."""
    rig.mounts.acquire(USER, CATS, None, WAIT_S)
    write, writes = rig.files.write, list[SharedMount]()

    def counted(mount: SharedMount) -> None:
        writes.append(mount)
        write(mount)

    rig.files.write = counted  # type: ignore[method-assign]
    for call, left in (
        (lambda user: rig.mounts.acquire(user, CATS, None, WAIT_S), 21),
        (lambda user: rig.mounts.release(user, WAIT_S), 1),
    ):
        writes.clear()
        assert set(waiting(rig, call)) == {None}
        assert len(writes) == 1
        assert [len(mount.users) for mount in rig.files.load()] == [left]
    assert memory.calls["mount"] == 1


def test_a_disk_that_takes_nothing_fails_all_that_wait(rig: ServiceRig) -> None:
    """No acquire of the group says that it is done, and none counts; releases count."""
    rig.mounts.acquire(USER, CATS, None, WAIT_S)

    def refuse(mount: SharedMount) -> None:
        raise NoSpace(f"{mount.key}: the disk is full")

    rig.files.write = refuse  # type: ignore[method-assign]
    failed = waiting(rig, lambda user: rig.mounts.acquire(user, CATS, None, WAIT_S))
    assert {type(error) for error in failed} == {NoSpace}
    [slot] = rig.mounts.slots()
    assert [usage.user for usage in slot.mount.users] == [USER]
    rig.mounts.release(USER, WAIT_S)
    assert slot.mount.users == ()

"""The Node service, through gRPC, over a mount service in memory."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.service.interface import User
from tests.mount.csi.conftest import DriverRig
from tests.support.csi.kubelet import EPHEMERAL, MODE, capability, refused
from tests.support.docker.rig import NEW, OLD
from tests.support.mount.mounts import until

CATS = {"repo": "vision/cats"}
INLINE = {**CATS, EPHEMERAL: "true", "csi.storage.k8s.io/pod.name": "trainer-0"}


def fails(driver: DriverRig, **fields: Any) -> tuple[str, str]:
    """How a publish of a sound request with other fields is refused; nobody holds anything."""
    request = {
        "volume_id": "v1",
        "target_path": str(driver.pods / "t1"),
        "volume_context": CATS,
        "volume_capability": capability(),
        **fields,
    }
    before = driver.service.users(), dict(driver.targets.bound)
    with pytest.raises(grpc.RpcError) as error:
        driver.kubelet.call("NodePublishVolume", **request)
    assert (driver.service.users(), driver.targets.bound) == before
    return refused(error.value)


def test_publish_and_unpublish(driver: DriverRig) -> None:
    """A volume is shown on its target until it is taken back; both may be repeated."""
    target = driver.pods / "t1"
    for _ in range(2):
        driver.kubelet.publish("v1", target, CATS)
        assert driver.targets.bound == {str(target): (str(driver.service.root / "m0"), False)}
        assert driver.service.users() == {User("v1", str(target))}
    for _ in range(2):
        driver.kubelet.unpublish("v1", target)
        assert driver.targets.bound == {}
        assert driver.service.users() == set()
        assert not target.exists()


def test_inline_volumes(driver: DriverRig) -> None:
    """The kubelet asks for inline volumes with a mode that writes: they are read-only all the
    same."""
    single = capability(MODE.SINGLE_NODE_WRITER)
    driver.kubelet.publish(
        "v1", driver.pods / "t1", INLINE, volume_capability=single, readonly=False
    )
    assert len(driver.targets.bound) == 1


def test_groups_and_options(driver: DriverRig) -> None:
    """The pod's group owns the mount, and noexec is of the target."""
    flags = capability(flags=("noexec", "uid=9"), group="1234")
    driver.kubelet.publish("v1", driver.pods / "t1", CATS, volume_capability=flags)
    [mount] = driver.service.mounts
    assert (mount.wanted.source.uid, mount.wanted.source.gid) == (9, 1234)
    assert [noexec for _, noexec in driver.targets.bound.values()] == [True]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"volume_id": ""}, "volume_id"),
        ({"target_path": ""}, "target_path"),
        ({"volume_capability": None}, "volume_capability"),
        ({"volume_context": {}}, "repo"),
        ({"volume_context": {**CATS, "pth": "x"}}, "pth"),
        ({"volume_context": {**CATS, "path": "nowhere"}}, "nowhere"),
        ({"target_path": "relative/path"}, "target_path"),
        ({"target_path": "/x" * 3000}, "target_path"),
        ({"volume_id": "v" * 2048}, "2048 bytes"),
        ({"volume_capability": capability(MODE.MULTI_NODE_MULTI_WRITER)}, "access_mode"),
        ({"secrets": {"pat": "x"}}, "secrets"),
    ],
)
def test_bad_requests(driver: DriverRig, fields: dict[str, Any], named: str) -> None:
    """A field that is missing or wrong is INVALID_ARGUMENT, which names it."""
    code, text = fails(driver, **fields)
    assert code == "INVALID_ARGUMENT"
    assert named in text
    assert list(driver.pods.iterdir()) == []


def test_a_handle_of_128_bytes(driver: DriverRig) -> None:
    """The longest handle that CSI allows will do."""
    driver.kubelet.publish("v" * 128, driver.pods / "t1", CATS)
    driver.kubelet.unpublish("v" * 128, driver.pods / "t1")


def test_a_handle_that_is_too_long_can_be_taken_back(driver: DriverRig) -> None:
    """A volume whose handle was refused is one that nobody has: a pod that names it can go."""
    driver.kubelet.unpublish("v" * 2048, driver.pods / "t1")
    driver.kubelet.unpublish("v" * 100_000, driver.pods / "t1")


@pytest.mark.parametrize(
    ("called", "fields", "named"),
    [
        ("NodeUnpublishVolume", {"target_path": "/t"}, "volume_id"),
        ("NodeUnpublishVolume", {"volume_id": "v1"}, "target_path"),
        ("NodeUnpublishVolume", {"volume_id": "v1", "target_path": "t"}, "target_path"),
        ("NodeGetVolumeStats", {"volume_path": "/t"}, "volume_id"),
        ("NodeGetVolumeStats", {"volume_id": "v1"}, "volume_path"),
    ],
)
def test_bad_requests_about_a_volume(
    driver: DriverRig, called: str, fields: dict[str, Any], named: str
) -> None:
    """So it is in the calls that take a volume back and look at it."""
    with pytest.raises(grpc.RpcError) as error:
        driver.kubelet.call(called, **fields)
    code, text = refused(error.value)
    assert code == "INVALID_ARGUMENT"
    assert named in text


def test_staging_is_not_asked_for(driver: DriverRig) -> None:
    """The driver has no stage: to stage is UNIMPLEMENTED, and a staging path, be it missing or a
    file, is no concern of a publish."""
    (file := driver.pods / "file").touch()
    for number, path in enumerate((driver.pods / "none", file)):
        with pytest.raises(grpc.RpcError) as error:
            driver.kubelet.call(
                "NodeStageVolume",
                volume_id="v1",
                staging_target_path=str(path),
                volume_capability=capability(),
            )
        assert refused(error.value)[0] == "UNIMPLEMENTED"
        name = f"v{number}"
        driver.kubelet.publish(name, driver.pods / name, CATS, staging_target_path=str(path))
        driver.kubelet.unpublish(name, driver.pods / name)
    assert list(driver.pods.iterdir()) == [file]


def test_what_does_not_exist(driver: DriverRig) -> None:
    """An unknown repository or commit is NOT_FOUND, which names it."""
    for context, named in (
        ({"repo": "no/such"}, "no/such"),
        ({**CATS, "commit": "v9"}, "v9"),
    ):
        code, text = fails(driver, volume_context=context)
        assert code == "NOT_FOUND"
        assert named in text


def test_other_attributes(driver: DriverRig) -> None:
    """The same volume with other attributes is ALREADY_EXISTS, and stays as it is."""
    driver.kubelet.publish("v1", driver.pods / "t1", CATS)
    for target in ("t1", "t2"):
        code, text = fails(
            driver,
            volume_context={**CATS, "path": "train"},
            target_path=str(driver.pods / target),
        )
        assert code == "ALREADY_EXISTS"
        assert "v1" in text
    driver.kubelet.publish("v1", driver.pods / "t1", CATS)


def test_targets_of_others(driver: DriverRig) -> None:
    """A symlink is refused, and what others have mounted is left alone, also by an unpublish."""
    link, other = driver.pods / "link", driver.pods / "other"
    link.symlink_to("/")
    assert fails(driver, target_path=str(link))[0] == "INVALID_ARGUMENT"
    driver.targets.foreign.add(str(other))
    assert fails(driver, target_path=str(other))[0] == "FAILED_PRECONDITION"
    driver.kubelet.unpublish("v1", other)
    driver.kubelet.unpublish("v1", link)
    assert link.is_symlink()


def test_a_mount_that_cannot_be_read(driver: DriverRig) -> None:
    """A volume whose root cannot be read is not ready, and nothing is left of it."""
    driver.targets.unreadable = True
    assert fails(driver)[0] == "UNAVAILABLE"
    driver.targets.unreadable = False
    driver.kubelet.publish("v1", driver.pods / "t1", CATS)
    driver.targets.unreadable = True
    with pytest.raises(grpc.RpcError):  # a republish takes nothing away from the pod
        driver.kubelet.publish("v1", driver.pods / "t1", CATS)
    assert len(driver.targets.bound) == 1


def test_propagation_that_is_missing(driver: DriverRig) -> None:
    """A driver that does not see the mounts says what its container lacks."""
    driver.targets.is_blind = True
    code, text = fails(driver)
    assert code == "UNAVAILABLE"
    assert "mountPropagation" in text


def test_a_mount_that_has_died_is_replaced(driver: DriverRig) -> None:
    """A republish binds the living mount where a dead one was."""
    target = driver.pods / "t1"
    driver.kubelet.publish("v1", target, CATS)
    place, _ = driver.targets.bound[str(target)]
    driver.targets.bound[str(target)] = (f"{place}-before", False)
    driver.kubelet.publish("v1", target, CATS)
    assert driver.targets.bound[str(target)] == (place, False)


@pytest.mark.parametrize("fault", ["unreadable", "is_blind"])
def test_a_republish_that_fails_keeps_the_commit(driver: DriverRig, fault: str) -> None:
    """A republish that cannot show the new mount leaves the pod's commit held, however often it
    fails: when it works, the branch that moved meanwhile is not looked at."""
    target = driver.pods / "t1"
    driver.kubelet.publish("v1", target, CATS)
    place, _ = driver.targets.bound[str(target)]
    died = (f"{place}-before", False)
    driver.targets.bound[str(target)] = died
    driver.targets.others[died[0]] = "0:77"
    driver.service.repos["vision/cats"].revisions["main"] = NEW
    setattr(driver.targets, fault, True)
    for _ in range(3):
        with pytest.raises(grpc.RpcError):
            driver.kubelet.publish("v1", target, CATS)
    assert driver.service.users() == {User("v1", str(target))}
    assert target.exists()
    setattr(driver.targets, fault, False)
    driver.kubelet.publish("v1", target, CATS)
    assert [mount.held.commit for mount in driver.service.mounts] == [OLD]
    assert driver.targets.bound[str(target)] == (place, False)


def test_a_bind_mount_that_was_not_finished(driver: DriverRig) -> None:
    """Where a driver was killed before it had taken rights off a target, a repeated publish does
    that."""
    target, noexec = driver.pods / "t1", capability(flags=("noexec",))
    driver.kubelet.publish("v1", target, CATS, volume_capability=noexec)
    place, _ = driver.targets.bound[str(target)]
    driver.targets.bound[str(target)] = (place, False)
    driver.kubelet.publish("v1", target, CATS, volume_capability=noexec)
    assert driver.targets.bound[str(target)] == (place, True)


def test_one_call_at_a_time(driver: DriverRig) -> None:
    """While a volume is published, other calls for it are ABORTED, and those for others go on."""
    driver.kubelet.publish("v2", driver.pods / "t2", CATS)
    with driver.service.hold() as gate:
        first = threading.Thread(
            target=driver.kubelet.publish, args=("v1", driver.pods / "t1", CATS)
        )
        first.start()
        assert gate.reached.wait(60)
        assert fails(driver)[0] == "ABORTED"
        with pytest.raises(grpc.RpcError) as error:
            driver.kubelet.unpublish("v1", driver.pods / "t1")
        assert refused(error.value)[0] == "ABORTED"
        driver.kubelet.unpublish("v2", driver.pods / "t2")
    first.join(60)
    assert driver.service.users() == {User("v1", str(driver.pods / "t1"))}


def test_deadlines(driver: DriverRig) -> None:
    """A call whose time is over is DEADLINE_EXCEEDED, holds nothing, and can be repeated."""
    with driver.service.hold():
        assert fails(driver, timeout_s=0.3)[0] == "DEADLINE_EXCEEDED"

    def published() -> bool:
        try:
            driver.kubelet.publish("v1", driver.pods / "t1", CATS)
        except grpc.RpcError as error:
            if refused(error)[0] == "ABORTED":  # the late one is still to end
                return False
            raise
        return True

    until(published)


def test_tokens(driver: DriverRig, caplog: pytest.LogCaptureFixture) -> None:
    """The secret opens; a wrong one is UNAUTHENTICATED; another one takes its place. None of them
    is in a message or in the log."""
    caplog.set_level(logging.DEBUG)
    secret, target = {"repo": "secret", **{k: INLINE[k] for k in INLINE if "/" in k}}, "t1"
    for wrong in ({}, {"token": "wrong-token"}):
        code, text = fails(driver, volume_context=secret, secrets=wrong)
        assert code == "UNAUTHENTICATED"
        assert "wrong-token" not in text
    for token in ("right-token", "next-token"):
        driver.service.repos["secret"].token = token
        driver.kubelet.publish("v1", driver.pods / target, secret, secrets={"token": token})
    [mount] = driver.service.mounts
    assert mount.token == "next-token"
    assert "-token" not in caplog.text
    assert "UNAUTHENTICATED" in caplog.text
    assert any(getattr(record, "pod", "") == "trainer-0" for record in caplog.records)


def test_the_service_is_away(driver: DriverRig) -> None:
    """Without the mount service calls are UNAVAILABLE; they work when it is back."""
    driver.service.failure = Unavailable("no mounter here")
    assert fails(driver) == ("UNAVAILABLE", "no mounter here")
    assert not driver.kubelet.call("Probe").ready.value
    driver.service.failure = None
    assert driver.kubelet.call("Probe").ready.value
    driver.kubelet.publish("v1", driver.pods / "t1", CATS)


def test_stats(driver: DriverRig) -> None:
    """Bytes and files of the dataset, and a condition that tells what is wrong."""
    target = driver.pods / "t1"
    driver.kubelet.publish("v1", target, CATS)
    stats = driver.kubelet.stats("v1", target)
    assert [(one.unit, one.total, one.used) for one in stats.usage] == [(1, 3000, 3000), (2, 3, 3)]
    assert not stats.volume_condition.abnormal
    driver.service.problem = "the node's proxy is not well"
    condition = driver.kubelet.stats("v1", target).volume_condition
    assert (condition.abnormal, condition.message) == (True, "the node's proxy is not well")
    for volume, path in (("v1", Path("/nowhere")), ("v2", target)):
        with pytest.raises(grpc.RpcError) as error:
            driver.kubelet.stats(volume, path)
        assert refused(error.value)[0] == "NOT_FOUND"


def test_who_it_is(driver: DriverRig) -> None:
    """Name, version, node and capabilities, as the manifests count on them."""
    info = driver.kubelet.call("GetPluginInfo")
    assert (info.name, info.vendor_version) == ("csi.lodefs.dev", "1.2.3")
    assert driver.kubelet.call("NodeGetInfo").node_id == "node-1"
    types = [one.rpc.type for one in driver.kubelet.call("NodeGetCapabilities").capabilities]
    assert len(types) == 4
    for name in ("NodeStageVolume", "NodeExpandVolume", "ListVolumes"):
        with pytest.raises(grpc.RpcError) as error:
            driver.kubelet.call(name)
        assert refused(error.value)[0] == "UNIMPLEMENTED"


def test_many_at_once(driver: DriverRig) -> None:
    """Volumes do not wait for each other."""
    threads = [
        threading.Thread(target=driver.kubelet.publish, args=(f"v{n}", driver.pods / f"t{n}", CATS))
        for n in range(50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(driver.targets.bound) == 50
    assert [mount.held.commit for mount in driver.service.mounts] == [OLD]

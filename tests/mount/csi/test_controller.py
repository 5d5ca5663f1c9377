"""The Controller service: volumes of a StorageClass."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.csi.controller import filled_in, volume_id_of
from lodefs.mount.csi.generated import csi_pb2 as pb
from tests.mount.csi.conftest import DriverRig
from tests.support.csi.kubelet import MODE, capability, refused
from tests.support.docker.rig import OLD

PVC = {
    "csi.storage.k8s.io/pvc/name": "cats",
    "csi.storage.k8s.io/pvc/namespace": "vision",
    "csi.storage.k8s.io/pv/name": "pvc-1",
}
CATS = {"repo": "${pvc.namespace}/${pvc.name}", **PVC}


def create(driver: DriverRig, name: str = "pvc-1", **fields: Any) -> Any:
    given = {"parameters": CATS, "volume_capabilities": [capability()], **fields}
    return driver.kubelet.call("CreateVolume", name=name, **given).volume


def fails(driver: DriverRig, **fields: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as error:
        create(driver, **fields)
    return refused(error.value)


def test_a_claim_names_a_dataset(driver: DriverRig) -> None:
    """The claim's name is the repository's, the branch is resolved once, and the volume says so."""
    volume = create(driver, capacity_range=pb.CapacityRange(required_bytes=5))
    assert dict(volume.volume_context) == {"repo": "vision/cats", "commit": OLD}
    assert volume.volume_id.startswith(f"vision/cats@{OLD[:12]}#")
    assert volume.capacity_bytes == 5
    driver.kubelet.publish(volume.volume_id, driver.pods / "t1", volume.volume_context)


def test_calls_may_be_repeated(driver: DriverRig) -> None:
    """The same name is the same volume, wherever the branch is by now; deleting twice is fine."""
    volume = create(driver)
    driver.service.repos["vision/cats"].revisions["main"] = "c2" * 32
    assert create(driver) == volume
    for _ in range(2):
        driver.kubelet.call("DeleteVolume", volume_id=volume.volume_id)
    assert create(driver).volume_id != volume.volume_id


def test_a_name_with_other_wishes(driver: DriverRig) -> None:
    """The same name with other parameters or another size is ALREADY_EXISTS."""
    create(driver, capacity_range=pb.CapacityRange(required_bytes=5, limit_bytes=5))
    bigger = pb.CapacityRange(required_bytes=9)
    assert fails(driver, capacity_range=bigger)[0] == "ALREADY_EXISTS"
    assert fails(driver, parameters={"repo": "secret"})[0] == "ALREADY_EXISTS"


@pytest.mark.parametrize(
    ("fields", "code", "named"),
    [
        ({"name": ""}, "INVALID_ARGUMENT", "name"),
        ({"volume_capabilities": []}, "INVALID_ARGUMENT", "volume_capabilities"),
        ({"parameters": {}}, "INVALID_ARGUMENT", "repo"),
        ({"parameters": {"repo": "${pvc.annotations}"}}, "INVALID_ARGUMENT", "pvc.annotations"),
        ({"parameters": {"repo": "no/such"}}, "NOT_FOUND", "no/such"),
        ({"parameters": {"repo": "secret"}}, "UNAUTHENTICATED", "secret"),
        (
            {"volume_capabilities": [capability(MODE.MULTI_NODE_MULTI_WRITER)]},
            "INVALID_ARGUMENT",
            "read-only",
        ),
        (
            {"capacity_range": pb.CapacityRange(required_bytes=9, limit_bytes=3)},
            "INVALID_ARGUMENT",
            "limit_bytes",
        ),
    ],
)
def test_bad_requests(driver: DriverRig, fields: dict[str, Any], code: str, named: str) -> None:
    """What is missing or wrong is refused by name."""
    found, text = fails(driver, **fields)
    assert found == code
    assert named in text


def test_secrets(driver: DriverRig) -> None:
    """The provisioner's secret opens a dataset."""
    volume = create(driver, parameters={"repo": "secret"}, secrets={"token": "right-token"})
    assert "right-token" not in str(volume)


def test_validate(driver: DriverRig) -> None:
    """Reading is confirmed, writing is not, with the reason; an unknown volume is NOT_FOUND."""
    volume = create(driver)

    def ask(volume_id: str, mode: int) -> Any:
        return driver.kubelet.call(
            "ValidateVolumeCapabilities",
            volume_id=volume_id,
            volume_capabilities=[capability(mode)],
        )

    assert ask(volume.volume_id, MODE.MULTI_NODE_READER_ONLY).HasField("confirmed")
    refusal = ask(volume.volume_id, MODE.SINGLE_NODE_WRITER)
    assert not refusal.HasField("confirmed")
    assert "read-only" in refusal.message
    with pytest.raises(grpc.RpcError) as error:
        ask("never-made", MODE.MULTI_NODE_READER_ONLY)
    assert refused(error.value)[0] == "NOT_FOUND"


def test_templates_need_metadata() -> None:
    """A placeholder that the provisioner does not tell is named, with the way out."""
    with pytest.raises(InvalidInput, match="extra-create-metadata"):
        filled_in({"repo": "${pvc.name}"})
    assert filled_in(CATS) == {"repo": "vision/cats"}


def test_volume_ids_fit() -> None:
    """A volume id is of 128 bytes at most, whatever the repository is called."""
    for repo in ("a", "é" * 200, "x/" * 120 + "y"):
        assert len(volume_id_of(repo, OLD, "pvc-1").encode()) <= 128
    assert volume_id_of("a", OLD, "pvc-1") != volume_id_of("a", OLD, "pvc-2")

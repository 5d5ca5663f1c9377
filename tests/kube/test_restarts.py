"""A kubelet, a rollout and a node that do not come through, under pods that read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from loadtests.kube.installation import CHART, NAMESPACE, RELEASE, Installation, inline, pod
from loadtests.kube.node import Node
from lodefs.mount.service.mount_files import decode_mount, encode_mount
from tests.kube.conftest import Dataset
from tests.kube.readers import NAMES, REPO, Readers


def test_a_kubelet_that_is_killed(node: Node, readers: Readers) -> None:
    """Pods read on under a kubelet that dies and comes back; it knows their volumes, and the
    driver: new pods start, and old ones go with their volumes."""
    node.restart_kubelet()
    readers.read_on()
    _reads(node, "next")
    readers.read_on()
    node.kubectl("delete", "pods", "--all", "--timeout=120s")
    node.until(lambda: "kubernetes.io~csi" not in _mounts(node), "no volume is mounted")


def test_a_mounter_that_is_rolled_back(node: Node, lodefs: Installation, readers: Readers) -> None:
    """A new mounter that has the mounts, and is never ready: when the rollout is undone, the old
    one takes them back, and no read fails."""
    old = lodefs.roll_out_a_mounter_that_fails()
    readers.read_on()
    _reads(node, "meanwhile")
    lodefs.undo_rollout_of_mounter(old)
    readers.read_on()
    _reads(node, "next")


def test_an_upgrade_that_cannot_start(node: Node, lodefs: Installation, readers: Readers) -> None:
    """`helm upgrade` to an image that does not exist, and `helm rollback`: no read fails."""
    values = lodefs.values()
    values["image"]["tag"] = "none"
    file = node.folder / "none.json"
    file.write_text(json.dumps(values))
    node.helm("upgrade", RELEASE, CHART, "-n", NAMESPACE, "--values", file)
    node.until(
        lambda: "ErrImageNeverPull" in node.kubectl("-n", NAMESPACE, "get", "pods"), "it fails"
    )
    readers.read_on()
    node.helm("rollback", RELEASE, "-n", NAMESPACE)
    lodefs.await_ready()
    readers.read_on()
    _reads(node, "next")


def test_a_node_that_loses_its_power(node: Node, lodefs: Installation, dataset: Dataset) -> None:
    """After a reboot pods read again, by themselves; what was left of mounts that nobody has any
    more is swept."""
    readers = Readers(node, restartPolicy="Always")
    state = node.folder / "var-lib/lodefs"
    left = state / "mounts" / "left-over"
    left.mkdir()
    lodefs.reboot(lambda: as_of_another_boot(state / "mounter/mounts"))
    node.await_pods(NAMES, "Running", timeout_s=240.0)
    lodefs.await_ready()
    readers.read_on()
    node.until(lambda: not left.exists(), "what was left is gone")
    _reads(node, "next")
    node.kubectl("delete", "pods", "--all", "--timeout=120s")
    node.until(lambda: not list((state / "mounts").iterdir()), "no dataset is mounted")
    assert not list((state / "mounter/mounts").iterdir())


def as_of_another_boot(records: Path) -> None:
    """What mounts were is of a boot that is over: the node's kernel has not rebooted."""
    paths = list(records.glob("*.json"))
    assert paths
    for path in paths:
        mount = decode_mount(path.read_bytes())
        path.write_bytes(encode_mount(msgspec.structs.replace(mount, boot="another")))


def _reads(node: Node, name: str) -> None:
    """A new pod reads."""
    node.apply(pod(name, inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods([name], "Succeeded")
    assert node.kubectl("logs", name) == "rose\n"


def _mounts(node: Node) -> str:
    return node.run("cat", "/proc/1/mountinfo").stdout

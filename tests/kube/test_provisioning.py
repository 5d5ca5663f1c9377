"""Claims of a StorageClass, by the real external-provisioner beside the chart's controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.kube import binary, images
from loadtests.kube.installation import Installation, claimed, pod
from loadtests.kube.node import ROOT, Node
from tests.kube.conftest import Dataset
from tests.kube.readers import REPO

EXAMPLE = ROOT / "deploy/kubernetes/examples/storage-class.yaml"


@pytest.fixture(scope="module")
def controller(
    lodefs: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """lodefs with its controller, by the chart, with its rights and no more."""
    made = binary.PROVISIONER.build(print)
    folder: Path = tmp_path_factory.mktemp("provisioner")
    lodefs.node.import_image(images.provisioner_image(made, folder))
    enabled = {"enabled": True, "provisioner": {"image": images.PROVISIONER}}
    lodefs.upgrade(lodefs.values(controller=enabled))
    wait = ["rollout", "status", "deployment/lodefs-controller", "-n", "lodefs", "--timeout=120s"]
    lodefs.node.kubectl(*wait)
    yield lodefs
    lodefs.upgrade(lodefs.values())


def test_a_claim_of_a_storage_class(node: Node, controller: Installation, dataset: Dataset) -> None:
    """The example's claim is bound to a volume of the commit that its class names; a pod reads it;
    deleted, claim and volume are gone."""
    node.kubectl("apply", "-f", EXAMPLE)
    node.until(lambda: _phase(node, "my-flickr30k") == "Bound", "the claim is bound")
    volume = _volume_of(node, "my-flickr30k")
    source = volume["spec"]["csi"]
    assert source["volumeAttributes"]["repo"] == REPO
    assert source["volumeAttributes"]["commit"] == dataset.commit
    assert source["volumeHandle"].startswith(f"{REPO}@{dataset.commit[:12]}#")
    node.apply(pod("reader", claimed("my-flickr30k"), "cat /data/labels/a.txt"))
    node.await_pods(["reader"], "Succeeded")
    assert node.kubectl("logs", "reader") == "rose\n"
    node.kubectl("delete", "pod/reader", "pvc/my-flickr30k", "--timeout=120s")
    name = volume["metadata"]["name"]
    gone = lambda: node.try_kubectl("get", "persistentvolume", name).returncode != 0  # noqa: E731
    node.until(gone, "the volume is gone")
    node.kubectl("delete", "-f", EXAMPLE, "--ignore-not-found")


def test_a_claim_is_named_as_its_dataset(node: Node, controller: Installation) -> None:
    """Parameters take the names of claim and namespace. Of a dataset that does not exist, an event
    of the claim says which there are, and nothing is bound."""
    parameters = {"repo": "${pvc.namespace}/${pvc.name}"}
    kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}
    named = {**kind, "metadata": {"name": "named"}, "provisioner": "csi.lodefs.dev"}
    namespace, repo = REPO.split("/")
    node.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {**named, "parameters": parameters},
        _claim(repo, namespace),
        _claim("no-such-dataset", namespace),
    )
    try:
        node.until(lambda: _phase(node, repo, namespace) == "Bound", "the claim is bound")

        def explained() -> bool:
            told = node.kubectl("describe", "pvc", "no-such-dataset", "-n", namespace)
            return "ProvisioningFailed" in told and "there is no repository" in told

        node.until(explained, "an event names the datasets")
        assert _phase(node, "no-such-dataset", namespace) == "Pending"
    finally:
        node.kubectl("delete", "namespace", namespace, "--timeout=120s")
        node.kubectl("delete", "storageclass", "named")


def test_a_claim_that_wants_to_write(node: Node, controller: Installation) -> None:
    """A claim with a mode that writes stays unbound, and its event says which mode there is."""
    example = next(
        one for one in yaml.safe_load_all(EXAMPLE.read_text()) if one["kind"] == "StorageClass"
    )
    claim = _claim("writes", "default", storageClassName=example["metadata"]["name"])
    claim["spec"]["accessModes"] = ["ReadWriteOnce"]
    node.apply(example, claim)
    try:
        node.until(
            lambda: (
                "ReadOnlyMany" in node.kubectl("describe", "pvc", "writes").partition("Events")[2]
            ),
            "an event names the access mode",
        )
        assert _phase(node, "writes") == "Pending"
    finally:
        node.kubectl("delete", "pvc", "writes", "--timeout=60s")
        node.kubectl("delete", "storageclass", example["metadata"]["name"])


def _claim(name: str, namespace: str, **spec: Any) -> dict[str, Any]:
    given = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "named",
        "resources": {"requests": {"storage": "1Gi"}},
        **spec,
    }
    metadata = {"name": name, "namespace": namespace}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    return {**kind, "metadata": metadata, "spec": given}


def _phase(node: Node, claim: str, namespace: str = "default") -> str:
    return str(node.get("persistentvolumeclaim", claim, namespace)["status"].get("phase"))


def _volume_of(node: Node, claim: str) -> dict[str, Any]:
    name = node.get("persistentvolumeclaim", claim)["spec"]["volumeName"]
    found = json.loads(node.kubectl("get", "persistentvolume", name, "-o", "json"))
    assert isinstance(found, dict)
    return found

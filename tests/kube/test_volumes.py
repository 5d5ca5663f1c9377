"""Pods that read datasets through volumes of each kind, and what users see when that fails."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.kube.installation import NAMESPACE, RELEASE, Installation, claimed, inline, pod
from loadtests.kube.node import ROOT, Node
from tests.kube.conftest import Dataset
from tests.kube.readers import REPO

EXAMPLES = ROOT / "deploy/kubernetes/examples"
SUMS = "cd /data && find . -type f | sort | xargs sha256sum"


def sums(source: Path) -> str:
    """What SUMS writes for a directory."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(source)}\n"
        for path in files
    )


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of an example."""
    return [one for one in yaml.safe_load_all((EXAMPLES / name).read_text()) if one]


def test_an_inline_volume(node: Node, dataset: Dataset) -> None:
    """A pod with five lines of YAML reads the bytes that were pushed."""
    node.apply(pod("inline", inline(REPO, commit="v1.0"), SUMS))
    node.await_pods(["inline"], "Succeeded")
    assert node.kubectl("logs", "inline") == sums(dataset.source)


def test_proxies_find_each_other(node: Node, lodefs: Installation) -> None:
    """The proxy learns the members of the cluster, itself alone here, from the headless Service."""
    (proxy,) = lodefs.pods("proxy")
    name, address = proxy["metadata"]["name"], proxy["status"]["podIP"]
    inside = ["exec", "-n", NAMESPACE, name, "-c", "proxy", "--", "/usr/bin/lodefs", "status"]
    node.until(
        lambda: f"this node is {address}:7441" in node.kubectl(*inside), "the proxy knows itself"
    )


def test_a_persistent_volume(node: Node, dataset: Dataset) -> None:
    """Pods read the same bytes through one claim, and none of them can write."""
    volume, claim, _ = objects("claim.yaml")
    node.apply(volume, claim)
    script = f"{SUMS}; touch /data/x 2>&1 | grep -c 'Read-only'"
    names = ["first", "second"]
    node.apply(*(pod(name, claimed("flickr30k"), script) for name in names))
    node.await_pods(names, "Succeeded")
    for name in names:
        assert node.kubectl("logs", name) == f"{sums(dataset.source)}1\n"


@pytest.mark.parametrize(
    ("name", "pods"), [("pod.yaml", 1), ("claim.yaml", 1), ("training-job.yaml", 4)]
)
def test_examples_run(node: Node, dataset: Dataset, name: str, pods: int) -> None:
    """The examples of the documentation run as they are, to their end."""
    node.kubectl("apply", "-f", EXAMPLES / name)

    def done() -> bool:
        found = json.loads(node.kubectl("get", "pods", "-o", "json"))["items"]
        return [one["status"]["phase"] for one in found] == ["Succeeded"] * pods

    node.until(done, f"{name} has run")


def test_a_warm_up_labels_the_node(node: Node, lodefs: Installation, dataset: Dataset) -> None:
    """The example of a warm-up brings the dataset to the node, which gets a label that says so, and
    loses it when the pin is removed."""
    (job,) = objects("warmup.yaml")
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["image"] = f"docker.io/library/lodefs:{lodefs.tag}"
    node.apply(job)
    node.kubectl("wait", "--for=condition=complete", "job/warm-flickr30k", "--timeout=120s")
    label = "pinned.lodefs.dev/vision.flickr30k"
    found: list[str] = []

    def labelled() -> bool:
        listed = node.get("node", "node1")["metadata"]["labels"]
        found[:] = [listed[label]] if label in listed else []
        return bool(found)

    node.until(labelled, "the node has the label")
    assert dataset.commit.startswith(found[0])
    (proxy,) = lodefs.pods("proxy")
    inside = ["exec", "-n", NAMESPACE, proxy["metadata"]["name"], "-c", "proxy", "--"]
    node.kubectl(*inside, "/usr/bin/lodefs", "evict", REPO, "--pins-only")
    node.until(lambda: not labelled(), "the node has lost the label")


def test_an_unknown_repository_is_explained(node: Node, lodefs: Installation) -> None:
    """`kubectl describe pod` names what is missing, and what there is."""
    node.apply(pod("lost", inline("vision/nothing"), "true"))

    def explained() -> bool:
        return "vision/nothing" in "".join(_warnings(lodefs, "lost"))

    node.until(explained, "an event names the repository")
    assert any(
        "NotFound" in line and "there is no repository" in line
        for line in _warnings(lodefs, "lost")
    )


def test_a_volume_without_its_repository_is_explained(node: Node, lodefs: Installation) -> None:
    """The event of a volume that names no repository says which attribute is missing."""
    volume = inline(REPO)
    del volume["csi"]["volumeAttributes"]["repo"]
    node.apply(pod("nameless", volume, "true"))
    node.until(
        lambda: any(
            "InvalidArgument" in line and "repo" in line for line in _warnings(lodefs, "nameless")
        ),
        "an event names the attribute",
    )


def test_a_handle_that_is_too_long_is_explained(node: Node, lodefs: Installation) -> None:
    """The event of a PersistentVolume with a handle of 2 KiB says how long it may be, and the pod
    can be deleted."""
    volume, claim, _ = objects("claim.yaml")
    volume["spec"]["csi"]["volumeHandle"] = "v" * 2048
    node.apply(volume, claim, pod("long", claimed("flickr30k"), "true"))
    node.until(
        lambda: any("CSI allows 128" in line for line in _warnings(lodefs, "long")),
        "an event names the limit",
    )
    node.kubectl("delete", "pod", "long", "--timeout=60s")


def test_a_secret_that_is_missing_is_explained(node: Node, lodefs: Installation) -> None:
    """A namespace without the Secret that a volume names is told so."""
    volume = inline(REPO)
    volume["csi"]["nodePublishSecretRef"] = {"name": "no-such-token"}
    node.apply(pod("poor", volume, "true"))
    node.until(
        lambda: any("no-such-token" in line for line in _warnings(lodefs, "poor")),
        "an event names the secret",
    )


def test_the_proxy_may_come_late(node: Node, lodefs: Installation, dataset: Dataset) -> None:
    """A pod that is made while its node has no proxy waits, says why, and starts when it is
    there."""
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"lodefs.dev/none": "x"}}}}}
    patch = ["-n", NAMESPACE, "patch", "daemonset", f"{RELEASE}-proxy", "--type=merge", "-p"]
    node.kubectl(*patch, json.dumps(nowhere))
    node.until(lambda: not lodefs.pods("proxy"), "the proxy is gone")
    node.apply(pod("early", inline(REPO, commit="v1.0"), SUMS))
    try:
        node.until(
            lambda: any("Unavailable" in line for line in _warnings(lodefs, "early")),
            "an event says that the proxy is unavailable",
        )
    finally:
        nowhere["spec"]["template"]["spec"]["nodeSelector"] = {"lodefs.dev/none": None}  # type: ignore[dict-item]
        node.kubectl(*patch, json.dumps(nowhere))
    node.await_pods(["early"], "Succeeded", timeout_s=180.0)
    assert node.kubectl("logs", "early") == sums(dataset.source)


def test_a_pod_that_hangs_on_a_dead_store_can_be_deleted(
    node: Node, lodefs: Installation, tmp_path: Path
) -> None:
    """A pod whose reader waits for a store that does not answer is gone ten seconds after its
    grace period at the latest; its volume is unmounted."""
    (tmp_path / "big.bin").write_bytes(os.urandom(48 << 20))
    lodefs.push(tmp_path, "slow/big")
    grace_s = 5
    script = "until [ -e /tmp/go ]; do sleep 0.1; done; echo reads; cat /data/big.bin | wc -c"
    node.apply(pod("stuck", inline("slow/big"), script, grace_s=grace_s))
    node.await_pods(["stuck"], "Running")
    os.killpg(lodefs.s3.pid, signal.SIGSTOP)
    try:
        node.kubectl("exec", "stuck", "--", "touch", "/tmp/go")
        node.until(lambda: "reads" in node.kubectl("logs", "stuck"), "the reader reads")
        assert node.get("pod", "stuck")["status"]["phase"] == "Running"
        node.kubectl("delete", "pod", "stuck", "--wait=false")
        gone = lambda: node.try_kubectl("get", "pod", "stuck").returncode != 0  # noqa: E731
        took_s = node.until(gone, "the pod is gone")
        mounts = node.run("cat", "/proc/1/mountinfo").stdout
        assert "kubernetes.io~csi" not in mounts
    finally:
        os.killpg(lodefs.s3.pid, signal.SIGCONT)
    print(f"a pod with {grace_s} s of grace was gone after {took_s:.1f} s")
    assert took_s < grace_s + 10 + 5  # figures: ./run kube figures; here the machine may be busy


def _warnings(lodefs: Installation, name: str) -> list[str]:
    """The warnings that `kubectl describe pod` shows, a line each."""
    text = lodefs.describe(name)
    return re.findall(r"^\s+Warning\s+.*$", text[text.index("\nEvents:") :], re.MULTILINE)

"""Pods that read and compare without end, while what serves them is killed, upgraded, drained."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from loadtests.kube.installation import NAMESPACE, RELEASE, Installation, inline, pod
from loadtests.kube.node import ROOT, Node
from tests.kube.conftest import NEXT_TAG
from tests.kube.readers import REPO, Readers


@pytest.mark.parametrize("part", ["csi", "proxy"])
def test_killed(node: Node, lodefs: Installation, readers: Readers, part: str) -> None:
    """`kill -9` of driver or proxy fails no read, and the next pod gets its volume."""
    pid = lodefs.main_process(part)
    assert pid
    assert node.run("kill", "-9", str(pid)).returncode == 0
    readers.read_on()
    node.until(lambda: lodefs.main_process(part) not in (0, pid), f"another {part} runs")
    node.apply(pod("next", inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods(["next"], "Succeeded")
    assert node.kubectl("logs", "next") == "rose\n"
    readers.read_on()


def test_the_service_of_mounts_killed(node: Node, lodefs: Installation, readers: Readers) -> None:
    """`kill -9` of the mounter's service (not of its container's first process) fails no read."""
    listed = node.run("ps", "-eo", "pid,ppid,args").stdout.splitlines()
    found = [line.split() for line in listed if "/usr/bin/lodefs mounter " in line]
    first = {pid for pid, _, *_ in found}
    services = [pid for pid, parent, *_ in found if parent in first]
    assert services
    assert node.run("kill", "-9", services[0]).returncode == 0
    readers.read_on()
    node.apply(pod("next", inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods(["next"], "Succeeded")


def test_upgraded_and_rolled_back(node: Node, lodefs: Installation, readers: Readers) -> None:
    """`helm upgrade` replaces proxy, mounter and driver, and `helm rollback` again; no read
    fails."""
    before = _images(lodefs)
    values = lodefs.values()
    values["image"]["tag"] = NEXT_TAG
    lodefs.upgrade(values)
    assert all(image.endswith(f":{NEXT_TAG}") for image in _images(lodefs))
    readers.read_on()
    node.helm("rollback", RELEASE, "-n", NAMESPACE)
    lodefs.await_ready()
    node.until(lambda: _images(lodefs) == before, "the old pods are back")
    readers.read_on()
    node.apply(pod("next", inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods(["next"], "Succeeded")


def test_drained(node: Node, lodefs: Installation, readers: Readers) -> None:
    """`kubectl drain` takes the readers away and leaves lodefs; afterwards pods are served
    again."""
    drain = ["drain", "node1", "--ignore-daemonsets", "--force", "--timeout=120s"]
    node.kubectl(*drain)
    assert not node.kubectl("get", "pods", "-o", "name").strip()
    node.until(_unmounted(node), "no volume is mounted")
    assert {one["status"]["phase"] for one in lodefs.pods()} == {"Running"}
    node.kubectl("uncordon", "node1")
    node.apply(pod("next", inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods(["next"], "Succeeded")


def test_manifests_and_examples_are_accepted(node: Node, lodefs: Installation) -> None:
    """The API server takes the plain manifests and every example, and knows all their fields."""
    folder = ROOT / "deploy/kubernetes"
    for path in [folder / "lodefs.yaml", *sorted((folder / "examples").glob("*.yaml"))]:
        strict = ["apply", "--dry-run=server", "--server-side", "--force-conflicts", "-f"]
        done = node.try_kubectl(*strict, path)
        assert done.returncode == 0, f"{path.name}: {done.stderr}"
        assert "Warning" not in done.stderr, f"{path.name}: {done.stderr}"


def test_uninstalled_and_installed_again(node: Node, lodefs: Installation) -> None:
    """`helm uninstall`, once mounts that nobody uses are gone, leaves no object, pod or mount; an
    installation afterwards works."""
    node.apply(pod("before", inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods(["before"], "Succeeded")
    node.kubectl("delete", "pod", "before")
    node.until(lambda: "fuse.lodefs" not in _mounts(node), "no dataset is mounted")
    lodefs.uninstall()
    kinds = "daemonsets,deployments,configmaps,serviceaccounts,services,networkpolicies"
    left = node.kubectl("-n", NAMESPACE, "get", kinds, "-o", "name").split()
    assert not [name for name in left if RELEASE in name]
    assert node.try_kubectl("get", "csidriver", "csi.lodefs.dev").returncode != 0
    assert "fuse.lodefs" not in _mounts(node)
    node.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")
    lodefs.install()
    node.apply(pod("after", inline(REPO, commit="v1.0"), "cat /data/labels/a.txt"))
    node.await_pods(["after"], "Succeeded")


def _images(lodefs: Installation) -> list[str]:
    parts = [one for one in lodefs.pods() if "deletionTimestamp" not in one["metadata"]]
    return sorted(container["image"] for one in parts for container in one["spec"]["containers"])


def _mounts(node: Node) -> str:
    return node.run("cat", "/proc/1/mountinfo").stdout


def _unmounted(node: Node) -> Callable[[], bool]:
    return lambda: "kubernetes.io~csi" not in _mounts(node)

"""Pods that change datasets: one commit for each volume, however pod, driver and node end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from loadtests.kube.installation import (
    CREDENTIALS,
    NAMESPACE,
    RELEASE,
    Installation,
    claimed,
    inline,
    pod,
)
from loadtests.kube.node import ROOT, Node
from tests.kube.conftest import Dataset
from tests.kube.readers import REPO
from tests.kube.test_restarts import as_of_another_boot
from tests.support.chunkstore.child_process import ChildError

EXAMPLE = ROOT / "deploy/kubernetes/examples/results-job.yaml"
SECRET = "lodefs-writer"  # as in the example
# Writes files one after the other, and notes the last one that is on the disk.
STORY = (
    "n=0; while n=$((n+1)); do echo $n >/data/n.$n; sync /data/n.$n /data; echo $n >/tmp/synced;"
    " sleep 0.05; done"
)


class Writing:
    """lodefs on a node whose volumes take changes, and the branches of REPO."""

    def __init__(self, lodefs: Installation, dataset: Dataset) -> None:
        self.lodefs = lodefs
        self.node = lodefs.node
        self._base = dataset.commit

    def messages(self, branch: str) -> list[str]:
        """The messages of the commits of a branch since the dataset was pushed, newest first."""
        try:
            lines = self.lodefs.lodefs("log", "--json", f"{REPO}@{branch}").splitlines()
        except ChildError:  # no pod has made it yet
            return []
        commits = [json.loads(line) for line in lines]
        return [one["message"] for one in commits if one["commit"] != self._base]

    def await_commit(self, branch: str) -> str:
        """The message of the only commit of a branch, once it is there."""
        self.node.until(lambda: bool(self.messages(branch)), f"a commit of {branch}")
        self.await_closed()
        (message,) = self.messages(branch)
        return message

    def await_closed(self) -> None:
        """Waits until the driver has neither a volume nor changes any more."""
        state = self.node.folder / "var-lib/lodefs/csi"
        patterns = ("volumes/*.json", "changes/*", "writable/*")
        self.node.until(
            lambda: not any([*state.glob(one)] for one in patterns), "all volumes are closed"
        )

    def names(self, branch: str) -> set[str]:
        """The names in the top directory of a branch."""
        lines = self.lodefs.lodefs("ls", f"{REPO}@{branch}").splitlines()
        return {line.rstrip("/") for line in lines}

    def text(self, branch: str, name: str) -> str:
        """The content of a file."""
        return self.lodefs.lodefs("cat", f"{REPO}@{branch}:{name}")

    def synced(self, name: str) -> int:
        """The number of files that a pod with STORY has on the disk."""
        done = self.node.try_kubectl("exec", name, "--", "cat", "/tmp/synced")
        return int(done.stdout or 0) if done.returncode == 0 else 0

    def await_synced(self, name: str, more: int = 10) -> int:
        """Waits until a pod has written ``more`` files, and returns how many it has in all."""
        wanted = self.synced(name) + more
        self.node.until(lambda: self.synced(name) >= wanted, f"{name} writes on")
        return self.synced(name)

    def kill_driver(self) -> None:
        """kill -9."""
        pid = self.lodefs.main_process("csi")
        assert pid
        assert self.node.run("kill", "-9", str(pid)).returncode == 0

    def in_driver(self, *words: str) -> str:
        """A command of lodefs in the driver's pod."""
        (driver,) = self.lodefs.pods("csi")
        name = driver["metadata"]["name"]
        return self.node.kubectl("exec", "-n", NAMESPACE, name, "--", "lodefs", *words)

    def commit_by_hand(self, place: str, branch: str) -> None:
        """`lodefs commit` in the driver's pod, again while the driver tries itself."""

        def is_made() -> bool:
            try:
                self.in_driver("commit", place, "--branch", branch, "-m", "by hand")
            except ChildError as error:
                if "another command works on" not in str(error):
                    raise
                return False
            return True

        self.node.until(is_made, f"a commit of {branch} by hand")

    def set_driver_environment(self, *words: str) -> None:
        """`kubectl set env`; returns when the driver has been started again."""
        self.node.kubectl("-n", NAMESPACE, "set", "env", f"daemonset/{RELEASE}-csi", *words)
        self.lodefs.await_ready()
        self.node.until(lambda: len(self.lodefs.pods("csi")) == 1, "the old driver is gone")


@pytest.fixture(scope="module")
def _switched_on(lodefs: Installation) -> Iterator[None]:
    values = lodefs.values()
    values["csi"] = {"writable": {"credentials": "secret"}}
    lodefs.upgrade(values)
    yield
    lodefs.upgrade(lodefs.values())


@pytest.fixture
def writing(
    _switched_on: None, node: Node, lodefs: Installation, dataset: Dataset
) -> Iterator[Writing]:
    keys = [f"--from-literal={key}={value}" for key, value in CREDENTIALS.items()]
    node.kubectl("create", "secret", "generic", SECRET, *keys)
    made = Writing(lodefs, dataset)
    yield made
    node.kubectl("delete", "pods,jobs", "--all", "--timeout=120s")
    made.await_closed()


def changed(branch: str, **attributes: str) -> dict[str, Any]:
    """An ephemeral volume that takes changes."""
    volume = inline(REPO, write="true", branch=branch, **attributes)
    volume["csi"] |= {"readOnly": False, "nodePublishSecretRef": {"name": SECRET}}
    return volume


def test_the_example_commits(writing: Writing, dataset: Dataset) -> None:
    """The Job of the documentation runs as it stands: each of its pods makes one commit, of what it
    has written, to a branch of its own."""
    writing.node.kubectl("apply", "-f", EXAMPLE)
    writing.node.kubectl("wait", "--for=condition=complete", "job/results", "--timeout=120s")
    files = sum(path.is_file() for path in dataset.source.rglob("*"))
    pods = json.loads(writing.node.kubectl("get", "pods", "-o", "json"))["items"]
    found = set()
    for name in (one["metadata"]["name"] for one in pods):
        branch = f"results.{name}"
        assert writing.await_commit(branch).endswith(f"\n\npod default/{name}")
        (new,) = writing.names(branch) - writing.names("main")
        assert writing.text(branch, new).strip() == str(files)
        found.add(new)
    assert found == {"count-0.txt", "count-1.txt"}


def test_pods_that_fail(writing: Writing) -> None:
    """A pod that ends badly has its changes committed, or given up by `commit: discard`."""
    fails = "rm -r /data/labels; echo new >/data/new; exit 1"
    writing.node.apply(
        pod("keeps", changed("keeps"), fails),
        pod("discards", changed("discards", commit="discard"), fails),
    )
    writing.node.await_pods(["keeps", "discards"], "Failed")
    assert writing.await_commit("keeps").endswith("pod default/keeps")
    assert "labels" in writing.names("main")
    assert "labels" not in writing.names("keeps")
    assert writing.messages("discards") == []
    assert writing.names("discards") == writing.names("main")


def test_a_driver_that_is_killed(writing: Writing) -> None:
    """Killed while a pod writes, and again when the pod has gone: nothing that was synced is lost,
    and there is one commit."""
    writing.node.apply(pod("writer", changed("killed"), STORY))
    writing.node.await_pods(["writer"], "Running")
    writing.await_synced("writer")
    writing.kill_driver()
    synced = writing.await_synced("writer")
    writing.node.kubectl("delete", "pod", "writer", "--timeout=120s")
    writing.kill_driver()
    assert writing.await_commit("killed").endswith("pod default/writer")
    assert writing.names("killed") >= {f"n.{n}" for n in range(1, synced + 1)}
    assert writing.text("killed", f"n.{synced}") == f"{synced}\n"


def test_a_persistent_volume(writing: Writing) -> None:
    """Pods of one claim see each other's changes, a reader does not, and all that they have changed
    is one commit. A pod of a user writes by its group."""
    source = changed("shared")["csi"]
    del source["readOnly"]
    secret = {"name": SECRET, "namespace": "default"}
    spec = {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "1Gi"},
        "storageClassName": "",
        "csi": source | {"volumeHandle": "shared", "nodePublishSecretRef": secret},
    }
    claim = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": "shared",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    writing.node.apply(_object("PersistentVolume", spec), _object("PersistentVolumeClaim", claim))
    volume = claimed("shared")
    volume["persistentVolumeClaim"]["readOnly"] = False
    user: dict[str, Any] = {"securityContext": {"runAsUser": 1000, "fsGroup": 2000}}
    waits = "until [ -e /data/go ]; do sleep 0.1; done"
    writing.node.apply(pod("waits", volume, f"{waits}; mv /data/labels /data/moved", **user))
    writing.node.await_pods(["waits"], "Running")
    writing.node.apply(pod("reads", claimed("shared"), "sleep 5; ls /data; touch /data/x"))
    writing.node.apply(pod("goes", volume, "echo 1 >/data/go", **user))
    writing.node.await_pods(["waits", "goes"], "Succeeded")
    writing.node.await_pods(["reads"], "Failed")
    shown = writing.node.kubectl("logs", "reads").split()
    assert {"go", "moved"}.isdisjoint(shown)
    assert "Read-only" in " ".join(shown)
    message = writing.await_commit("shared")
    assert message == "Kubernetes volume shared\n\npod default/waits\npod default/goes"
    assert writing.names("shared") == writing.names("main") - {"labels"} | {"go", "moved"}


def _object(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "shared"}, "spec": spec}


def test_no_credentials(writing: Writing) -> None:
    """The event of a pod whose volume names no Secret says which one it needs."""
    volume = changed("none")
    del volume["csi"]["nodePublishSecretRef"]
    writing.node.apply(pod("poor", volume, "true"))
    told = "there are no credentials to write with"
    writing.node.until(lambda: told in writing.lodefs.describe("poor"), "an event says so")
    assert writing.messages("none") == []


def test_a_node_that_loses_its_power(writing: Writing) -> None:
    """After a reboot a pod that comes back goes on with its changes. Those of one that does not are
    listed in the driver's pod, and committed there by hand, since its credentials are gone."""
    node = writing.node
    names = {"again": "Always", "once": "Never"}
    for name, policy in names.items():
        node.apply(pod(name, changed(name), STORY, restartPolicy=policy))
    node.await_pods([*names], "Running")
    synced = {name: writing.await_synced(name) for name in names}
    state = node.folder / "var-lib/lodefs/mounter/mounts"
    writing.lodefs.reboot(lambda: as_of_another_boot(state))
    writing.lodefs.await_ready()
    node.await_pods(["again"], "Running", timeout_s=240.0)
    writing.await_synced("again")
    node.kubectl("delete", "pod", "once", "--timeout=120s")
    listed: list[dict[str, Any]] = []

    def is_listed() -> bool:
        lines = writing.in_driver("mounts", "--uncommitted", "--json").splitlines()
        listed[:] = [one for one in map(json.loads, lines) if one["branch"] == "once"]
        return bool(listed) and not listed[0]["mounted"]

    node.until(is_listed, "the changes of a pod that does not come back are listed")
    writing.set_driver_environment("--from=secret/lodefs-s3")
    writing.commit_by_hand(listed[0]["mountpoint"], "once")
    writing.set_driver_environment(*(f"{key}-" for key in CREDENTIALS))
    node.kubectl("delete", "pod", "again", "--timeout=120s")
    assert writing.await_commit("again").endswith("pod default/again")
    assert writing.messages("once") == ["by hand"]
    for name, number in synced.items():
        assert writing.names(name) >= {f"n.{n}" for n in range(1, number + 1)}
        assert writing.text(name, f"n.{number}") == f"{number}\n"

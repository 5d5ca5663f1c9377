"""lodefs on a node, as a user installs it: an S3 server, a store, the chart, pods that read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtests.kube import configs, images
from loadtests.kube.node import ROOT, Node
from loadtests.services import moto
from tests.support.chunkstore.child_process import Child, ChildError

NAMESPACE = "lodefs"
RELEASE = "lodefs"
CHART = ROOT / "deploy/helm/lodefs"
BUCKET = "datasets"
STORE = f"s3://{BUCKET}/store"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE", "AWS_SECRET_ACCESS_KEY": "moto"}
S3_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 180.0
MOUNTER = f"daemonset/{RELEASE}-mounter"
PARTS = ("proxy", "mounter", "csi")  # DaemonSets
# All objects of a bucket, to files of a directory and back.
_SAVE = """
import sys, boto3, pathlib, urllib.parse
bucket, folder = boto3.resource("s3").Bucket(sys.argv[1]), pathlib.Path(sys.argv[2])
for one in bucket.objects.all():
    (folder / urllib.parse.quote(one.key, "")).write_bytes(one.get()["Body"].read())
"""
_LOAD = """
import sys, boto3, pathlib, urllib.parse
bucket, folder = boto3.resource("s3").Bucket(sys.argv[1]), pathlib.Path(sys.argv[2])
bucket.create()
for path in folder.iterdir():
    bucket.put_object(Key=urllib.parse.unquote(path.name), Body=path.read_bytes())
"""
S3_PORT = 9000
ENDPOINT = f"http://{configs.NODE_ADDRESS}:{S3_PORT}"


class Installation:
    """lodefs on ``node``. ``s3``: the S3 server's process."""

    def __init__(self, node: Node, s3: Child, tag: str) -> None:
        self.node = node
        self.s3 = s3
        self.tag = tag
        self.home = node.folder / "home"
        self.home.mkdir()
        (self.home / "lodefs.toml").touch()

    def lodefs(self, *words: str | Path) -> str:
        """A command of this checkout, inside of the node, on the store. ChildError."""
        return self._python("-m", "lodefs.main", *words)

    def python(self, script: str, *words: str | Path) -> str:
        """A script inside of the node, for which boto3 finds the S3 server. ChildError."""
        return self._python("-c", script, *words)

    def reboot(self, meanwhile: Callable[[], None]) -> None:
        """The node's power fails, and comes back. What the S3 server has is carried over: it stands
        for one that is elsewhere. ``meanwhile`` is called while the node is down."""
        kept = self.node.folder / "s3"
        kept.mkdir(exist_ok=True)
        self.python(_SAVE, BUCKET, kept)
        self.node.reboot(meanwhile)
        self.s3.kill()
        self.s3 = start_s3(self.node)
        self.python(_LOAD, BUCKET, kept)

    def push(self, source: Path, repo: str) -> str:
        """Push a directory; the commit."""
        return str(json.loads(self.lodefs("push", source, repo, "--json"))["commit"])

    def values(self, **more: Any) -> dict[str, Any]:
        """The chart's values for this node, ``more`` at their top level."""
        return {
            "image": {"repository": images.LODEFS, "tag": self.tag, "pullPolicy": "Never"},
            "store": {
                "url": STORE,
                "endpointUrl": ENDPOINT,
                "region": "us-east-1",
                "existingSecret": "lodefs-s3",
            },
            "proxy": {"cache": {"size": "4GiB"}},
            "nodeLabels": {"enabled": True},
            **more,
        }

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        """`helm install` with the credentials as a Secret; returns when all of it is ready."""
        self.node.kubectl("create", "namespace", NAMESPACE)
        secret = [f"--from-literal={key}={value}" for key, value in CREDENTIALS.items()]
        self.node.kubectl("-n", NAMESPACE, "create", "secret", "generic", "lodefs-s3", *secret)
        self._helm("install", values or self.values())

    def upgrade(self, values: Mapping[str, Any]) -> None:
        """`helm upgrade`; returns when all of it is ready."""
        self._helm("upgrade", values)

    def uninstall(self) -> None:
        """`helm uninstall`; returns when its pods are gone."""
        self.node.helm("uninstall", RELEASE, "-n", NAMESPACE)
        self.node.until(lambda: not self.pods(), "the release's pods are gone")

    def roll_out_a_mounter_that_fails(self) -> str:
        """Begin the rollout of a mounter that takes the mounts over, and is never ready. Returns
        the old one's pod when the new one serves."""
        [old] = self._mounters()
        never = {"exec": {"command": ["/usr/bin/lodefs", "mounter-ready", "--socket", "/none"]}}
        container = {"name": "mounter", "startupProbe": never}
        patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
        self.node.kubectl("-n", NAMESPACE, "patch", MOUNTER, "-p", json.dumps(patch))
        self.node.until(lambda: "waiting until it ends" in self.log(old), "the old one has retired")
        [new] = [name for name in self._mounters() if name != old]
        self.node.until(lambda: "serving" in self.log(new), "the new one serves")
        return str(old)

    def undo_rollout_of_mounter(self, old: str) -> float:
        """Undo it. Returns, when the old mounter alone is there and has served again, the seconds
        that this took."""
        before = self.log(old).count("serving")
        self.node.kubectl("-n", NAMESPACE, "rollout", "undo", MOUNTER)
        took_s = self.node.until(
            lambda: self._mounters() == [old] and self.log(old).count("serving") > before,
            "the old one serves again, alone",
        )
        self.await_ready()
        return took_s

    def log(self, pod: str) -> str:
        """What a pod of the release has written; "" where there is none."""
        return self.node.try_kubectl("-n", NAMESPACE, "logs", pod).stdout

    def _mounters(self) -> list[str]:
        return [one["metadata"]["name"] for one in self.pods("mounter")]

    def await_ready(self) -> None:
        """Waits until every DaemonSet has its pods, of the newest version, and the kubelet knows
        the driver."""
        for part in PARTS:
            name = f"daemonset/{RELEASE}-{part}"
            wait = [f"--timeout={READY_TIMEOUT_S:.0f}s", "-n", NAMESPACE]
            self.node.kubectl("rollout", "status", name, *wait, timeout_s=READY_TIMEOUT_S + 10)
        self.node.until(self._is_registered, "the kubelet knows the driver")

    def pods(self, part: str = "") -> list[dict[str, Any]]:
        """The release's pods, of one part or all."""
        selector = f"app.kubernetes.io/instance={RELEASE}"
        selector += f",app.kubernetes.io/component={part}" if part else ""
        found = self.node.kubectl("-n", NAMESPACE, "get", "pods", "-l", selector, "-o", "json")
        items: list[dict[str, Any]] = json.loads(found)["items"]
        return items

    def main_process(self, part: str) -> int:
        """The process id, inside of the node, of a part's container; 0 while there is none."""
        command = {"proxy": "serve", "csi": "csi", "mounter": "mounter"}[part]
        listed = self.node.run("ps", "-eo", "pid,args").stdout.splitlines()
        found = [line.split() for line in listed if f"/usr/bin/lodefs {command} " in f"{line} "]
        return int(found[0][0]) if found else 0

    def describe(self, pod: str) -> str:
        """`kubectl describe pod`."""
        return self.node.kubectl("describe", "pod", pod)

    def _python(self, *words: str | Path) -> str:
        environment = {
            **CREDENTIALS,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": ENDPOINT,
            "HOME": str(self.home),
            "LODEFS_CONFIG": str(self.home / "lodefs.toml"),
            "LODEFS_STORE": STORE,
            "PYTHONPATH": str(ROOT),
        }
        done = self.node.run(sys.executable, *words, environment=environment, timeout_s=180.0)
        if done.returncode != 0:
            raise ChildError(f"{' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def _helm(self, verb: str, values: Mapping[str, Any]) -> None:
        file = self.node.folder / "values.json"
        file.write_text(json.dumps(values))
        self.node.helm(verb, RELEASE, CHART, "-n", NAMESPACE, "--values", file)
        self.await_ready()

    def _is_registered(self) -> bool:
        drivers = "jsonpath={.spec.drivers[*].name}"
        done = self.node.try_kubectl("get", "csinode", configs.NODE, "-o", drivers)
        return "csi.lodefs.dev" in done.stdout.split()


@contextmanager
def installation(node: Node, tag: str) -> Iterator[Installation]:
    """A store on an S3 server inside of the node; nothing is installed yet."""
    made = Installation(node, start_s3(node), tag)
    try:
        made.python(f"import boto3; boto3.resource('s3').Bucket({BUCKET!r}).create()")
        made.lodefs("init", STORE)
        yield made
    finally:
        made.s3.kill()


def start_s3(node: Node) -> Child:
    """An S3 server, which serves now. It keeps all in memory."""
    s3 = node.start(sys.executable, "-c", moto.PROGRAM, configs.NODE_ADDRESS, str(S3_PORT))
    s3.wait_for(r"^port \d+$", timeout_s=S3_TIMEOUT_S)
    return s3


def inline(repo: str, **attributes: str) -> dict[str, Any]:
    """An ephemeral volume of a pod."""
    source = {
        "driver": "csi.lodefs.dev",
        "readOnly": True,
        "volumeAttributes": {"repo": repo, **attributes},
    }
    return {"csi": source}


def claimed(claim: str) -> dict[str, Any]:
    """A volume that is a claim."""
    return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}


def pod(
    name: str, volume: Mapping[str, Any], script: str, *, grace_s: int = 1, **spec: Any
) -> dict[str, Any]:
    """A pod that runs a shell script once, with a volume on /data."""
    container = {
        "name": "main",
        "image": images.BOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "data", **volume}],
            **spec,
        },
    }


def memory_bytes(pid: int, node: Node) -> int:
    """What a process of the node holds for itself alone, by its share of what is shared (PSS)."""
    text = node.run("cat", f"/proc/{pid}/smaps_rollup").stdout
    (line,) = (line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


__all__ = ["Installation", "claimed", "inline", "installation", "memory_bytes", "pod"]

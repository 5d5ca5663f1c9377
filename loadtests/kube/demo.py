"""`./run kube demo`: from nothing to a pod that has read a dataset and compared every byte."""

from __future__ import annotations

import sysconfig
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from loadtests.kube import images, installation
from loadtests.kube.installation import Installation, inline, pod
from loadtests.kube.node import node
from tests.support.chunkstore.child_process import private_directory

REPO = "python/json"
TAG = "demo"
# The sums come with the pod, by a way of their own: not through the volume that is checked.
CHECK = "cd /data && sha256sum -c /sums/SHA256SUMS >/tmp/out && echo compared $(wc -l </tmp/out)"

Say = Callable[[str], None]


def run(kubenode: Path, say: Say) -> None:
    """Runs the whole demo. Raises: ChildError if a step fails."""
    clock = Clock(say)
    with private_directory("lkd-") as folder, prepared(kubenode, folder, clock.tell) as made:
        source = Path(sysconfig.get_path("stdlib"), "json")
        with ThreadPoolExecutor(1) as pool:
            pushing = pool.submit(made.push, source, REPO)
            made.install()
            commit = pushing.result()
        clock.tell(f"lodefs is installed by helm; {REPO}@{commit[:12]} is pushed")
        compared = read_in_pod(made, source, commit)
        clock.tell(f"a pod has read {compared} files through its volume; every byte is right")


@contextmanager
def prepared(kubenode: Path, folder: Path, say: Say) -> Iterator[Installation]:
    """A node that has an S3 server with a store and the image of lodefs, which is built while the
    node starts."""
    with ThreadPoolExecutor(1) as pool:
        building = pool.submit(images.lodefs_image, folder / "lodefs.tar", TAG)
        with node(kubenode, images.box_images(folder)) as made:
            say("the node is ready: Kubernetes 1.34")
            with installation.installation(made, TAG) as lodefs:
                say("an S3 server with a store runs on it")
                made.import_image(building.result())
                say("the image of lodefs is built and imported")
                yield lodefs


def read_in_pod(made: Installation, source: Path, commit: str) -> int:
    """The number of files that a pod has read and verified. Raises: ChildError."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    sums = "".join(
        f"{sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(source)}\n" for path in files
    )
    name = "compare"
    kind = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    made.node.apply({**kind, "data": {"SHA256SUMS": sums}})
    reader = pod(name, inline(REPO, commit=commit), CHECK)
    reader["spec"]["volumes"].append({"name": "sums", "configMap": {"name": name}})
    mount = {"name": "sums", "mountPath": "/sums"}
    reader["spec"]["containers"][0]["volumeMounts"].append(mount)
    made.node.apply(reader)
    made.node.await_pods([name], "Succeeded")
    told = made.node.kubectl("logs", name)
    if told.strip() != f"compared {len(files)}":
        raise AssertionError(f"the pod says {told!r}; there are {len(files)} files")
    return len(files)


class Clock:
    """Reports steps, with the seconds since the start."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    def tell(self, step: str) -> None:
        """One line."""
        self._say(f"{self.elapsed_s:5.1f} s  {step}")


__all__ = ["Clock", "prepared", "read_in_pod", "run"]

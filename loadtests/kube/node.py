"""The node, seen from outside: started, asked, ended without a trace.

Needs root, the Debian packages containerd, runc, containernetworking-plugins, iproute2, openssl,
and kubenode (``loadtests.kube.binary``). It lives in mount, network, process, ipc and host name
namespaces of its own, with no way out of its network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loadtests.kube import configs
from tests.support.chunkstore.child_process import Child, ChildError, private_directory

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 330.0
CALL_TIMEOUT_S = 180.0
_POLL_S = 0.1
_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts")


class Node:
    """A node that runs. All that it writes lies below ``folder``."""

    def __init__(self, folder: Path, kubenode: Path, images: Sequence[Path]) -> None:
        """Returns when pods can run; ChildError with the logs' ends where that fails."""
        self.folder = folder
        self.kubenode = kubenode
        (folder / "images").mkdir()
        for image in images:
            os.link(image, folder / "images" / image.name)
        self._init = 0
        self._start()

    @property
    def argv_inside(self) -> list[str]:
        """What a command begins with that runs inside of the node, as its root."""
        return ["nsenter", "-t", str(self._init), "-m", "-n", "-p", "-i", "-u"]

    def run(
        self,
        *words: str | Path,
        stdin: str = "",
        timeout_s: float = CALL_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """A command inside of the node, however it ends."""
        return subprocess.run(
            [*self.argv_inside, *map(str, words)],
            cwd="/",
            input=stdin,
            env={**os.environ, "KUBECONFIG": f"{self.folder}/admin.conf", **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *words: str | Path, environment: Mapping[str, str] | None = None) -> Child:
        """A command inside of the node that runs on."""
        return Child([*self.argv_inside, *words], env=environment, cwd=ROOT)

    def kubectl(
        self, *words: str | Path, stdin: str = "", timeout_s: float = CALL_TIMEOUT_S
    ) -> str:
        """One call of kubectl: its output. ChildError where it fails."""
        done = self.try_kubectl(*words, stdin=stdin, timeout_s=timeout_s)
        if done.returncode != 0:
            raise ChildError(f"kubectl {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def try_kubectl(
        self, *words: str | Path, stdin: str = "", timeout_s: float = CALL_TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        """One call of kubectl, however it ends."""
        return self.run(self.kubenode, "kubectl", *words, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *words: str | Path, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """One call of helm: its output. ChildError where it fails."""
        home = {"HELM_CACHE_HOME": f"{self.folder}/helm", "HOME": str(self.folder)}
        done = self.run(self.kubenode, "helm", *words, timeout_s=timeout_s, environment=home)
        if done.returncode != 0:
            raise ChildError(f"helm {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """`kubectl apply` of objects; ChildError with the API server's words."""
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object; ChildError where there is none."""
        found = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        assert isinstance(found, dict)
        return found

    def import_image(self, archive: Path) -> None:
        """Have an image, of a docker archive."""
        done = self.run("ctr", "-n", "k8s.io", "images", "import", archive)
        if done.returncode != 0:
            raise ChildError(f"{archive}: {done.stderr}")

    def await_pods(self, names: Sequence[str], phase: str, timeout_s: float = 120.0) -> float:
        """Waits until all of these pods are in a phase. Returns the seconds it took; ChildError
        where one fails, or after ``timeout_s``."""
        return self.until(lambda: self._are(names, phase), f"{phase}: {names}", timeout_s)

    def _are(self, names: Sequence[str], phase: str) -> bool:
        found = json.loads(self.kubectl("get", "pods", "-o", "json"))["items"]
        phases = {one["metadata"]["name"]: one["status"].get("phase") for one in found}
        if failed := [name for name in names if phases.get(name) == "Failed" != phase]:
            raise ChildError(f"{failed[0]} failed: {self.try_kubectl('logs', failed[0]).stdout}")
        return all(phases.get(name) == phase for name in names)

    def until(self, is_so: Callable[[], bool], what: str, timeout_s: float = 120.0) -> float:
        """Waits until ``is_so()``. Returns the seconds it took; ChildError with the cluster's pods
        and events after ``timeout_s``."""
        began_s = time.monotonic()
        while not is_so():
            if self._child.process.poll() is not None:
                raise self._child.failed("ended")
            if time.monotonic() - began_s > timeout_s:
                events = self.try_kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").stdout
                pods = self.try_kubectl("get", "pods", "-A", "-o", "wide").stdout
                raise ChildError(f"late: {what}\n{pods}\n{events[-6000:]}")
            time.sleep(_POLL_S)
        return time.monotonic() - began_s

    def log(self, component: str) -> str:
        """What a component has written."""
        return (self.folder / "log" / component).read_text(errors="replace")

    def restart_kubelet(self) -> None:
        """kill -9; node_init starts the next one."""
        [pid] = self._pids_of("kubelet")
        self.run("kill", "-9", str(pid))
        self.until(lambda: self._pids_of("kubelet") not in ([], [pid]), "another kubelet")

    def reboot(self, meanwhile: Callable[[], None]) -> None:
        """As a power failure: no process is told, and what was on disk is there afterwards. All
        that was started inside of the node is gone. Returns when pods can run again."""
        self.close()
        meanwhile()
        (self.folder / "ready").unlink()
        self._start()

    def _start(self) -> None:
        self._child = Child(
            [
                *("unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
                *("--propagation", "private", sys.executable),
                *("-m", "loadtests.kube.node_init", self.folder, self.kubenode),
            ],
            cwd=ROOT,
        )
        try:
            self._init = self._first_process()
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def _pids_of(self, component: str) -> list[int]:
        """Processes of a component, by their numbers inside of the node."""
        listed = self.run("ps", "-eo", "pid,args").stdout.splitlines()
        begin = f"{self.kubenode} {component} "
        found = (line.strip().partition(" ") for line in listed)
        return [int(pid) for pid, _, args in found if args.strip().startswith(begin)]

    def close(self) -> None:
        """Ends all processes, mounts and cgroups of the node, in whatever state they are."""
        if self._init:
            with suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
        with suppress(ChildError):
            self._child.wait()
        self._child.kill()
        top, name = Path("/sys/fs/cgroup"), configs.cgroup(self.folder)
        for own in [top / name, *top.glob(f"*/{name}")]:
            for folder, _, _ in os.walk(own, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)

    def _first_process(self) -> int:
        """The process id, here, of the first process in the namespaces."""
        children = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children")
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._child.process.poll() is None:
            if found := children.read_text().split():
                return int(found[0])
            self._child.pause()
        raise self._child.failed("has no child")

    def _await_ready(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (self.folder / "ready").exists():
            if self._child.process.poll() is not None or time.monotonic() > deadline_s:
                logs = sorted((self.folder / "log").glob("*"))
                tails = "".join(f"\n{p.name}: {p.read_text()[-800:]}" for p in logs)
                raise ChildError(f"{self._child.failed('is not ready')}{tails}")
            self._child.pause()


def missing() -> str:
    """What the node lacks on this machine; "" where it can be started."""
    if os.geteuid() != 0:
        return "root"
    programs = ("containerd", "ctr", "runc", "ip", "openssl", "unshare", "nsenter")
    found = [name for name in programs if not shutil.which(name)]
    if not Path(configs.PLUGINS, "bridge").exists():
        found.append("containernetworking-plugins")
    return ", ".join(found)


@contextmanager
def node(kubenode: Path, images: Sequence[Path]) -> Iterator[Node]:
    """A running node, which has ``images`` (docker archives); it is ended afterwards."""
    with private_directory("lk-") as folder:
        made = Node(folder, kubenode, images)
        try:
            yield made
        finally:
            made.close()

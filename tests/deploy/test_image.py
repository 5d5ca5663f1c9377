"""The image, and the pods of the chart as it renders them, run by a real dockerd.

Only where LODEFS_TEST_PACKAGES=1 asks for it (`./run test packages`): the image takes a minute to
build. tests/kube has the chart on a real kubelet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from loadtests.kube.images import lodefs_image
from loadtests.services.dockerd import Dockerd
from tests.deploy.conftest import Report
from tests.deploy.node_processes import SOCKET, NodeProcesses, check_reads, write_files
from tests.deploy.test_chart import rendered
from tests.support.chunkstore.child_process import run
from tests.support.csi.kubelet import EPHEMERAL, Kubelet
from tests.support.mount.mounts import until

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAME, TAG = "docker.io/library/lodefs", "try"
LOAD_TIMEOUT_S = 240.0
USER = 65532  # of the image
# What lodefs uses of a privileged container: a machine of tests may not have all that is in it.
PRIVILEGED = ["--cap-add", "SYS_ADMIN", "--device", "/dev/fuse"]
PRIVILEGED += ["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
SIZES = {"one.bin": 8 << 20, "two.bin": 8 << 20}
PROXY_IN_POD = "/run/lodefs/proxy/proxy.sock"
DIGEST = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())"
DRIVER_SOCKET = "plugins/csi.lodefs.dev/csi.sock"


@pytest.fixture(scope="module")
def image(workshop: Path, dockerd: Dockerd) -> str:
    """The image, in a dockerd."""
    archive = lodefs_image(workshop / "image.tar", TAG)
    dockerd.docker("load", "-i", archive, timeout_s=LOAD_TIMEOUT_S)
    return f"{NAME}:{TAG}"


class Host:
    """Directories of a machine whose containers these are; what they leave goes at the end."""

    def __init__(self, dockerd: Dockerd, image: str, folder: Path, stack: ExitStack) -> None:
        self.dockerd = dockerd
        self.image = image
        self.folder = folder
        self.digests = write_files(folder / "source", SIZES)
        store = str(self.directory("/srv/store"))
        lodefs = [sys.executable, "-m", "lodefs.main", "--store", store]
        environment = {"HOME": str(folder), "LODEFS_CONFIG": os.devnull}
        run([*lodefs, "init", store], env=environment, cwd=ROOT)
        run([*lodefs, "push", folder / "source", "try"], env=environment, cwd=ROOT)
        run(["chmod", "-R", "a+rX", store])
        self._stack = stack

    def directory(self, path: str, owner: int = 0) -> Path:
        """A directory of the machine, which is at that path in containers; whose it is when it is
        made."""
        found = self.folder / "root" / path[1:]
        if not found.exists():
            found.mkdir(parents=True)
            os.chown(found, owner, owner)
        return found

    def start(self, *words: str | Path) -> str:
        """A container that runs on; its id."""
        found = self.dockerd.docker("run", "-d", "--network", "none", *words)
        self._stack.callback(self.dockerd.try_docker, "rm", "--force", found)
        return found

    def pid(self, container: str) -> int:
        """The first process of a container."""
        return int(self.dockerd.docker("inspect", "-f", "{{.State.Pid}}", container))

    def digest(self, container: str, path: str) -> str:
        """The SHA-256 of a file, read in a container."""
        python = ("/usr/bin/python3.11", "-IS", "-c", DIGEST)
        return self.dockerd.docker("exec", container, *python, path)

    def until(self, container: str, condition: Callable[[], bool]) -> None:
        """Waits for what a container is to bring about; else AssertionError has its log."""
        try:
            until(condition)
        except AssertionError as error:
            done = self.dockerd.try_docker("logs", container)
            raise AssertionError(done.stdout + done.stderr) from error


@pytest.fixture
def host(dockerd: Dockerd, image: str, workshop: Path, tmp_path: Path) -> Iterator[Host]:
    """A machine with a store; its cache lies on a real disk, as the workshop."""
    folder = workshop / tmp_path.name
    folder.mkdir()
    run(["mount", "--bind", folder, folder])
    run(["mount", "--make-rshared", folder])
    try:
        with ExitStack() as stack:
            yield Host(dockerd, image, folder, stack)
    finally:
        run(["umount", "-R", "-l", folder])


def test_the_image(host: Host, dockerd: Dockerd, report: Report) -> None:
    """A proxy as its user, with no privilege; a mount beside it. Data processes fetch, and the
    kernel reads by itself."""
    places = [
        word
        for path in ("/run/lodefs", "/var/cache/lodefs", "/srv/store")
        for word in ("-v", f"{host.directory(path, USER)}:{path}")
    ]
    proxy = host.start(
        *(*places, "--cap-drop", "ALL", "--read-only", "--tmpfs", "/tmp", host.image),
        *("serve", "--store", "/srv/store", "--socket", SOCKET, "--cache", "/var/cache/lodefs"),
    )
    node = NodeProcesses(host.pid(proxy))
    host.until(proxy, (host.directory("/run/lodefs", USER) / "proxy.sock").exists)
    mount = host.start(
        *(*places, "-v", f"{host.directory('/data')}:/data", *PRIVILEGED, "--user", "0"),
        *("-e", f"LODEFS_PROXY=unix:{SOCKET}", host.image),
        *("mount", "--foreground", "try", "/data"),
    )
    is_there = ("/usr/bin/python3.11", "-IS", "-c", "open('/data/one.bin')")
    host.until(mount, lambda: not dockerd.try_docker("exec", mount, *is_there).returncode)
    seen = check_reads(node, host.digests, lambda name: host.digest(mount, f"/data/{name}"))
    report("image", seen)


@pytest.mark.parametrize("user", [USER, 1_000_650_000])
def test_a_command_of_any_user(host: Host, dockerd: Dockerd, user: int) -> None:
    """A container without volumes for lodefs keeps its caches in its home directory."""
    store = host.directory(f"/srv/of-{user}", user)
    words = ["run", "--rm", "--network", "none", "--cap-drop", "ALL", "--user", str(user)]
    words += ["-v", f"{store}:/srv/new", host.image, "--store", "/srv/new"]
    dockerd.docker(*words, "init", "/srv/new")
    assert "created branch main" in dockerd.docker(*words, "push", "/etc/ssl", "try/etc")


def pods(host: Host) -> dict[str, dict[str, Any]]:
    """The pods that the chart makes on a node, by the name of their first container."""
    name, _, tag = host.image.rpartition(":")
    values = {
        "image": {"repository": name, "tag": tag},
        "store": {"url": "/srv/store"},
        "peers": {"enabled": False},
        "proxy": {
            "extraVolumes": [{"name": "store", "hostPath": {"path": "/srv/store"}}],
            "extraVolumeMounts": [{"name": "store", "mountPath": "/srv/store"}],
        },
    }
    found = {}
    for one in rendered(values=values):
        if one["kind"] == "ConfigMap" and "lodefs.toml" in one["data"]:
            settings = host.directory("/configmaps/lodefs") / "lodefs.toml"
            settings.write_text(one["data"]["lodefs.toml"])
        if one["kind"] == "DaemonSet":
            pod = one["spec"]["template"]["spec"]
            found[pod["containers"][0]["name"]] = pod
    return found


def docker_words(host: Host, pod: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """What makes docker run a container of a pod as a kubelet would."""
    allowed = {**pod.get("securityContext", {}), **container["securityContext"]}
    words = ["--user", str(allowed["runAsUser"]), "--read-only"]
    words += PRIVILEGED if allowed.get("privileged") else []
    capabilities = allowed.get("capabilities", {})
    for option, names in (("--cap-drop", "drop"), ("--cap-add", "add")):
        words += [word for name in capabilities.get(names, []) for word in (option, name)]
    volumes = {one["name"]: one for one in pod["volumes"]}
    for place in container["volumeMounts"]:
        volume, at = volumes[place["name"]], place["mountPath"]
        if "emptyDir" in volume:
            words += ["--tmpfs", f"{at}:mode=1777"]
            continue
        there = volume["hostPath"]["path"] if "hostPath" in volume else "/configmaps/lodefs"
        kind = {"Bidirectional": "rshared", "HostToContainer": "rslave"}
        how = kind.get(place.get("mountPropagation", ""), "rprivate")
        words += ["-v", f"{host.directory(there)}:{at}:{how}"]
    for one in container.get("env", []):
        words += ["-e", f"{one['name']}={one.get('value', 'node')}"]
    command = container.get("command", [])
    words += ["--entrypoint", command[0]] if command else []
    arguments = [*command[1:], *container.get("args", [])]
    return [*words, container["image"], *(one.replace("$(NODE_NAME)", "node") for one in arguments)]


def test_the_chart(host: Host, report: Report) -> None:
    """The containers of the chart's pods, with the privileges and places that it gives them: a
    volume that a kubelet publishes is read, data processes fetch, the kernel reads by itself."""
    found = pods(host)
    host.directory("/var/lib/kubelet/plugins_registry")
    started = {}
    for name in ("proxy", "mounter", "driver"):
        pod = found[name]
        for first in pod.get("initContainers", []):
            host.dockerd.docker("run", "--rm", "--network", "none", *docker_words(host, pod, first))
        started[name] = host.start(*docker_words(host, pod, pod["containers"][0]))
    kubelet = host.directory("/var/lib/kubelet")
    host.directory("/var/lib/kubelet/pods/one/volumes")
    target = Path("/var/lib/kubelet/pods/one/volumes/mount")
    node = NodeProcesses(host.pid(started["proxy"]), PROXY_IN_POD)
    host.until(started["proxy"], (host.directory("/run/lodefs/proxy", USER) / "proxy.sock").exists)
    host.until(started["driver"], (kubelet / DRIVER_SOCKET).exists)
    with Kubelet(kubelet / DRIVER_SOCKET) as calls:
        calls.publish("one", target, {"repo": "try", EPHEMERAL: "true"})
        driver = started["driver"]
        seen = check_reads(node, host.digests, lambda name: host.digest(driver, f"{target}/{name}"))
        calls.unpublish("one", target)
    report("chart", seen)

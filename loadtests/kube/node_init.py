"""The first process in the node's namespaces: makes its places, starts its components, stays.

``python -m loadtests.kube.node_init FOLDER KUBENODE``. FOLDER/ready is there once pods can run. It
ends, and with it the process namespace, when a component does; but a kubelet is started again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadtests.kube import configs

READY_TIMEOUT_S = 300.0
_POLL_S = 0.2
_RUN = ("/run", "/var/log")  # tmpfs; of others that components write the folder has a copy
_KEPT = ("/var/lib", "/var/cache")


class Components:
    """The node's programs, each with a log of its own."""

    def __init__(self, folder: Path, kubenode: Path) -> None:
        self.folder = folder
        self.kubenode = kubenode
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._argv: dict[str, list[str]] = {}
        self._deadline_s = time.monotonic() + READY_TIMEOUT_S

    def start(self, name: str, flags: list[str]) -> None:
        """Start a component of kubenode."""
        self.start_program(name, [str(self.kubenode), name, *flags])

    def start_program(self, name: str, argv: list[str]) -> None:
        """Start any program."""
        self._argv[name] = argv
        with (self.folder / "log" / name).open("ab") as log:
            self._running[name] = subprocess.Popen(argv, stdout=log, stderr=log)

    def start_again(self, name: str) -> None:
        """One that has ended."""
        self._running[name].wait()
        self.start_program(name, self._argv[name])

    def ended(self) -> str:
        """The name of one that has ended; "" while all run."""
        return next((name for name, p in self._running.items() if p.poll() is not None), "")

    def name_of(self, pid: int) -> str:
        """Which component a process is; "" for any other."""
        return next((name for name, process in self._running.items() if process.pid == pid), "")

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until it is so; ends this process where a component ends first, or it is late."""
        while not is_so():
            if name := self.ended():
                raise SystemExit(f"{name} ended while waiting for: {what}")
            if time.monotonic() > self._deadline_s:
                raise SystemExit(f"late: {what}")
            time.sleep(_POLL_S)

    def kubectl(self, *words: str) -> str:
        """The output of a call as admin; "" where it fails."""
        argv = [str(self.kubenode), "kubectl", f"--kubeconfig={self.folder}/admin.conf", *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else ""


def make_places(folder: Path) -> None:
    """Mounts of this namespace: what the node writes outside of its folder stays in it."""
    for name in ("log", "keys", "cni", "etcd", "containerd"):
        (folder / name).mkdir(exist_ok=True)
    run("mount", "--make-rshared", "/")
    for place in _RUN:
        run("mount", "-t", "tmpfs", "node", place)
    Path("/run/resolv.conf").write_text(f"nameserver {configs.NODE_ADDRESS}\n")
    for place in _KEPT:
        if Path(place).is_dir():
            own = folder / place.strip("/").replace("/", "-")
            own.mkdir(exist_ok=True)
            run("mount", "--bind", str(own), place)
    Path("/var/lib/kubelet").mkdir(exist_ok=True)
    for name, value in configs.KERNEL_SETTINGS.items():
        shown = Path("/run/kernel-settings", name)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        if Path("/proc/sys", name).exists():
            run("mount", "--bind", str(shown), f"/proc/sys/{name}")


def make_cgroups(folder: Path) -> None:
    """A cgroup of the node's own, in each hierarchy where there are several (version 1)."""
    top = Path("/sys/fs/cgroup")
    is_unified = (top / "cgroup.controllers").exists()
    for hierarchy in [top] if is_unified else top.iterdir():
        if not (hierarchy / "cgroup.procs").exists():
            continue
        own = hierarchy / configs.cgroup(folder)
        own.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not is_unified and (own / name).exists():
                (own / name).write_text((hierarchy / name).read_text())


def make_network() -> None:
    """lo carries the addresses of the node and of the API server's service."""
    run("hostname", configs.NODE)
    run("ip", "link", "set", "lo", "up")
    for address in (configs.SERVICE_ADDRESS, configs.NODE_ADDRESS):
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def write_files(folder: Path) -> None:
    """Keys, tokens and configurations."""
    keys = folder / "keys"
    if not (keys / "accounts.key").exists():
        names = ["DNS:localhost", "DNS:kubernetes.default.svc", "IP:127.0.0.1"]
        names += [f"IP:{configs.SERVICE_ADDRESS}", f"IP:{configs.NODE_ADDRESS}"]
        certificate = ["-keyout", f"{keys}/api.key", "-out", f"{keys}/api.crt", "-days", "3650"]
        own = ["-nodes", "-subj", "/CN=kube-apiserver"]
        alternatives = ["-addext", f"subjectAltName={','.join(names)}"]
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", *own, *certificate, *alternatives)
        run("openssl", "genrsa", "-out", str(keys / "accounts.key"), "2048")
    (keys / "tokens.csv").write_text(configs.tokens())
    for user in configs.USERS:
        (folder / f"{user}.conf").write_text(configs.kubeconfig(user, keys / "api.crt"))
    (folder / "containerd.toml").write_text(configs.containerd(folder))
    (folder / "kubelet.json").write_text(configs.kubelet(folder))
    (folder / "cni/10-node.conflist").write_text(configs.network())


def start(components: Components) -> None:
    """All components, in order; returns when a pod would be admitted and scheduled."""
    folder, kubectl = components.folder, components.kubectl
    components.start_program("containerd", ["containerd", "-c", str(folder / "containerd.toml")])
    components.start("etcd", configs.etcd(folder))
    components.start("kube-apiserver", configs.api_server(folder / "keys"))
    components.until(lambda: kubectl("get", "--raw=/readyz") == "ok", "the API server")
    names = [sys.executable, "-m", "loadtests.kube.name_server", str(components.kubenode)]
    components.start_program("name_server", [*names, str(folder / "admin.conf")])
    components.start("kube-controller-manager", configs.controllers(folder))
    components.start("kube-scheduler", configs.scheduler(folder))
    components.until(lambda: succeeds("ctr", "version"), "containerd")
    images = sorted((folder / "images").glob("*.tar"))
    for image in images:
        run("ctr", "-n", "k8s.io", "images", "import", str(image))
    components.start("kubelet", configs.kubelet_flags(folder))
    ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}{.spec.taints}"
    components.until(
        lambda: kubectl("get", "node", configs.NODE, "-o", ready) == "True", "the node"
    )
    components.until(lambda: bool(kubectl("get", "serviceaccount", "default")), "the account")


def run(*argv: str) -> None:
    """One command that must succeed; its output goes to this process's own."""
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def succeeds(*argv: str) -> bool:
    """Whether a command does."""
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def reap_until_end(components: Components) -> None:
    """Until a component ends. Containers' shims become children of this process: it reaps them."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) is not None:
        name = components.name_of(ended.si_pid)
        if name == "kubelet":
            components.start_again(name)
        elif name:
            raise SystemExit(f"{name} ended")
        else:
            os.waitpid(ended.si_pid, 0)


def main() -> None:
    """See the module."""
    folder, kubenode = Path(sys.argv[1]), Path(sys.argv[2])
    for program in ("containerd", "runc", "ip", "openssl", "ctr"):
        if not shutil.which(program):
            raise SystemExit(f"{program} is missing")
    make_places(folder)
    make_cgroups(folder)
    make_network()
    write_files(folder)
    components = Components(folder, kubenode)
    start(components)
    (folder / "ready").touch()
    reap_until_end(components)


if __name__ == "__main__":
    main()

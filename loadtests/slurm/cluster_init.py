"""The first process in the cluster's namespaces.

``python -m loadtests.slurm.cluster_init FOLDER`` starts munged, the controller, a proxy, and on
each node, which has a mount namespace of its own, the mount service and slurmd. FOLDER/ready is
there once all nodes are idle.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from loadtests.slurm import configs

ROOT = Path(__file__).parents[2]
LODEFS = configs.PROGRAM
READY_TIMEOUT_S = 60.0
_POLL_S = 0.1
_PRIVATE = ("/run", "/var/log", "/var/spool", "/var/lib", "/etc/munge", "/etc/slurm", "/tmp")
# What a service manager does: a server that is killed is started again.
_KEEP = """
name=$1
shift
while :; do
  "$@" & echo $! >{folder}/$name.pid; wait $!; sleep 0.5
done >>{folder}/log/$name 2>&1 </dev/null
"""
_NODE = """
mount -t tmpfs -o mode=755 lodefs {run} && mkdir {run}/mounter && hostname {name} && cd /
mount -t tmpfs -o mode=755 lodefs {changes}
export LODEFS_CONFIG={folder}/{name}.toml
sh {folder}/keep proxy-{name} {lodefs} serve &
sh {folder}/keep mounter-{name} {lodefs} mounter --proxy unix:{run}/proxy.sock \\
  --idle-timeout 0.5 --mounts-root {run}/mounts --state-dir {run}/mounter-state &
sh {folder}/keep slurmd-{name} slurmd -D -N {name} &
echo $$ >{folder}/{name}.pid
exec sleep infinity
"""


def run(*words: str | Path) -> None:
    """A command that must succeed."""
    subprocess.run([str(word) for word in words], check=True, stdin=subprocess.DEVNULL)


def start(folder: Path, name: str, *words: str | Path) -> subprocess.Popen[bytes]:
    """A server, with a log of its own."""
    with (folder / "log" / name).open("ab") as log:
        return subprocess.Popen(
            [str(word) for word in words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
        )


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until it is so."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"late: {what}")
        time.sleep(_POLL_S)


def make_places(folder: Path) -> None:
    """Directories of this namespace, so that nothing of the machine's is touched or held."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - fuse.lodefs " in line:
            run("umount", "--lazy", line.split()[4])
    for place in _PRIVATE:
        Path(place).mkdir(parents=True, exist_ok=True)
        if not folder.is_relative_to(place):
            run("mount", "-t", "tmpfs", "-o", "mode=755", "cluster", place)
    Path("/tmp").chmod(0o1777)
    for place in (
        "/var/spool/slurm/ctld",
        "/var/lib/munge",
        "/var/log/munge",
        "/run/munge",
        str(configs.RUN),
        str(configs.CHANGES),
    ):
        Path(place).mkdir(parents=True)
    for name in configs.NODES:
        Path("/var/spool/slurm", name).mkdir()
    run("mknod", "-m", "666", "/run/fuse", "c", "10", "229")  # as udev makes it
    run("mount", "--bind", "/run/fuse", "/dev/fuse")
    run("ip", "link", "set", "lo", "up")
    run("ip", "addr", "add", f"{configs.ADDRESS}/32", "dev", "lo")
    run("hostname", configs.HOST)
    for name in configs.NODES:
        run("ip", "addr", "add", f"{configs.address_of(name)}/32", "dev", "lo")
    hosts = folder / "hosts"
    names = "".join(f"{configs.address_of(name)} {name}\n" for name in configs.NODES)
    hosts.write_text(f"127.0.0.1 localhost\n{configs.ADDRESS} {configs.HOST}\n{names}")
    run("mount", "--bind", hosts, "/etc/hosts")


def open_ways() -> None:
    """Python and this checkout, readable for all users of the cluster wherever they lie."""
    places = [Path(sys.base_prefix), ROOT]
    for number, place in enumerate(places):
        Path(f"/run/shown/{number}").mkdir(parents=True)
        run("mount", "--rbind", place, f"/run/shown/{number}")
    closed = {
        parent
        for place in places
        for parent in [*place.parents][::-1]
        if parent.exists() and not parent.stat().st_mode & 0o001
    }
    for parent in closed:
        run("mount", "-t", "tmpfs", "-o", "mode=755", "cluster", parent)
    for number, place in enumerate(places):
        if closed & {*place.parents}:
            place.mkdir(parents=True, exist_ok=True)
            run("mount", "--rbind", f"/run/shown/{number}", place)


def install(folder: Path) -> None:
    """The Debian package over /usr, if one is to be tested."""
    if configs.PACKAGE:
        run("dpkg-deb", "-x", configs.PACKAGE, folder / "package")
        layers = f"lowerdir={folder}/package/usr:/usr"
        run("mount", "-t", "overlay", "-o", layers, "cluster", "/usr")


def make_cgroups(folder: Path) -> None:
    """A control group of the cluster's own, where there can be one."""
    if configs.has_cgroups():
        group, place = configs.FREEZER / folder.name, configs.CGROUPS / "freezer"
        group.mkdir()
        place.mkdir(parents=True)
        run("mount", "--bind", group, place)


def write_configs(folder: Path) -> None:
    """/etc/slurm and /etc/default/lodefs-slurm, of the files that a site installs."""
    etc, deploy = Path("/etc/slurm"), configs.SCRIPTS
    (etc / "slurm.conf").write_text(configs.slurm_conf())
    (etc / "cgroup.conf").write_text(configs.CGROUP_CONF)
    (etc / "plugstack.conf").write_text(configs.plugstack(folder / "lodefs_spank.so", LODEFS))
    for name in (
        "prolog.d",
        "epilog.d",
        "cli_filter.lua",
        "burst_buffer.lua",
        "task_prolog.sh",
        "health.sh",
    ):
        (shutil.copytree if name.endswith(".d") else shutil.copy)(deploy / name, etc / name)
    Path("/run/default").mkdir()
    Path("/run/default/lodefs-slurm").write_text(configs.defaults(LODEFS, "--pin", folder / "log"))
    run("mount", "--bind", "/run/default", "/etc/default")


def start_munge(folder: Path) -> None:
    """munged, with a key of its own."""
    key = Path("/etc/munge/munge.key")
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for place in ("/etc/munge", "/var/lib/munge", "/run/munge", "/var/log/munge", key):
        shutil.chown(place, "munge", "munge")
    for place in ("/etc/munge", "/var/lib/munge", "/var/log/munge"):
        Path(place).chmod(0o700)
    start(folder, "munged", "runuser", "-u", "munge", "--", "munged", "--foreground")
    until(lambda: Path("/run/munge/munge.socket.2").exists(), "munged")


def start_proxies(folder: Path) -> None:
    """The proxy of the submit host, which is no member of the cluster but asks its nodes, and the
    settings of the others."""
    (folder / "keep").write_text(_KEEP.format(folder=folder))
    secret = folder / "peer-secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o400)
    for name in ("", *configs.NODES):
        place = folder / f"{name or 'submit'}.toml"
        place.write_text(configs.proxy_toml(folder, name))
    settings = f"LODEFS_CONFIG={folder}/submit.toml"
    start(folder, "proxy", "sh", folder / "keep", "proxy", "env", settings, LODEFS, "serve")
    socket = folder / "proxy/proxy.sock"
    until(socket.exists, "the proxy")
    socket.chmod(0o666)


def has_proxy(folder: Path, node: str) -> bool:
    """Whether a node's proxy is there."""
    pid = (folder / f"{node}.pid").read_text().strip()
    return Path(f"/proc/{pid}/root{configs.RUN}/proxy.sock").exists()


def are_idle() -> bool:
    """Whether all nodes are."""
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, check=False
    )
    return done.stdout.split() == ["idle"] * len(configs.NODES)


def main(folder: Path) -> None:
    """Until it is killed."""
    make_places(folder)
    open_ways()
    install(folder)
    make_cgroups(folder)
    write_configs(folder)
    start_munge(folder)
    start_proxies(folder)
    environ = (
        f"LODEFS_PROGRAM={LODEFS}",
        f"LODEFS_PROXY=unix:{folder}/proxy/proxy.sock",
        f"LODEFS_CONFIG={folder}/submit.toml",
    )
    keep = ("sh", folder / "keep", "slurmctld", "env")
    start(folder, "slurmctld", *keep, *environ, "slurmctld", "-D")
    for name in configs.NODES:
        script = _NODE.format(
            run=configs.RUN, changes=configs.CHANGES, lodefs=LODEFS, folder=folder, name=name
        )
        words = ("--mount", "--uts", "--propagation", "slave", "sh", "-c", script)
        start(folder, f"slurmd-{name}", "unshare", *words)
    until(are_idle, "idle nodes")
    until(lambda: all(has_proxy(folder, name) for name in configs.NODES), "proxies")
    (folder / "ready").touch()
    while True:
        with_children()


def with_children() -> None:
    """Reap what has been left to the first process."""
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        raise SystemExit("all processes have ended") from None


if __name__ == "__main__":
    main(Path(sys.argv[1]))

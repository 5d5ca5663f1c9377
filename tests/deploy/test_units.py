"""The units of deploy/systemd in a real systemd: sockets, restarts, the watchdog, logs, mounts."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from loadtests.services import HOST, S3Server, free_port
from loadtests.services.machine import PYTHON, Machine, booted, install, layered_root, write
from loadtests.services.rereader import rereading
from tests.deploy.dataset import Dataset, push
from tests.support.chunkstore.child_process import ChildError

pytestmark = [pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(600)]

SECURITY_MAX, ROOT_SECURITY_MAX = 3.0, 7.0
LOGGED_MAX = 100  # lines of a unit
CALLS_MAX = 30  # of dockerd, until the plugin is not late
SETTINGS = "/etc/lodefs/lodefs.toml"
SOCKET = "/run/lodefs/proxy.sock"
PLUGIN_SOCKET = "/run/docker/plugins/lodefs.sock"
PROXY, PLUGIN = "lodefs-proxy.service", "lodefs-docker.service"
MOUNT = "lodefs-mount@cats.service"
MOUNTER = "lodefs-mounter.service"
UNITS = ["lodefs-proxy.socket", PROXY, "lodefs-docker.socket", PLUGIN, MOUNTER, MOUNT]
ANOTHER = (
    "p=$(systemctl show --value -p MainPID {unit}); "
    '[ "$p" != {pid} ] && [ "$p" != 0 ] && systemctl is-active {unit}'
)
ASK = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({SOCKET!r})"


class Node(Machine):
    """A machine that is a node, and what there is to read."""

    def __init__(self, machine: Machine, dataset: Dataset, port: int, peer_port: int) -> None:
        super().__init__(machine.root, machine.init_pid)
        self.dataset = dataset
        self.port = port
        self.peer_port = peer_port

    def set_up(self) -> None:
        """Write the settings."""
        write(self.root, SETTINGS, settings(self.dataset, self.port, self.peer_port))


@pytest.fixture(scope="module")
def node(moto: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node that has booted, with a mount that its files name, one that is broken, and one whose
    name is no name."""
    dataset = push(moto, tmp_path_factory.mktemp("source"))
    port, peer_port = free_port(), free_port()
    with layered_root() as root:
        install(root)
        write(root, SETTINGS, settings(dataset, port, peer_port))
        credentials = "".join(f"{name}={value}\n" for name, value in moto.environment.items())
        write(root, "/etc/default/lodefs", credentials, 0o600)
        write(root, "/etc/lodefs/mounts.d/cats.toml", CATS)
        write(root, "/etc/lodefs/mounts.d/broken.toml", 'spec = "cats"\n\ndri = "/data/x"\n')
        write(root, "/etc/lodefs/mounts.d/no name.toml", CATS)
        wanted = root / "etc/systemd/system/sockets.target.wants/lodefs-proxy.socket"
        wanted.parent.mkdir(parents=True)
        wanted.symlink_to("/usr/lib/systemd/system/lodefs-proxy.socket")
        with booted(root) as machine:
            yield Node(machine, dataset, port, peer_port)


CATS = 'spec = "cats@main"\ndir = "/data/cats"\ncreate_dir = true\n'


def settings(dataset: Dataset, port: int, peer_port: int) -> str:
    """The node's settings: S3 by name, doors for clients and for other nodes."""
    return f"""store = "{dataset.store}"
[s3]
endpoint_url = "http://localhost:{dataset.s3_port}"
[serve]
cache_size_bytes_max = "256MiB"
listen = "{HOST}:{port}"
allow_anonymous = true
peer_listen = "{HOST}:{peer_port}"
peers = ["{HOST}:{peer_port}"]
peer_allow_anonymous = true
"""


def test_mounts_come_at_boot(node: Node) -> None:
    """A file in mounts.d is a mount when the machine has booted, read from S3 through the proxy."""
    node.until("the mount at boot", f"systemctl is-active {MOUNT}")
    lines = node.shell("cd /data/cats && sha256sum *").splitlines()
    assert {name: digest for digest, name in map(str.split, lines)} == node.dataset.sha256
    assert node.run("ps", "-o", "user=", "-p", node.show(PROXY, "MainPID")).strip() == "lodefs"
    assert node.shell("stat -c '%U %G %a' /var/cache/lodefs").split() == ["lodefs"] * 2 + ["750"]
    assert node.shell(f"stat -c '%G %a' {SOCKET}").split() == ["lodefs", "660"]


def test_a_broken_file_fails_its_unit_alone(node: Node) -> None:
    """The journal names file, line and key, as an error; a name that is none makes no unit."""
    node.until("the broken unit", "systemctl is-failed lodefs-mount@broken.service")
    errors = journal(node, "lodefs-mount@broken.service", "-p", "err")
    assert any("mounts.d/broken.toml:3: dri: there is no such setting" in one["MESSAGE"]
               for one in errors)  # fmt: skip
    units = node.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "lodefs-mount@*")
    names = {line.split()[0] for line in units.splitlines()}
    assert names == {"lodefs-mount@broken.service", MOUNT}


def test_units_are_clean(node: Node) -> None:
    """systemd finds nothing to complain of in them."""
    assert node.run("systemd-analyze", "verify", "--man=no", *UNITS) == ""


def test_the_proxy_may_do_little(node: Node) -> None:
    """systemd's figure for what the units leave open; those of root mount, and have no mount
    namespace of their own."""
    for unit in (PROXY, PLUGIN, MOUNTER, MOUNT):
        told = node.run("systemd-analyze", "security", "--no-pager", unit)
        found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", told)
        assert found
        assert float(found[1]) <= (SECURITY_MAX if unit == PROXY else ROOT_SECURITY_MAX), unit
    assert int(node.show(PROXY, "MemoryMax")) < 1 << 62


def test_lines_in_the_journal_have_fields(node: Node) -> None:
    """What the proxy logs has its priority, its place, and its figures."""
    ready = next(one for one in journal(node, PROXY) if one["MESSAGE"].startswith("ready: "))
    assert (ready["PRIORITY"], ready["SYSLOG_IDENTIFIER"]) == ("6", "lodefs-proxy")
    assert ready["LODEFS_LOGGER"] == "lodefs.proxy"
    assert ready["LODEFS_PID"] == ready["_PID"]
    assert float(ready["LODEFS_STARTUP_S"]) > 0
    assert ready["CODE_FILE"].endswith("/proxy/service/app.py")
    assert "Serving s3://" in node.run("systemctl", "status", "--no-pager", PROXY)


def test_readers_do_not_see_the_proxy_die(node: Node) -> None:
    """kill -9 of the proxy, again and again, while a reader of a mount needs it: none fails."""
    with rereading(node, "/data/cats", node.dataset.sha256) as seen:
        for _ in range(3):
            dead = node.show(PROXY, "MainPID")
            node.run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", PROXY)
            node.run("lodefs", "evict", "--all")
            assert node.show(PROXY, "MainPID") not in (dead, "0")
            assert node.show(PROXY, "NFileDescriptorStore") == "2"
    assert seen.reads > 0
    assert seen.wrong == [], why(node)


def test_readers_do_not_see_the_mount_die(node: Node) -> None:
    """kill -9 of a mount's main process, and a reload, as in an upgrade: no read fails."""
    with rereading(node, "/data/cats", node.dataset.sha256) as seen:
        for verb in (("kill", "-s", "KILL", "--kill-whom=main"), ("reload",)):
            before = node.show(MOUNT, "MainPID")
            node.run("systemctl", *verb, MOUNT)
            node.until("another process", ANOTHER.format(unit=MOUNT, pid=before))
    assert seen.reads > 0
    assert seen.wrong == []


def test_mounts_read_the_proxys_cache_themselves(node: Node) -> None:
    """The cache of the user lodefs is open to mounts, which run as root."""
    with rereading(node, "/data/cats", node.dataset.sha256) as seen:
        metrics = f"curl -sf --unix-socket {SOCKET} http://lodefs/metrics"
        node.until("direct reads", f"{metrics} | grep 'lodefs_reads_total.*direct.* [1-9]'")
    assert seen.wrong == []


def test_nobody_is_refused_during_restarts(node: Node) -> None:
    """The TCP doors of clients and nodes take connections while the proxy is away."""
    stop = threading.Event()
    refused: list[str] = []
    made = [0]

    def connect() -> None:
        while not stop.wait(0.002):
            for port in (node.port, node.peer_port):
                try:
                    socket.create_connection((HOST, port), timeout=30).close()
                except ConnectionRefusedError:
                    refused.append(f"port {port}")
                made[0] += 1

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        node.run("systemctl", "restart", PROXY)
        node.run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", PROXY)
        node.run("systemctl", "restart", PROXY)
        answer = ask(node.port)
    finally:
        stop.set()
        thread.join(60)
    assert b"200 OK" in answer
    assert made[0] > 10
    assert refused == []


def test_a_door_elsewhere_is_a_new_socket(node: Node) -> None:
    """After a change of the settings the new port is open, and the old one is not."""
    old, node.port = node.port, free_port()
    node.set_up()
    node.run("systemctl", "restart", PROXY)
    assert b"200 OK" in ask(node.port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, old), timeout=30)
    assert node.show(PROXY, "NFileDescriptorStore") == "2"


def test_the_watchdog_replaces_a_proxy_that_hangs(node: Node) -> None:
    """A proxy whose loop stands still is killed and started again."""
    assert node.show(PROXY, "WatchdogUSec") == "30s"
    drop_in = "[Service]\nWatchdogSec=3s\nTimeoutAbortSec=1s\n"
    write(node.root, f"/etc/systemd/system/{PROXY}.d/fast.conf", drop_in)
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", PROXY)
    assert node.show(PROXY, "WatchdogUSec") == "3s"
    stopped = node.show(PROXY, "MainPID")
    node.run("kill", "-STOP", stopped)
    node.until("another proxy", f"! kill -0 {stopped} && systemctl is-active {PROXY}")
    assert b"200 OK" in ask(node.port)
    assert any("watchdog" in one["MESSAGE"].lower() for one in journal(node, PROXY))
    node.run("rm", f"/etc/systemd/system/{PROXY}.d/fast.conf")
    node.run("systemctl", "daemon-reload")


def test_the_first_connection_starts_the_proxy(node: Node) -> None:
    """The socket alone is there; who connects gets a proxy."""
    node.run("systemctl", "stop", MOUNT, PROXY)
    assert node.show(PROXY, "ActiveState") == "inactive"
    node.run(PYTHON, "-c", ASK)
    node.until("the proxy", f"systemctl is-active {PROXY}")
    assert '"ready"' in node.shell(f"curl -sf --unix-socket {SOCKET} http://lodefs/readyz")


def test_settings_that_are_wrong_are_told_and_tried_again(node: Node) -> None:
    """The unit never gives up: once the settings are right, the proxy comes back by itself."""
    write(node.root, SETTINGS, "stroe = 1\n")
    with suppress(ChildError):
        node.run("systemctl", "restart", PROXY)
    node.until("a second try", f"[ $(systemctl show --value -p NRestarts {PROXY}) -ge 2 ]")
    with node.start("curl", "-sf", "--unix-socket", SOCKET, "http://lodefs/readyz") as early:
        node.until("more tries", f"[ $(systemctl show --value -p NRestarts {PROXY}) -ge 3 ]")
        shown = f"systemctl show --value -p StatusText {PROXY}"
        node.until("the reason", f"{shown} | grep 'cannot start: .*no such setting'")
        errors = [one["MESSAGE"] for one in journal(node, PROXY, "-p", "err")]
        assert any("lodefs.toml:1: stroe: there is no such setting" in one for one in errors)
        node.set_up()
        node.until("the proxy", f"systemctl is-active {PROXY}")
        assert early.wait() == 0, early.output


def test_stop_leaves_nothing(node: Node) -> None:
    """After stop there are no processes, no mounts and no socket."""
    node.run("systemctl", "start", MOUNT)
    node.run("systemctl", "stop", MOUNT, PROXY, "lodefs-proxy.socket")
    assert node.shell("grep /data/cats /proc/mounts || true") == ""
    assert node.shell("pgrep -fa '[l]odefs.main|[m]ount.daemon' || true") == ""
    assert node.shell("ls -A /run/lodefs/mounts") == ""
    assert node.shell(f"[ ! -e {SOCKET} ]") == ""
    assert node.show(PROXY, "NFileDescriptorStore") == "0"


def journal(node: Node, unit: str, *more: str) -> list[dict[str, str]]:
    """The journal's lines of a unit."""
    node.run("journalctl", "--sync")
    told = node.run("journalctl", "-u", unit, "-o", "json", "--no-pager", *more)
    return [json.loads(line) for line in told.splitlines()]


def why(node: Node) -> str:
    """What mount and proxy have logged: each failed read with its reason."""
    lines = [one for unit in (MOUNT, PROXY) for one in journal(node, unit)[-LOGGED_MAX:]]
    return "\n".join(f"{one['SYSLOG_IDENTIFIER']}: {one['MESSAGE']}" for one in lines)


def ask(port: int) -> bytes:
    """The answer to a question at a TCP door."""
    with socket.create_connection((HOST, port), timeout=60) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: lodefs\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: client.recv(65536), b""))


def test_dockerd_finds_the_plugin(node: Node) -> None:
    """The first call at its socket starts the plugin; its mounts live on without it, and none of
    its calls fails because it was killed."""
    node.run("systemctl", "start", "lodefs-proxy.socket", "lodefs-docker.socket")
    assert node.shell(f"stat -c '%U %a' {PLUGIN_SOCKET}").split() == ["root", "600"]
    assert node.show(PLUGIN, "ActiveState") == "inactive"
    assert call(node, "Plugin.Activate") == {"Implements": ["VolumeDriver"]}
    options = {"repo": "cats", "commit": "main"}
    assert call(node, "VolumeDriver.Create", Name="v", Opts=options) == {}
    place = call(node, "VolumeDriver.Mount", Name="v", ID="one")["Mountpoint"]
    assert node.show(PLUGIN, "ActiveState") == "active"
    with rereading(node, place, node.dataset.sha256) as seen:
        node.run("systemctl", "kill", "-s", "KILL", "--kill-whom=main", PLUGIN)
        assert call(node, "VolumeDriver.Path", Name="v") == {"Mountpoint": place}
        node.run("systemctl", "restart", PLUGIN)
        assert call(node, "VolumeDriver.Path", Name="v") == {"Mountpoint": place}
    assert seen.reads > 0
    assert seen.wrong == []
    assert call(node, "VolumeDriver.Unmount", Name="v", ID="one") == {}
    assert call(node, "VolumeDriver.Remove", Name="v") == {}
    node.run("systemctl", "stop", PLUGIN, "lodefs-docker.socket")
    gone = "! grep -q /lodefs/mounts/ /proc/mounts"  # when nobody has wanted it for ten seconds
    node.shell(f"for _ in $(seq 60); do {gone} && exit; sleep 0.5; done; exit 1")
    assert node.shell("pgrep -fa '[d]ocker-plugin' || true") == ""


def call(node: Node, method: str, **body: object) -> dict[str, Any]:
    """What the plugin answers to dockerd, once it is not late any more: a proxy may be starting."""
    words = ("curl", "-s", "--max-time", "30", "--unix-socket", PLUGIN_SOCKET)
    asked = ("-H", "Content-Type: application/json", "-d", json.dumps(body))
    found: dict[str, Any] = {}
    for _ in range(CALLS_MAX):
        found = json.loads(node.run(*words, *asked, f"http://plugin/{method}"))
        if "try again" not in found.get("Err", ""):
            break
    return found

"""``lodefs docker-plugin`` as a process: real mounts, killed and started again, told to end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lodefs.mount.kernel import mount_table
from tests.support.docker.rig import Dockerd, request
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.mounts import BIG, SAMPLE, WAIT_S, until

ROOT = Path(__file__).parents[3]
DEMO = {"repo": SAMPLE.snapshot.repo}
AS_SYSTEMD = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.environ['LISTEN_PID'] = str(os.getpid());"
    "os.execv(sys.executable, [sys.executable, '-m', 'lodefs.main', 'docker-plugin', '--state',"
    "sys.argv[2]])"
)
SECRET = "hunter2-0123456789"

pytestmark = [pytest.mark.fuse, pytest.mark.slow]


class Plugin:
    """The command, with its log in a file."""

    def __init__(self, folder: Path, proxy: FakeProxy, **environment: str) -> None:
        self.socket = folder / "plugins" / "lodefs.sock"
        self.state = folder / "state"
        self.log = folder / "log"
        self.answer_timeout_s = 20.0  # of a machine that may be slow
        self.environment = environment
        self._folder = folder
        self._proxy = proxy
        self.process: subprocess.Popen[bytes] | None = None
        self.dockerd = Dockerd(self.socket)

    def start(self) -> None:
        arguments = ["--socket", str(self.socket), "--state", str(self.state)]
        timeout = ["--answer-timeout", str(self.answer_timeout_s)]
        idle = ["--idle-timeout", "0.2"]
        self.spawn([*arguments, *timeout, *idle, "--log-level", "debug"])
        until(self.answers)

    def spawn(self, arguments: list[str], fds: tuple[int, ...] = ()) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lodefs.main", "docker-plugin", *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "LODEFS_PROXY": self._proxy.address,
                    "HOME": str(self._folder),
                    **self.environment,
                },
                stderr=log,
                pass_fds=fds,
            )

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.dockerd.post("/Plugin.Activate", b"")[0] == 200
        except OSError:
            return False

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self.process = None
        return code

    def place(self) -> Path:
        [volume] = self.dockerd.call("VolumeDriver.List")["Volumes"]
        return Path(volume["Mountpoint"])


def mounts_below(folder: Path) -> list[str]:
    return [one.mountpoint for one in mount_table.read_table() if str(folder) in one.mountpoint]


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    with FakeProxy(SAMPLE, tmp_path) as proxy:
        made = Plugin(tmp_path, proxy)
        try:
            yield made
        finally:
            if made.process is not None:
                made.end(signal.SIGKILL)
            for place in mounts_below(tmp_path):
                subprocess.run(["umount", "-l", place], check=False)
            print(made.log.read_text() if made.log.exists() else "")


def test_mounts_outlive_the_plugin(plugin: Plugin) -> None:
    """Killed and started again, it knows its volumes; files that are open are read on, and a while
    after the last Unmount the mount is gone."""
    plugin.start()
    assert plugin.dockerd.call("VolumeDriver.Create", Name="a", Opts=DEMO) == {}
    for mount_id in ("one", "two"):
        assert "Err" not in plugin.dockerd.call("VolumeDriver.Mount", Name="a", ID=mount_id)
    place = plugin.place()
    with (place / "big").open("rb") as big:
        assert big.read(1000) == BIG[:1000]
        plugin.end(signal.SIGKILL)
        assert (place / "a").read_bytes() == b"hello"
        plugin.start()
        assert plugin.place() == place
        plugin.dockerd.call("VolumeDriver.Unmount", Name="a", ID="one")
        assert len(big.read()) == len(BIG) - 1000

        def status() -> dict[str, Any]:
            volume = plugin.dockerd.call("VolumeDriver.Get", Name="a")["Volume"]
            return dict(volume["Status"])

        assert status()["state"] == "mounted"
        assert status()["references"] == 1
        # what was read is asked of the mount, and not waited for by a call
        until(lambda: sum(status().get("read", {}).values()) > 0)
        # somebody has a file open, as a container has: else its mount counts no more after 5 s
        assert "in use" in plugin.dockerd.call("VolumeDriver.Remove", Name="a")["Err"]
    assert plugin.dockerd.call("VolumeDriver.Unmount", Name="a", ID="two") == {}
    assert plugin.dockerd.call("VolumeDriver.Remove", Name="a") == {}
    until(lambda: mounts_below(plugin.state) == os.listdir(plugin.state / "mounts") == [])
    assert plugin.end(signal.SIGTERM) == 0
    assert os.listdir(plugin.state / "mounts") == os.listdir(plugin.state / "volumes") == []


def test_told_to_end(plugin: Plugin) -> None:
    """SIGTERM ends it with code 0; its socket goes, and its mounts stay."""
    plugin.start()
    plugin.dockerd.call("VolumeDriver.Create", Name="a", Opts=DEMO)
    plugin.dockerd.call("VolumeDriver.Mount", Name="a", ID="one")
    place = plugin.place()
    assert plugin.end(signal.SIGTERM) == 0
    assert not plugin.socket.exists()
    assert (place / "a").read_bytes() == b"hello"


def test_no_proxy(plugin: Plugin) -> None:
    """Without the node's proxy a volume cannot be created, and one sentence says so; a volume that
    is there is still shown and removed."""
    plugin.answer_timeout_s = 2.0
    plugin.start()
    until(lambda: not plugin.dockerd.call("VolumeDriver.Create", Name="a", Opts=DEMO))  # in time
    Path(plugin._proxy.path).unlink()
    for method, fields in (
        ("Create", {"Name": "b", "Opts": DEMO}),
        ("Mount", {"Name": "a", "ID": "one"}),
    ):
        told = plugin.dockerd.call(f"VolumeDriver.{method}", **fields)["Err"]
        assert "proxy.sock" in told
    assert plugin.dockerd.call("VolumeDriver.Get", Name="a")["Volume"]["Status"]["files"]
    assert plugin.dockerd.call("VolumeDriver.Remove", Name="a") == {}


def test_as_a_service_of_systemd(plugin: Plugin, tmp_path: Path) -> None:
    """It takes systemd's socket, says when it is ready and when it ends, feeds the watchdog, and
    leaves the socket's file alone."""
    plugin.socket.parent.mkdir()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(plugin.socket))
        listener.listen()
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(WAIT_S)
        plugin.process = subprocess.Popen(
            [sys.executable, "-c", AS_SYSTEMD, str(listener.fileno()), str(plugin.state)],
            cwd=ROOT,
            env={
                **os.environ,
                "LISTEN_FDS": "1",
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": "30000000",
            },
            pass_fds=(listener.fileno(),),
        )
        assert notify.recv(100) == b"READY=1"
        assert plugin.dockerd.call("VolumeDriver.List") == {"Volumes": []}
        assert notify.recv(100) == b"WATCHDOG=1"
        assert plugin.end(signal.SIGTERM) == 0
        while (message := notify.recv(100)) == b"WATCHDOG=1":
            pass
        assert message == b"STOPPING=1"
        assert plugin.socket.exists()


def test_a_second_plugin_is_refused(plugin: Plugin) -> None:
    """One sentence, and an exit code of its own; the first goes on."""
    plugin.start()
    for arguments in (
        ["--socket", str(plugin.socket), "--state", str(plugin.state) + "2"],
        ["--socket", str(plugin.socket) + "2", "--state", str(plugin.state)],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "lodefs.main", "docker-plugin", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 11
        assert done.stderr.startswith("lodefs: error: ")
        assert "another" in done.stderr
    assert plugin.answers()


def test_secrets_are_in_no_log_or_process(plugin: Plugin, tmp_path: Path) -> None:
    """Tokens that are given in wrong ways, and one given rightly, are neither logged nor in the
    arguments of a process, nor in the state directory."""
    (tmp_path / "token").write_text(SECRET)
    plugin.start()
    given = [
        DEMO | {"pat": SECRET},
        DEMO | {"token_env": SECRET},
        {"repo": f"https://u:{SECRET}@host/r"},
        DEMO | {"token_file": str(tmp_path / "token")},
    ]
    told = [plugin.dockerd.call("VolumeDriver.Create", Name="a", Opts=one) for one in given]
    told.append(plugin.dockerd.call("VolumeDriver.Mount", Name="a", ID="one"))
    told.append(plugin.dockerd.call("VolumeDriver.Get", Name="a"))
    with plugin.dockerd.connect() as connection:
        told.append(plugin.dockerd.ask(connection, request(f"/{SECRET[:3]}", b"{"))[1])
    assert SECRET not in json.dumps(told)
    assert SECRET not in plugin.log.read_text()
    seen = [path.read_bytes() for path in plugin.state.rglob("*.json")]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            seen.append(path.read_bytes())
        except OSError:
            continue
    assert not any(SECRET.encode() in one for one in seen)

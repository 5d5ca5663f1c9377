"""A node with Docker volumes: a store in a directory, `lodefs serve` and `lodefs docker-plugin`.

The plugin is started as systemd does it: its listening socket belongs to somebody else and stays,
so that who connects while it is dead waits; and only its main process is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from loadtests.services.pluginrelay import UnixConnection
from tests.support.chunkstore.child_process import TIMEOUT_S, Child, run

ROOT = Path(__file__).parents[2]
_COMMAND = (sys.executable, "-m", "lodefs.main")
_POLL_S = 0.1  # conditions may start programs
# The listening socket becomes number 3, and the process's own number goes into LISTEN_PID.
_ACTIVATED = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


class PluginNode:
    """All of it lies below ``folder``. ``serve``: more words for `lodefs serve`; ``proxy_url``:
    where the plugin looks for the proxy, else on its Unix socket; ``store``: a URL, else a new
    directory; ``answer_timeout_s``: of the plugin, else its own; ``mounter``: the socket of the
    mount service, else the plugin mounts by itself."""

    def __init__(
        self,
        folder: Path,
        serve: Sequence[str | Path] = (),
        proxy_url: str = "",
        store: str = "",
        answer_timeout_s: float | None = None,
        mounter: Path | None = None,
    ) -> None:
        self._mounter = mounter
        self.folder = folder
        self.socket = folder / "plugin.sock"
        self.proxy_socket = folder / "proxy.sock"
        self.proxy_url = proxy_url or f"unix:{self.proxy_socket}"
        self._serve = serve
        self._answer_timeout_s = answer_timeout_s
        self.state = folder / "state"
        self.store = store or str(folder / "store")
        self._ended_logs: list[str] = []
        (folder / "home").mkdir()
        (folder / "lodefs.toml").touch()
        self.lodefs("init", self.store)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.socket))
        self._listening.listen(128)
        self.proxy = self._start_proxy()
        try:
            self.plugin = self._start_plugin()
        except BaseException:
            self.proxy.kill()
            self._listening.close()
            raise

    def environment(self) -> dict[str, str]:
        """Of all processes of this node; it names the folder, so they can be told from others."""
        return {
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "home/cache"),
            "LODEFS_STORE": self.store,
            "LODEFS_CONFIG": str(self.folder / "lodefs.toml"),
            "LODEFS_PROXY": self.proxy_url,
        }

    def lodefs(self, *words: str | Path) -> str:
        """Runs a command; ChildError where it fails."""
        return run([*_COMMAND, *words], env=self.environment(), cwd=ROOT)

    def push(self, source: Path, repo: str) -> str:
        """Pushes a directory to a repository; the commit."""
        return str(json.loads(self.lodefs("push", source, repo, "--json"))["commit"])

    @property
    def log(self) -> str:
        """All that proxies and plugins have written, those that ended too."""
        return "".join([*self._ended_logs, self.proxy.output, self.plugin.output])

    def kill_plugin(self) -> None:
        """``kill -9`` of the plugin's main process, and nothing else."""
        self._kill(self.plugin)

    def start_plugin(self) -> None:
        """Starts it again after its end; returns when it answers."""
        self.plugin = self._start_plugin()

    def kill_proxy(self) -> None:
        """``kill -9`` of the proxy."""
        self._kill(self.proxy)

    def start_proxy(self) -> None:
        """Starts it again after its end; returns when it answers."""
        self.proxy = self._start_proxy()

    def mounts(self) -> list[str]:
        """What is mounted below its folder."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [place for line in lines if (place := line.split()[4]).startswith(f"{self.folder}/")]

    def processes(self) -> set[int]:
        """The processes of this node."""
        mark = f"HOME={self.folder}/home\0".encode()
        return {int(pid) for pid in os.listdir("/proc") if pid.isdigit() and mark in _environ(pid)}

    def until(self, is_so: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> bool:
        """Waits until something is so; whether it is."""
        deadline = monotonic() + timeout_s
        while not is_so():
            if monotonic() > deadline:
                return False
            sleep(_POLL_S)
        return True

    def close(self) -> None:
        """Ends all processes and mounts, in whatever state they are."""
        self._listening.close()
        for child in (self.plugin, self.proxy):
            child.kill()
        for place in self.mounts():
            subprocess.run(["umount", "-l", place], check=False, capture_output=True)
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.until(lambda: not self.processes())

    def _kill(self, child: Child) -> None:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        self._ended_logs.append(child.output)

    def _start_proxy(self) -> Child:
        words = (
            "serve",
            "--cache",
            self.folder / "cache",
            "--socket",
            self.proxy_socket,
            *self._serve,
        )
        child = Child([*_COMMAND, *words], env=self.environment(), cwd=ROOT)
        self._await(child, self.proxy_socket, "GET", "/readyz")
        return child

    def _start_plugin(self) -> Child:
        fd = self._listening.fileno()
        words: list[str | Path] = ["docker-plugin", "--socket", self.socket, "--state", self.state]
        words += ["--idle-timeout", "0.5"]
        if self._mounter is not None:
            words += ["--mounter", self._mounter]
        if self._answer_timeout_s is not None:
            words += ["--answer-timeout", str(self._answer_timeout_s)]
        child = Child(
            [sys.executable, "-c", _ACTIVATED, str(fd), *_COMMAND, *words],
            env=self.environment(),
            cwd=ROOT,
            pass_fds=[fd],
        )
        self._await(child, self.socket, "POST", "/Plugin.Activate")
        return child

    def _await(self, child: Child, path: Path, method: str, what: str) -> None:
        """Returns when 200 is answered; ChildError where the child ends before, or is late."""
        deadline = monotonic() + TIMEOUT_S
        while monotonic() < deadline and child.process.poll() is None:
            connection = UnixConnection(path, 1.0)
            with suppress(OSError):
                connection.request(method, what)
                if connection.getresponse().status == 200:
                    connection.close()
                    return
            connection.close()
            child.pause()
        error = child.failed(f"does not answer {what}")
        child.kill()
        raise error


@contextmanager
def plugin_node(
    folder: Path,
    serve: Sequence[str | Path] = (),
    proxy_url: str = "",
    store: str = "",
    answer_timeout_s: float | None = None,
    mounter: Path | None = None,
) -> Iterator[PluginNode]:
    """A running node below ``folder`` (a short path); it is ended with all that it has mounted."""
    node = PluginNode(folder, serve, proxy_url, store, answer_timeout_s, mounter)
    try:
        yield node
    finally:
        node.close()


def _environ(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""

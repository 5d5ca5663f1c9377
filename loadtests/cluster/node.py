"""One node: its ``lodefs serve``, and its mount if a scenario reads through one."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from time import monotonic
from typing import Any

from loadtests.cluster.network import Host
from loadtests.cluster.origin import REPO, STORE, lodefs_command
from loadtests.errors import LoadtestError
from lodefs.proxy.config import Config
from tests.support.chunkstore.child_process import Child, ChildError, run

NUMBER_FIRST = 11  # the end of the first node's address
PEER_PORT = 7441
BEHIND_PORT = 7442  # of a peer door that has a relay in front
READY_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 10.0
SETTINGS = frozenset(each.name for each in fields(Config))


@dataclass(slots=True)
class Node:
    """A node on its host. ``settings``: of [serve]; ``environment``: with credentials for S3."""

    number: int
    host: Host
    folder: Path
    endpoint_url: str
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    process: Child | None = None
    mounted: Child | None = None
    last_words: str = field(default="")

    @property
    def socket(self) -> Path:
        """The proxy's Unix socket."""
        return self.folder / "proxy.sock"

    @property
    def mountpoint(self) -> Path:
        """The mountpoint of the dataset, if it is mounted."""
        return self.folder / "mnt"

    @property
    def cache(self) -> Path:
        """The directory of its cache."""
        return self.folder / "cache"

    def launch(self) -> None:
        """Starts the proxy; ``wait_ready`` waits for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "lodefs.toml"
        own = {"cache_dir": str(self.cache), "socket_path": str(self.socket)}
        tables: dict[str, Mapping[str, Any]] = {
            "": {"store": STORE, "proxy": f"unix:{self.socket}"},
            "s3": {"endpoint_url": self.endpoint_url},
            "serve": {**own, **self.settings},
        }
        config.write_text(toml_of(tables))
        self.process = Child(self.host.argv([lodefs_command(), "serve"]), env=self._environment())

    def wait_ready(self) -> None:
        """Raises LoadtestError with the end of its log if it does not become ready."""
        end = monotonic() + READY_TIMEOUT_S
        while not self._is_ready():
            if self.process is None or self.process.process.poll() is not None:
                raise LoadtestError(f"node {self.number} ended: {self.log[-2000:]}")
            if monotonic() > end:
                raise LoadtestError(f"node {self.number} is not ready: {self.log[-2000:]}")
            self.process.pause()

    def mount(self, commit: str) -> None:
        """Mounts the dataset at ``mountpoint``; it can be read then."""
        self.mountpoint.mkdir(exist_ok=True)
        words = [lodefs_command(), "mount", "--foreground", f"{REPO}@{commit}"]
        command = self.host.argv([*words, self.mountpoint])
        self.mounted = Child(command, env=self._environment())
        end = monotonic() + READY_TIMEOUT_S
        while not self.mountpoint.is_mount():
            if self.mounted.process.poll() is not None or monotonic() > end:
                raise self.mounted.failed("did not mount")
            self.mounted.pause()

    def stop(self) -> None:
        """Unmounts, and ends the proxy as systemd does."""
        self._unmount()
        if self.process is not None:
            with suppress(ChildError):
                self.process.terminate(timeout_s=READY_TIMEOUT_S)
            self.last_words = self.log
            self.process = None

    def kill(self) -> None:
        """Kills everything, as if the machine were gone."""
        if self.process is not None:
            self.process.kill()
            self.last_words = self.log
            self.process = None
        self._unmount()

    def restart(self) -> None:
        """Ends the proxy and starts it again on its cache; the mount stays."""
        if self.process is not None:
            self.process.terminate(timeout_s=READY_TIMEOUT_S)
        self.launch()
        self.wait_ready()

    def status(self) -> dict[str, Any]:
        """The node's status; empty without an answer."""
        try:
            code, body = self._ask("/status")
            found: dict[str, Any] = json.loads(body)
        except (OSError, ValueError, http.client.HTTPException):
            return {}
        return found if code == 200 else {}

    @property
    def log(self) -> str:
        """The proxy's log."""
        return self.last_words if self.process is None else self.process.output

    def _unmount(self) -> None:
        if self.mounted is not None:
            with suppress(ChildError):
                self.mounted.terminate(timeout_s=READY_TIMEOUT_S)
            if self.mountpoint.is_mount():
                run(["umount", "-l", str(self.mountpoint)])
            self.mounted = None

    def _is_ready(self) -> bool:
        try:
            return self._ask("/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _ask(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("node", timeout=ASK_TIMEOUT_S)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(ASK_TIMEOUT_S)
        try:
            connection.sock.connect(str(self.socket))
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _environment(self) -> dict[str, str]:
        home = {"HOME": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "home")}
        config = {"LODEFS_CONFIG": str(self.folder / "lodefs.toml"), "LODEFS_STORE": ""}
        return {**self.environment, **home, **config, "XDG_RUNTIME_DIR": str(self.folder)}


def toml_of(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of tables of texts, numbers, flags and lists of texts; "" is what stands before them."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def check_known(settings: Mapping[str, Any]) -> None:
    """Raises LoadtestError if this lodefs lacks one of the settings."""
    unknown = sorted(set(settings) - SETTINGS)
    if unknown:
        raise LoadtestError(
            f"this lodefs has no setting {', '.join(unknown)}; --without-peers runs without peers"
        )

"""What dockerd asks of a volume plugin, in its order, without dockerd: for tests and latencies.

The orders were seen with dockerd 20.10 (tests/loadtests/test_dockercalls.py compares them) and are
those of moby's integration tests of external volume drivers. What surprises:

- Mount comes again with the ID of a mount that stands (``docker cp`` of a running container), and
  then Unmount with this ID, twice in all: IDs are counted, they are no set.
- A container's first start mounts twice where its image has a directory at the target: dockerd
  copies that into an empty volume, under an ID of its own.
- Lost connections are tried again: the plugin may have done it already. Where the request had been
  sent the next tries have no body, since dockerd has read it to its end (moby, pkg/plugins,
  callWithRetry): the plugin cannot know what they are about.
- After a restart dockerd asks Get of all that it knows, and neither Mount nor Unmount.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from loadtests.services.pluginrelay import ANSWER_TIMEOUT_S, Call, Calls, UnixConnection

RETRIES_S = (1, 2, 4, 8)  # moby, pkg/plugins/client.go: given up before 30 s are over
ACCEPT = "application/vnd.docker.plugins.v1.2+json"


class PluginError(Exception):
    """The plugin refused; the text is its ``Err``."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume that a container uses."""

    volume: str
    id: str
    place: str


class DockerCalls:
    """dockerd's side of docker.volumedriver/1.0. Every call is written down in ``calls``.

    Methods named as docker's commands make the calls that these make, and raise PluginError with
    what the plugin says against one; OSError where it cannot be reached.
    """

    def __init__(self, plugin: Path, wait: Callable[[float], None] = sleep) -> None:
        """``plugin``: its socket. ``wait`` is called with seconds between two tries."""
        self.calls = Calls()
        self._plugin = plugin
        self._wait = wait
        self._active = False

    def volume_create(self, name: str, options: Mapping[str, str] | None = None) -> None:
        """``docker volume create``. One that is there already is taken as it is."""
        self._activate()
        if not self._exists(name):
            self.call("Create", Name=name, Opts=dict(options) if options else None)

    def volume_inspect(self, name: str) -> dict[str, Any]:
        """``docker volume inspect``: the plugin's Volume."""
        self._activate()
        found = self.call("Get", Name=name).get("Volume")
        return found if isinstance(found, dict) else {}

    def volume_ls(self) -> list[str]:
        """``docker volume ls``: names."""
        self._activate()
        return [volume["Name"] for volume in self.call("List").get("Volumes") or []]

    def volume_rm(self, name: str) -> None:
        """``docker volume rm`` of one that no container has."""
        self.call("Get", Name=name)
        self.call("Get", Name=name)
        self.call("Remove", Name=name)

    def run(self, name: str, *, copies_up: bool = False) -> Mounted:
        """``docker run -d -v NAME:TARGET``; ``copies_up``: the image has the target."""
        self.volume_create(name)
        self.call("Get", Name=name)
        if copies_up:
            self.stop(self.mount(name))
            self.call("Get", Name=name)
        return self.mount(name)

    def cp(self, mounted: Mounted) -> None:
        """``docker cp`` from a running container: a second mount under the same ID."""
        self.call("Get", Name=mounted.volume)
        self.mount(mounted.volume, mounted.id)
        self.stop(mounted)

    def stop(self, mounted: Mounted) -> None:
        """``docker stop``, or the container's own end."""
        self.call("Get", Name=mounted.volume)
        self.call("Unmount", Name=mounted.volume, ID=mounted.id)

    def mount(self, name: str, mount_id: str = "") -> Mounted:
        """Mount alone."""
        mount_id = mount_id or secrets.token_hex(32)
        place = self.call("Mount", Name=name, ID=mount_id).get("Mountpoint", "")
        return Mounted(name, mount_id, place)

    def restart(self, known: list[str]) -> None:
        """dockerd is started again, and has volumes ``known``, of containers or not."""
        self._active = False
        self._activate()
        for name in known:
            self._exists(name)

    def call(self, method: str, **body: object) -> dict[str, Any]:
        """One call, tried again while the connection is lost; PluginError, OSError."""
        name = method if "." in method else f"VolumeDriver.{method}"
        raw = json.dumps(body).encode() + b"\n" if body else b""
        sent = dict(body)
        for pause_s in (*RETRIES_S, None):
            begin = perf_counter()
            connection, connected = UnixConnection(self._plugin, ANSWER_TIMEOUT_S), False
            try:
                connection.connect()
                connected = True
                status, answer = _post(connection, name, raw)
            except (OSError, http.client.HTTPException) as error:
                self.calls.seen.append(Call(name, sent, None, perf_counter() - begin))
                if pause_s is None:
                    raise OSError(f"{name}: {error}") from error
                if connected:  # and sent
                    raw, sent = b"", {}
                self._wait(pause_s)
                continue
            finally:
                connection.close()
            self.calls.seen.append(Call(name, sent, answer, perf_counter() - begin))
            if status != 200 or answer.get("Err"):
                raise PluginError(answer.get("Err") or f"{name}: status {status}")
            return answer
        raise AssertionError("the last try either answers or raises")

    def _activate(self) -> None:
        if not self._active:
            if "VolumeDriver" not in self.call("Plugin.Activate").get("Implements", ()):
                raise PluginError("the plugin does not implement VolumeDriver")
            self.call("Capabilities")
            self._active = True

    def _exists(self, name: str) -> bool:
        try:
            return bool(self.call("Get", Name=name).get("Volume"))
        except PluginError:
            return False


def _post(connection: UnixConnection, name: str, raw: bytes) -> tuple[int, dict[str, Any]]:
    connection.request("POST", f"/{name}", raw, {"Accept": ACCEPT})
    got = connection.getresponse()
    return got.status, json.loads(got.read() or b"{}")

"""Containers on a node with Docker volumes: a real dockerd that knows the node's plugin."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from loadtests.services.dockerd import IMAGE, Dockerd
from loadtests.services.pluginnode import PluginNode
from tests.support.chunkstore.child_process import ChildError

REPO = "team/flowers"
BIG, BIG_BYTES = "big.bin", 3_000_001
SUMS = "SHA256SUMS"  # of all other files, as sha256sum writes it

# Reads all files over and over and compares: BIG past the page cache, all others through it. It
# leaves a processor for what it is to survive.
VERIFY = f"""
rounds=0; bad=0; want=$(grep ' {BIG}$' /data/{SUMS} | cut -c1-64)
while [ ! -e /tmp/stop ]; do
  got=$(dd if=/data/{BIG} bs=256k iflag=direct 2>/dev/null | sha256sum | cut -c1-64)
  [ "$got" = "$want" ] || bad=$((bad+1))
  (cd /data && sha256sum -s -c {SUMS}) || bad=$((bad+1))
  rounds=$((rounds+1)); echo $rounds $bad > /tmp/seen
  sleep 0.05
done
"""


class Containers:
    """Volumes of one driver, and containers that use them. ``close`` removes all of them."""

    def __init__(self, dockerd: Dockerd, node: PluginNode, driver: str) -> None:
        self.dockerd = dockerd
        self.node = node
        self.driver = driver
        self._volumes: list[str] = []
        self._names: list[str] = []

    def volume(self, repo: str, name: str = "", **options: str) -> str:
        """A new volume; its name. ChildError with docker's words where it is refused."""
        done = self.try_volume(name, repo=repo, **options)
        if done.returncode != 0:
            raise ChildError(done.stderr.strip())
        return done.stdout.strip()

    def try_volume(self, name: str = "", **options: str) -> subprocess.CompletedProcess[str]:
        """``docker volume create``, however it ends."""
        name = name or f"volume-{secrets.token_hex(4)}"
        self._volumes.append(name)
        more = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        return self.dockerd.try_docker("volume", "create", "-d", self.driver, *more, name)

    def status(self, volume: str) -> dict[str, Any]:
        """What the plugin tells of a volume."""
        (found,) = json.loads(self.dockerd.docker("volume", "inspect", volume))
        status = found.get("Status")
        return status if isinstance(status, dict) else {}

    def run(self, volume: str, script: str, *words: str) -> str:
        """What a shell script writes in a container that has the volume on /data."""
        return self.dockerd.docker(*self._words(volume, "--rm", *words), "sh", "-c", script)

    def start(self, volume: str, script: str = "sleep 600", *words: str) -> str:
        """A container that runs on; its name."""
        name = f"box-{secrets.token_hex(4)}"
        self._names.append(name)
        start = self._words(volume, "-d", "--name", name, "--stop-timeout", "1", *words)
        self.dockerd.docker(*start, "sh", "-c", script)
        return name

    def verified(self, name: str) -> tuple[int, int]:
        """How many rounds a container that runs VERIFY has done, and how many reads were bad."""
        with suppress(ChildError, ValueError):
            rounds, bad = map(int, self.dockerd.docker("exec", name, "cat", "/tmp/seen").split())
            return rounds, bad
        return 0, 0

    def remove(self, name: str) -> None:
        """Ends a container."""
        self.dockerd.docker("rm", "--force", "--volumes", name)

    def remove_volume(self, name: str) -> None:
        """``docker volume rm``; ChildError where it is refused."""
        self.dockerd.docker("volume", "rm", name)
        self._volumes.remove(name)

    def close(self) -> None:
        """Removes all containers and volumes that were made here, as far as they are there."""
        if self._names:
            self.dockerd.try_docker("rm", "--force", "--volumes", *self._names)
        if self._volumes:
            self.dockerd.try_docker("volume", "rm", "--force", *self._volumes)
        self._names.clear()
        self._volumes.clear()

    def _words(self, volume: str, *more: str) -> tuple[str, ...]:
        return ("run", "--network", "none", "-v", f"{volume}:/data", *more, IMAGE)


def write_flowers(folder: Path, size_bytes: int = BIG_BYTES) -> list[str]:
    """A dataset that VERIFY can read: BIG, two small files, SUMS; their names."""
    files = {BIG: os.urandom(size_bytes), "labels/a.txt": b"rose\n", "labels/b.txt": b"tulip\n"}
    sums = (f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
    files[SUMS] = "".join(sums).encode()
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return list(files)


@contextmanager
def containers(
    dockerd: Dockerd, node: PluginNode, socket: Path | None = None
) -> Iterator[Containers]:
    """Containers with volumes of ``node``, whose plugin dockerd finds at ``socket``, a relay's for
    example, else at its own."""
    with dockerd.plugin(socket or node.socket) as driver:
        made = Containers(dockerd, node, driver)
        try:
            yield made
        finally:
            made.close()

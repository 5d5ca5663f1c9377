"""Runs lodefs as users do: the command line in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from loadtests.measure import Run, run

LODEFS = Path(sys.executable).with_name("lodefs")
READY_TIMEOUT_S = 120
REQUESTS = "lodefs_http_request_seconds_count{"


@dataclass(frozen=True, slots=True)
class Lodefs:
    """Calls of ``lodefs`` on one store, with a home directory of their own."""

    store: str
    home: Path
    env: Mapping[str, str]
    program: Path = LODEFS

    def environment(self) -> dict[str, str]:
        """The environment for lodefs, without the user's own configuration."""
        self.home.mkdir(parents=True, exist_ok=True)
        empty = self.home / "lodefs.toml"
        empty.touch()
        own = {"LODEFS_STORE": self.store, "HOME": str(self.home), "LODEFS_CONFIG": str(empty)}
        return {**self.env, **own, "XDG_CACHE_HOME": str(self.home / "cache")}

    def run(self, *words: str | Path, watch_memory: bool = False) -> Run:
        """Runs one command. Raises: CommandError if it fails."""
        return run([self.program, *words], env=self.environment(), watch_memory=watch_memory)

    def json(self, *words: str | Path) -> Any:
        """Runs one command with ``--json``. Returns its decoded answer."""
        return json.loads(self.run(*words, "--json").output)

    def commits(self, repo: str) -> list[str]:
        """The ids of a repository's commits, newest first."""
        lines = self.run("log", repo, "--json").output.splitlines()
        return [json.loads(line)["commit"] for line in lines]

    @contextmanager
    def proxy(self, folder: Path, *words: str) -> Iterator[Proxy]:
        """A ready proxy with its cache and socket in ``folder``; it is ended afterwards."""
        proxy = Proxy.start(self, folder, *words)
        try:
            yield proxy
        finally:
            proxy.stop()


@dataclass(slots=True)
class Proxy:
    """A running ``lodefs serve``."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path
    ready_s: float

    @classmethod
    def start(cls, lodefs: Lodefs, folder: Path, *words: str) -> Proxy:
        """Starts it, and waits until ``/readyz`` succeeds."""
        folder.mkdir(parents=True, exist_ok=True)
        path, log = folder / "proxy.sock", folder / "proxy.log"
        command = [str(lodefs.program), "serve", "--cache", str(folder / "cache"),
                   "--socket", str(path), *words]  # fmt: skip
        start = time.perf_counter()
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **lodefs.environment()},
            )
        while not _is_ready(path):
            if process.poll() is not None or time.perf_counter() - start > READY_TIMEOUT_S:
                process.kill()
                raise RuntimeError(f"the proxy did not start: {log.read_text()[-2000:]}")
            time.sleep(0.005)
        return cls(process, path, log, time.perf_counter() - start)

    @property
    def url(self) -> str:
        """The value for ``--proxy``."""
        return f"unix:{self.socket}"

    def memory_bytes(self) -> int:
        """Its present proportional set size."""
        return int(psutil.Process(self.process.pid).memory_full_info().pss)

    def cpu_s(self) -> float:
        """Processor seconds used so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def metrics(self) -> str:
        """Its metrics, as Prometheus would read them now."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.socket))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: client.recv(1 << 16), b"")).decode()

    def requests(self, *routes: str) -> int:
        """How many requests of some routes it has answered."""
        lines = [line for line in self.metrics().splitlines() if REQUESTS in line]
        ours = [line for line in lines if any(f'route="{route}"' in line for route in routes)]
        return int(sum(float(line.rpartition(" ")[2]) for line in ours))

    def stop(self) -> None:
        """Sends SIGTERM, and waits for its end."""
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()


def _is_ready(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(path))
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
            return client.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False

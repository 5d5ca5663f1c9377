"""Benchmark of the delays that readers notice when processes behind a mount are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import psutil

from loadtests import corpora
from loadtests.bench.sides import detach
from loadtests.cli import Lodefs, Proxy
from loadtests.results import Result
from loadtests.verifying import RANGES, Verified, verifying

REPO = "bench"
FILE_BYTES = 256 << 20
READERS = 4
EVERY_S = 2.0
SECONDS = 60.0


def killing(scratch: Path) -> Result:
    """Workers, then the proxy, then the supervisor killed every 2 s for 60 s each, under readers
    that check every byte."""
    result = Result("survival")
    source = corpora.random_file(FILE_BYTES)
    lodefs = Lodefs(str(scratch / "store"), scratch / "home", {})
    lodefs.run("init", scratch / "store")
    lodefs.run("push", source.parent, REPO)
    target = scratch / "mnt"
    target.mkdir()
    node = Node(lodefs, scratch / "node", target)
    try:
        lodefs.run("--proxy", node.proxy.url, "mount", REPO, target)
        for what, kill, stall_s in (
            ("all workers", node.kill_workers, 1.0),
            ("proxy", node.kill_proxy, 3.0),
            ("supervisor", node.kill_supervisor, None),
        ):
            kills, seen = _under_load(kill, target, source.parent)
            result.add(f"{what}: kill -9", kills, "times")
            result.add(f"{what}: reads", seen.operations)
            result.add(f"{what}: bytes", seen.size_bytes / 2**30, "GiB")
            result.add(f"{what}: errors", seen.errors, at_most=0)
            result.add(f"{what}: wrong bytes", seen.wrong, at_most=0)
            longest_s = max(seen.longest_s.values(), default=0.0)
            result.add(f"{what}: longest stall", longest_s, "s", at_most=stall_s)
        result.add("proxy: longest start", node.proxy_ready_s, "s")
    finally:
        detach(target)
        node.proxy.stop()
    result.notes.append("the proxy is started again at once, the supervisor by a take-over")
    return result


class Node:
    """A proxy and a mount on ``target``, with methods that kill their processes."""

    def __init__(self, lodefs: Lodefs, folder: Path, target: Path, *words: str) -> None:
        """``words``: further options of ``lodefs serve``."""
        self._lodefs = lodefs
        self._folder = folder
        self._target = target
        self._words = words
        self.proxy = Proxy.start(lodefs, folder, *words)
        self.proxy_ready_s = 0.0  # the longest restart

    def kill_workers(self) -> None:
        """Kills all workers at once."""
        for worker in psutil.Process(self.supervisor()).children():
            worker.kill()

    def kill_proxy(self) -> None:
        """Kills the proxy, and starts it again."""
        self.proxy.kill()
        self._start_proxy()

    def restart_proxy(self) -> None:
        """Ends the proxy regularly, and starts it again."""
        self.proxy.stop()
        self._start_proxy()

    def _start_proxy(self) -> None:
        self.proxy = Proxy.start(self._lodefs, self._folder, *self._words)
        self.proxy_ready_s = max(self.proxy_ready_s, self.proxy.ready_s)

    def kill_supervisor(self) -> None:
        """Kills the supervisor; another one takes the mount over."""
        os.kill(self.supervisor(), signal.SIGKILL)
        self._lodefs.run("mount", "--take-over", self._target)

    def supervisor(self) -> int:
        """The process that holds the mount."""
        for line in self._lodefs.run("mounts", "--json").output.splitlines():
            mount = json.loads(line)
            if unquote(mount["mountpoint"]) == str(self._target) and mount["supervised"]:
                return int(mount["pid"])
        raise RuntimeError(f"{self._target} has no supervisor")


def _under_load(kill: Callable[[], None], target: Path, source: Path) -> tuple[int, Verified]:
    """The number of kills, and what readers saw meanwhile."""
    kills = 0
    with verifying(RANGES, target, source, READERS) as seen:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            kill()
            kills += 1
            time.sleep(EVERY_S)
    return kills, seen

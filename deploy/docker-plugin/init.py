"""The first process of the managed plugin: runs a proxy and the volume plugin, and keeps them so.

Either is started again when it ends, after a pause that grows while it does so at once; mounts are
processes of their own and live on meanwhile, as this process does: were it to end, the container
would, with all mounts. It reaps whatever dies. SIGTERM ends the plugin, the mounts, the proxy.

Only the plugin and its mounts may mount; all give up the capabilities that they do not need. Runs
with Python's own library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from dataclasses import dataclass

LODEFS = "/usr/bin/lodefs"
SOCKET = "/run/docker/plugins/lodefs.sock"
STATE = "/var/lib/lodefs/docker"
CACHE = "/var/cache/lodefs"
PROXY_SOCKET = "/run/lodefs/proxy.sock"
PAUSE_S, PAUSE_S_MAX = 0.2, 10.0
LONG_RUN_S = 30.0  # after which an end is no failure to start
END_S = 4.0  # for each of the three steps of an end; dockerd kills after 10 s
PR_CAPBSET_DROP = 24  # linux/prctl.h
CAPABILITY_VERSION_3, CAPABILITY_MAX = 0x20080522, 40  # linux/capability.h, as the next
CHOWN, DAC_OVERRIDE, FOWNER, KILL, SYS_ADMIN = 0, 1, 3, 5, 21
OF_PROXY = frozenset({CHOWN, DAC_OVERRIDE, FOWNER})
OF_PLUGIN = OF_PROXY | {KILL, SYS_ADMIN}
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}


@dataclass
class Service:
    """One program that should run. ``pid`` 0: it does not, and is started at ``due_s``."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    capabilities: frozenset[int]
    pid: int = 0
    started_s: float = 0.0
    due_s: float = 0.0
    pause_s: float = PAUSE_S

    def start(self) -> None:
        """Start it, with its own capabilities only and no signal blocked."""
        self.started_s = time.monotonic()
        self.pid = os.fork()
        if self.pid:
            return
        try:
            keep_only(self.capabilities)
            os.setsid()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(self.argv[0], self.argv, self.environment)
        finally:
            os._exit(127)

    def ended(self, status: int) -> None:
        """Note that it has ended, and when it is to be started again."""
        now_s = time.monotonic()
        if now_s - self.started_s >= LONG_RUN_S:
            self.pause_s = PAUSE_S
        self.pid, self.due_s = 0, now_s + self.pause_s
        code = os.waitstatus_to_exitcode(status)
        log("warning", "service ended", service=self.name, exit_code=code, pause_s=self.pause_s)
        self.pause_s = min(2 * self.pause_s, PAUSE_S_MAX)


def services(settings: dict[str, str]) -> list[Service]:
    """What runs, by the plugin's settings; those that are empty count as not set."""
    environment = {name: value for name, value in settings.items() if value}
    environment |= {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    level = environment.pop("LODEFS_LOG_LEVEL", "info")
    size = environment.pop("LODEFS_CACHE_SIZE", "")
    found = []
    if not environment.get("LODEFS_PROXY"):
        environment["LODEFS_PROXY"] = f"unix:{PROXY_SOCKET}"
        argv = [LODEFS, "serve", "--socket", PROXY_SOCKET, "--cache", CACHE, "--log-level", level]
        argv += ["--cache-size", size] if size else []
        found.append(Service("proxy", argv, environment, OF_PROXY))
    argv = [LODEFS, "docker-plugin", "--socket", SOCKET, "--state", STATE, "--log-level", level]
    return [*found, Service("plugin", argv, environment, OF_PLUGIN)]


def main() -> None:
    """Run until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    running = services(dict(os.environ))
    while True:
        now_s = time.monotonic()
        for service in running:
            if not service.pid and service.due_s <= now_s:
                service.start()
        waits = [s.due_s - now_s for s in running if not s.pid]
        got = signal.sigtimedwait(SIGNALS, max(min(waits, default=60.0), 0.0))
        if got and got.si_signo != signal.SIGCHLD:
            end(running)
            return
        for pid, status in reaped():
            for service in running:
                if service.pid == pid:
                    service.ended(status)


def end(running: list[Service]) -> None:
    """Plugin, mounts, proxy: so that nobody asks for what is gone."""
    log("info", "ending")
    for service in reversed(running):
        if service.name == "proxy":
            take_mounts_away()
        stop(service)
    take_mounts_away()


def stop(service: Service) -> None:
    """SIGTERM, and SIGKILL when it is late."""
    if not service.pid:
        return
    deadline_s = time.monotonic() + END_S
    os.kill(service.pid, signal.SIGTERM)
    while service.pid not in (pid for pid, _ in reaped()):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            os.kill(service.pid, signal.SIGKILL)
            return
        signal.sigtimedwait({signal.SIGCHLD}, left_s)


def take_mounts_away() -> None:
    """Unmounts all lodefs mounts; who still reads keeps what it has open."""
    with open("/proc/self/mountinfo", "rb") as table:
        places = [line.split()[4] for line in table if b" - fuse.lodefs " in line]
    libc = ctypes.CDLL(None, use_errno=True)
    for place in reversed(places):
        libc.umount2(place.decode("unicode_escape").encode("latin-1"), 2)  # MNT_DETACH


def reaped() -> list[tuple[int, int]]:
    """(process id, status) of all children that have ended, adopted ones too."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not pid:
            return found
        found.append((pid, status))


def keep_only(capabilities: frozenset[int]) -> None:
    """Give all other capabilities up, for good: they leave the bounding set, so that no program
    that is started gets them, and the inheritable one, which counts too (capabilities(7))."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(CAPABILITY_MAX + 1):
        if number not in capabilities:
            libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL: the kernel does not know it
    kept = sum(1 << number for number in capabilities)
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    low = struct.pack("=III", kept, kept, 0)  # effective, permitted, inheritable
    if libc.capset(header, low + bytes(12)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def log(level: str, event: str, **more: object) -> None:
    """One line for dockerd's log."""
    sys.stderr.write(json.dumps({"level": level, "event": event, **more}) + "\n")


if __name__ == "__main__":
    main()

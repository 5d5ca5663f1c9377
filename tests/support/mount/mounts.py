"""Real mounts for tests: a sample tree, mounts that end with their test, ways to harm them."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

import lodefs
from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.mount.kernel.features import Feature
from lodefs.mount.options import MountOptions
from lodefs.mount.process import mounter
from lodefs.mount.process.mounter import Mounted
from tests.support.mount.dict_tree import DictTree, Link, Program
from tests.support.mount.fake_proxy import FakeProxy
from tests.support.mount.kernels import THIS_ONE, Kernel

WAIT_S = 60.0  # for anything that a healthy mount does at once, on a slow and loaded machine

AWKWARD = [b"\xff\xfe", b"new\nline", b"n" * 255, b" blank ", b"\\134", b"%2e%2e", b"q?a=b&c#d"]
BIG = random.Random(5).randbytes(5_000_000)
SAMPLE = DictTree(
    {
        b"a": b"hello",
        b"empty": b"",
        b"none": {},
        b"program": Program(b"#!/bin/sh\necho ran\n"),
        b"link": Link(b"a"),
        b"loop": Link(b"loop"),
        b"out": Link(b"/etc/hostname"),
        b"big": BIG,
        b"many": {b"%05d" % n: b"%d" % n for n in range(5000)},
        b"awkward": {name: name for name in AWKWARD},
        b"deep": {b"er": {b"est": {b"f": b"bottom"}}},
    }
)


class Addressed(Protocol):
    """A proxy, for who only wants to reach it."""

    @property
    def address(self) -> str:
        """As a mount's option ``proxy`` has it."""
        ...


class Mounts:
    """Mounts on one directory, ``place``, through one proxy."""

    def __init__(self, folder: Path, proxy: Addressed, kernel: Kernel = THIS_ONE) -> None:
        self.kernel = kernel
        self.place = folder / "mnt"
        self.place.mkdir()
        self.log = folder / "mount.log"
        self.proxy = proxy
        self._pids: list[int] = []
        self._pid_fds: list[int] = []

    def options(self, **more: object) -> MountOptions:
        """Options that suit a test, and what else is given."""
        given = {
            "repo": "demo",
            "mountpoint": str(self.place),
            "proxy": self.proxy.address,
            "log_path": str(self.log),
            "read_timeout_s": WAIT_S,
            "threads": 4,
            "without": self.kernel.without,
            **more,
        }
        return MountOptions(**given)  # type: ignore[arg-type]

    @property
    def resends(self) -> bool:
        """Whether requests of dead workers are sent again."""
        return kernel_since(6, 9) and Feature.RESEND not in self.kernel.without

    def mount(self, **more: object) -> Mounted:
        """Mount the sample."""
        return self._watched(mounter.mount(self.options(**more)))

    def take_over(self) -> Mounted:
        """Start another supervisor for the mount that is there."""
        return self._watched(mounter.take_over(str(self.place)))

    def watch(self, pid: int) -> None:
        """A process of a mount, which must have ended when the test has."""
        self._pids.append(pid)
        self._pid_fds.append(os.pidfd_open(pid))

    def _watched(self, mounted: Mounted) -> Mounted:
        if mounted.pid is None:
            raise AssertionError("a mount without a process")
        self.watch(mounted.pid)
        return mounted

    def wait_for_end(self) -> None:
        """Wait until the processes of all mounts made here have ended."""
        for pid_fd in self._pid_fds:
            if not select.select([pid_fd], [], [], WAIT_S)[0]:
                raise AssertionError("a mount's process does not end")

    def close(self) -> None:
        """Leave nothing behind, whatever happened; a worker that is stopped would stay."""
        for pid in list(self._pids):
            for worker in workers_of(pid):
                with contextlib.suppress(ProcessLookupError):
                    self.watch(worker)
        while mount_table.on_top(str(self.place)) is not None:
            with contextlib.suppress(InvalidInput):  # it has gone by itself meanwhile
                mount_syscalls.detach(str(self.place), lazy=True)
        for pid_fd in self._pid_fds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pid_fd, signal.SIGKILL)
        self.wait_for_end()
        for pid_fd in self._pid_fds:
            os.close(pid_fd)


def kernel_since(major: int, minor: int) -> bool:
    """Whether the running kernel is of this version or newer."""
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (major, minor)


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline_s = time.monotonic() + WAIT_S
    pause = Event()
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError("what was waited for did not happen")
        pause.wait(0.01)


def read_anew(path: bytes) -> bytes:
    """A file's bytes, whatever the kernel remembers of them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.pread(fd, os.fstat(fd).st_size + 1, 0)
    finally:
        os.close(fd)


def workers_of(pid: int | None) -> list[int]:
    """The worker processes of a mount's process; none where that has ended."""
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def alive(pid: int) -> bool:
    """Whether a process runs: one that has ended may wait for its parent a while."""
    try:
        return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # the latter: gone since it was opened
        return False


def kill(pid: int | None, number: signal.Signals) -> None:
    """Send a signal to a process of a mount; it may have ended."""
    if pid is None:
        raise AssertionError("no process to kill")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def in_child(script: str, *arguments: str, prefix: tuple[str, ...] = ()) -> str:
    """Run Python in another process, which can wait for the proxy of this one; what it printed.

    A page fault, or starting a program from the mount, would stop this process and the proxy in it.
    """
    done = subprocess.run(
        [*prefix, sys.executable, "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(lodefs.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def read_in_thread(path: Path) -> tuple[Thread, list[bytes | OSError]]:
    """Read a file in another thread: its bytes, or the error, come into the list."""
    result: list[bytes | OSError] = []

    def run() -> None:
        try:
            result.append(path.read_bytes())
        except OSError as error:
            result.append(error)

    thread = Thread(target=run)
    thread.start()
    return thread, result


def hold_reads(proxy: FakeProxy, *, reads: int = 1, where: str = "/data") -> tuple[Event, Event]:
    """The next reads of ``where`` wait: set when one has come; to be set to let them go on."""
    came, go = Event(), Event()
    turns = iter(range(reads))

    def hook(path: str) -> None:
        if where in path and next(turns, None) is not None:
            came.set()
            go.wait(WAIT_S)

    proxy.hook = hook
    return came, go

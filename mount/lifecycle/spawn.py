"""Starting the process that answers for a mount, and hearing whether it is ready."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

import lodefs
from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.lifecycle import daemon
from lodefs.mount.mount_spec import Job, Report, TakeOver
from lodefs.mount.shm.startup_state import Stage

REPORT_BYTES_MAX = 65536
_FD_MAX = 65536


def start(
    order: Job | TakeOver,
    mountpoint: str,
    log_path: str,
    timeout_s: float,
    *,
    fork: bool = False,
    stage: Stage | None = None,
    begun: Callable[[int], None] = lambda _session: None,
) -> Report:
    """Start the daemon and wait for its report, at most a little longer than it gives itself.

    ``fork``: it may be a child of this process, with all that this process has loaded, which
    saves the start of another Python; where there are threads, it is not. ``stage``: of a child.
    ``begun`` hears its session (setsid(2)), which no other process has while it lives.
    Unavailable.
    """
    read_fd, write_fd = os.pipe()
    try:
        if fork and threading.active_count() == 1:
            _fork(order, write_fd, stage, begun)
        else:
            _spawn(order, write_fd, begun)
        os.close(write_fd)
        write_fd = -1
        return _receive(read_fd, mountpoint, log_path, timeout_s)
    finally:
        os.close(read_fd)
        if write_fd >= 0:
            os.close(write_fd)


def spawn(module: str, fd: int) -> int:
    """Start a module of ours as a program, with the descriptor ``fd``; its pid, for waitpid(2)."""
    import subprocess

    started = subprocess.Popen(_command(module, fd), pass_fds=[fd], **_settings())
    started.returncode = 0  # others wait for it: Popen need not
    return started.pid


def _spawn(order: Job | TakeOver, write_fd: int, begun: Callable[[int], None]) -> None:
    import subprocess

    command = _command("lodefs.mount.lifecycle.daemon", write_fd)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=[write_fd], **_settings()
    ) as starter:
        begun(starter.pid)
        starter.communicate(msgspec.msgpack.encode(order))


def _command(module: str, fd: int) -> list[str]:
    return [sys.executable, "-P", "-m", module, str(fd)]


def surroundings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process of a mount, from that of its starter: it finds this package,
    which need not be installed, and gets no credentials of S3, which are for proxies alone."""
    kept = {name: value for name, value in environ.items() if not name.startswith("AWS_")}
    here = str(Path(lodefs.__file__).resolve().parents[1])
    path = os.pathsep.join([here, *filter(None, [environ.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path}


def _settings() -> dict[str, Any]:
    return {"start_new_session": True, "cwd": "/", "env": surroundings(os.environ)}


def _fork(
    order: Job | TakeOver, write_fd: int, stage: Stage | None, begun: Callable[[int], None]
) -> None:
    import ctypes  # noqa: F401 - in the child it takes three times as long, page by page

    pid = os.fork()
    if not pid:
        _become(order, write_fd, stage)
    begun(pid)
    os.waitpid(pid, 0)


def _become(order: Job | TakeOver, write_fd: int, stage: Stage | None) -> NoReturn:
    """In the child: as if it were a program of its own; nothing of the parent's is run."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.chdir("/")
        for name in os.environ.keys() - surroundings(os.environ).keys():
            del os.environ[name]
        os.closerange(3, write_fd)
        os.closerange(write_fd + 1, _FD_MAX)
        daemon.run(order, write_fd, stage)
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    finally:
        os._exit(status)


def _receive(read_fd: int, mountpoint: str, log_path: str, timeout_s: float) -> Report:
    deadline_s = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(b"\n") and len(data) < REPORT_BYTES_MAX:
        ready, _, _ = select.select([read_fd], [], [], max(deadline_s - time.monotonic(), 0))
        part = os.read(read_fd, REPORT_BYTES_MAX) if ready else b""
        if not part:
            why = "ended without a word" if ready else "did not get ready in time"
            log = log_path or "the log of the mount"
            raise Unavailable(f"{mountpoint}: the mount's process {why}; see {log}")
        data += part
    return msgspec.json.decode(data, type=Report)

"""Starts the process that becomes a mount, and waits until it is ready."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from lodefs.chunkstore import python_process
from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system import processes
from lodefs.chunkstore.system.safe_open import closing
from lodefs.mount.kernel import mount_syscalls, mount_table, mountpoints
from lodefs.mount.mount_spec import MountRequest, Reply, TakeOver
from lodefs.mount.process import daemon, startup

CANCEL_TIMEOUT_S = 5.0  # for an unwanted mount process to unmount itself
DETACH_TIMEOUT_S = 2.0  # for the workers of a killed mount process to end
DETACH_PAUSE_S = 0.01
_FD_MAX = 65536


def start(
    request: MountRequest | TakeOver,
    mountpoint: str,
    log_path: str,
    timeout_s: float,
    *,
    fork: bool = False,
) -> Reply:
    """Starts the mount process and waits for its reply; acknowledges a new mount that succeeded.

    ``fork``: the process may be a child of this one, with everything that is loaded here, which
    saves the start of another Python. A process with threads is not forked.
    Raises: Unavailable. After that, or an interrupt, nothing is mounted.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    group = mount_pid = 0
    with ours:
        try:
            with theirs:
                if fork and threading.active_count() == 1:
                    group = _fork(request, theirs)
                else:
                    # The request goes over the socket: a token is in no argument list.
                    rpc.send(ours, request)
                    group = spawn("lodefs.mount.process.daemon", theirs.fileno())
                    os.waitpid(group, 0)  # the mount process is a child of the group leader
            ours.settimeout(timeout_s)
            reply = _receive(ours, mountpoint, log_path)
            mount_pid = reply.pid
            is_new = isinstance(request, MountRequest) and reply.failure is None
            if is_new and not startup.acknowledge(ours):
                raise _silent(mountpoint, log_path, "ended without an answer")
        except TimeoutError as error:
            _cancel(ours, group, request, mount_pid)
            raise _silent(mountpoint, log_path, "was not ready in time") from error
        except BaseException:
            _cancel(ours, group, request, mount_pid)
            raise
        return reply


def spawn(module: str, fd: int) -> int:
    """Starts a module as a program with the descriptor ``fd``. Returns its pid, for waitpid(2)."""
    import subprocess

    started = subprocess.Popen(
        python_process.command(module, str(fd)), pass_fds=[fd], **_settings()
    )
    started.returncode = 0  # others wait for it: Popen must not
    return started.pid


def surroundings(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for a process of a mount, made from that of its starter, without
    credentials for S3, which only proxies may have."""
    kept = python_process.environment(environ)
    return {name: value for name, value in kept.items() if not name.startswith("AWS_")}


def _settings() -> dict[str, Any]:
    return {"start_new_session": True, "cwd": "/", "env": surroundings(os.environ)}


def _fork(request: MountRequest | TakeOver, theirs: socket.socket) -> int:
    import ctypes  # noqa: F401 - in the child it takes three times as long, page by page

    pid = os.fork()
    if not pid:
        _become(request, theirs)
    return pid


def _become(request: MountRequest | TakeOver, channel: socket.socket) -> NoReturn:
    """Runs in the child, like a separate program; runs no code of the parent at exit."""
    status = 1
    try:
        detach_from_parent(channel.fileno())
        daemon.run(request, startup.Requester(channel, startup.new_done_fd()))
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    finally:
        os._exit(status)


def detach_from_parent(*keep: int) -> None:
    """Makes a new child leave the parent's session, signal handlers, directory and descriptors,
    except the standard ones and those in ``keep``."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.chdir("/")
    for name in os.environ.keys() - surroundings(os.environ).keys():
        del os.environ[name]
    first = 3
    for fd in [*sorted(keep), _FD_MAX]:
        os.closerange(first, fd)
        first = fd + 1


def _receive(channel: socket.socket, mountpoint: str, log_path: str) -> Reply:
    try:
        return msgpack_decoder(Reply).decode(rpc.receive(channel).data)
    except ConnectionError as error:
        raise _silent(mountpoint, log_path, "ended without an answer") from error


def _silent(mountpoint: str, log_path: str, what: str) -> Unavailable:
    log = log_path or "the log of the mount"
    return Unavailable(f"{mountpoint}: the mount's process {what}; see {log}")


def _cancel(
    channel: socket.socket, group: int, request: MountRequest | TakeOver, mount_pid: int
) -> None:
    """Returns when the mount process has unmounted itself and ended. If it does not, kills it and
    removes the mount that it leaves.

    ``mount_pid``: 0 until its reply has come. A mount that settled meanwhile ends by SIGTERM.
    """
    with contextlib.suppress(OSError):
        channel.shutdown(socket.SHUT_WR)
    if not group or not isinstance(request, MountRequest):
        return
    if _drain(channel) == startup.SETTLED and mount_pid:
        _terminate(mount_pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    _drain(channel)
    detach_killed(request.options.mountpoint)


def _drain(channel: socket.socket) -> bytes:
    """Returns the last packet before the other end of a socket is closed; b"" if that takes too
    long."""
    channel.settimeout(CANCEL_TIMEOUT_S)
    last = b""
    try:
        while data := channel.recv(rpc.PACKET_BYTES_MAX):
            last = data
    except TimeoutError:
        return b""
    except OSError:
        return last
    return last


def _terminate(pid: int) -> None:
    """Sends SIGTERM to a mount process, which unmounts before it ends."""
    with contextlib.suppress(ProcessLookupError), closing(os.pidfd_open(pid)) as pid_fd:
        processes.send(pid_fd, signal.SIGTERM)
        processes.is_over(pid_fd, CANCEL_TIMEOUT_S)


def detach_killed(mountpoint: str) -> None:
    """Removes the mount that a killed mount process left. Its workers end with it, and the mount is
    dead only after that. A living mount is another's."""
    deadline_s = time.monotonic() + DETACH_TIMEOUT_S
    while not detach_dead(mountpoint) and time.monotonic() < deadline_s:
        time.sleep(DETACH_PAUSE_S)


def detach_dead(mountpoint: str) -> bool:
    """Removes the lodefs mount on a directory if it is dead. Returns whether no dead one is
    left."""
    place = mountpoints.plain(mountpoint)
    found = mount_table.on_top(place)
    if found is None or not found.is_lodefs:
        return True
    if not mount_table.is_dead(place):
        return False
    mount_syscalls.detach(place, lazy=True)
    return True

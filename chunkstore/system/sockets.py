"""Sockets: Unix socket files, TCP, sockets from systemd, and the peers that connect to them."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import shutil
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lodefs.chunkstore.errors import Denied, InUse, InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.system import libc

BACKLOG_CONNECTIONS = 1024
_PROBE_TIMEOUT_S = 5.0
_FIRST_FD = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_SO_PEERGROUPS = 59  # asm-generic/socket.h
_PYTHON_BYTES_MAX = 1024  # limit of getsockopt in Python
_GROUPS_MAX = 65536  # NGROUPS_MAX


def listen_unix(
    path: Path,
    *,
    mode: int,
    group: str | int | None = None,
    kind: socket.SocketKind = socket.SOCK_STREAM,
    backlog: int = BACKLOG_CONNECTIONS,
    replace: bool = False,
) -> socket.socket:
    """Returns a listening Unix socket with these permission bits and group.

    It replaces a stale socket file, and with ``replace`` also one in use. The new file gets its
    name only when its permissions are right and it listens, so that nobody takes it for a stale
    one. Raises: InUse if another process listens there; InvalidInput, Denied, Unavailable.
    """
    _refuse_other_files(path)
    if not replace:
        _refuse_living(path, kind)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        made.unlink(missing_ok=True)
        listener.bind(os.fsencode(made))
        made.chmod(mode)
        if group is not None:
            shutil.chown(made, group=group)
        listener.listen(backlog)
        made.rename(path)
    except (OSError, LookupError) as error:
        listener.close()
        with suppress(OSError):
            made.unlink(missing_ok=True)
        if isinstance(error, LookupError):
            raise InvalidInput(f"socket_group: there is no group {group!r}") from error
        raise _bind_error(f"socket {path}", error) from error
    listener.settimeout(0)
    return listener


def _refuse_other_files(path: Path) -> None:
    with suppress(OSError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidInput(f"{path} exists and is not a socket: choose another path")


def _refuse_living(path: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fsencode(path))
        except (ConnectionRefusedError, FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _bind_error(f"socket {path}", error) from error
    raise InUse(f"another process serves on {path}: stop it, or choose another socket")


def is_unix(listener: socket.socket) -> bool:
    return listener.family == socket.AF_UNIX


def remove_unix(path: Path, inode: int) -> None:
    """Removes the socket's file, if it still has this inode number."""
    with suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()


def listen_tcp(host: str, port: int) -> socket.socket:
    """Returns a listening TCP socket; port 0 takes a free one."""
    family, address = _tcp_address(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise _bind_error(f"{host}:{port}", error) from error
    listener.settimeout(0)
    return listener


def _tcp_address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[Any, ...]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidInput(f"listen: {host!r} is not an address of this machine") from error
    return found[0], found[4]


def is_at(listener: socket.socket, host: str, port: int) -> bool:
    """Whether a TCP socket still listens, at the address of ``listen_tcp``; port 0 is any port."""
    try:
        family, address = _tcp_address(host, port)
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        there = listener.getsockname()
    except (OSError, InvalidInput):
        return False
    return listener.family == family and there[0] == address[0] and port in (0, there[1])


def stop_listening(listener: socket.socket) -> None:
    """Closes a listening socket, and frees its port even if other processes hold copies of it."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def inherited(environ: Mapping[str, str]) -> list[socket.socket]:
    """Returns the listening sockets that systemd opened for this process (sd_listen_fds(3))."""
    return [listener for _, listener in inherited_by_name(environ)]


def inherited_by_name(environ: Mapping[str, str]) -> list[tuple[str, socket.socket]]:
    """Returns the same, and those that systemd kept for this process, with their names: that of the
    socket's unit, or the name under which they were kept."""
    found = []
    for name, fd in passed(environ):
        try:
            one = socket.socket(fileno=fd)
        except OSError as error:
            raise InvalidInput(f"LISTEN_FDS: descriptor {fd} is not a socket") from error
        one.settimeout(0)
        found.append((name, one))
    return found


def passed(environ: Mapping[str, str]) -> list[tuple[str, int]]:
    """Returns the names and numbers of all descriptors that systemd passed to this process
    (sd_listen_fds(3)). Its child processes do not get them."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit():
        return []
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    found = [
        (names[number] if number < len(names) else "", _FIRST_FD + number)
        for number in range(int(count))
    ]
    for _, fd in found:
        with suppress(OSError):  # not open: its user reports that
            fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    return found


def _bind_error(what: str, error: OSError) -> LodefsError:
    if error.errno == errno.EADDRINUSE:
        return InUse(f"{what} is in use by another process")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"{what}: permission denied")
    return Unavailable(f"{what}: {error.strerror or error}")


class Peer(NamedTuple):
    """The peer of a Unix socket: its user, its groups at that time, and its process id, which is 0
    for another process namespace."""

    uid: int
    gids: frozenset[int]
    pid: int = 0


def peer_of(sock: socket.socket) -> Peer:
    """Returns the peer of a Unix socket, from the kernel (unix(7)). Raises: OSError."""
    pid, uid, gid = _CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    groups = array.array("I")
    try:
        groups.frombytes(sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _PYTHON_BYTES_MAX))
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        groups = _many(sock)
    return Peer(uid, frozenset((gid, *groups)), pid)


def _many(sock: socket.socket) -> array.array[int]:
    import ctypes

    found = (ctypes.c_uint32 * _GROUPS_MAX)()
    size = ctypes.c_uint32(ctypes.sizeof(found))
    libc.call("getsockopt", sock.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, found,
              ctypes.byref(size))  # fmt: skip
    return array.array("I", found[: size.value // 4])

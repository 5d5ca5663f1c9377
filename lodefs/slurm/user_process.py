"""Work in a child that has only the rights of a user, for a process of root.

A user may change each part of a path at any time, and must not learn through it what only root
sees. So the child opens the path. It is abandoned if it does not answer in time, since the user's
own file system may serve the path.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.protocol import rpc
from lodefs.chunkstore.system import libc

TIMEOUT_S = 10.0
MESSAGE_BYTES_MAX = 8192
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def opened_by(uid: int, path: str, work: Callable[[str], int]) -> int:
    """Returns the descriptor that ``work`` returns for a path, in such a child. Ask only the kernel
    about it, since its file system may hang. Raises: InvalidInput, also for errors of ``work``."""
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError as error:
        raise InvalidInput(f"{path}: this machine has no user {uid}") from error
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = os.fork()
            if not child:
                _answer(theirs, lambda: work(path), uid, user.pw_gid, groups)
        try:
            return _answered(ours, path)
        finally:
            os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)  # does not wait: its file system may be stuck


def append_lines(uid: int, path: str, lines: Sequence[str]) -> None:
    """Appends lines to an existing file. Raises: InvalidInput if the user could not do so, if it is
    not a regular file, or if its file system does not answer."""
    text = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")

    def append(path: str) -> int:
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            fd = os.open(path, flags)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise InvalidInput(f"{path} is not a regular file")
            os.write(fd, text)
            os.close(fd)
            # Root gets a descriptor of something else: closing the file asks its file system
            return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidInput(f"{path}: {error.strerror}") from error

    os.close(opened_by(uid, path, append))


def _answered(ours: socket.socket, path: str) -> int:
    try:
        ours.settimeout(TIMEOUT_S)
        message = rpc.receive(ours, MESSAGE_BYTES_MAX, fds_max=1)
    except TimeoutError as error:
        raise InvalidInput(f"{path}: its file system does not answer") from error
    except ConnectionError as error:
        raise InvalidInput(f"{path}: the process that opened it was killed") from error
    if not message.fds:
        raise InvalidInput(message.data.decode("utf-8", "replace"))
    return message.fds[0]


def _answer(
    theirs: socket.socket, work: Callable[[], int], uid: int, gid: int, groups: list[int]
) -> NoReturn:
    try:
        libc.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)  # the user must not attach to it
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        socket.send_fds(theirs, [b"opened"], [work()])
    except InvalidInput as error:
        theirs.send(str(error).encode("utf-8", "replace")[:MESSAGE_BYTES_MAX])
    finally:
        os._exit(0)

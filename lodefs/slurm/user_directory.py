"""A directory of a job's user, for root to mount on: looked at, made and opened by that user.

The user may change each part of its path at any time, and may not learn by it what only root sees.
So a child with the user's rights alone goes there, and root gets a descriptor. The child is given
up where it does not answer in time: the user's own file system may serve the path.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
from contextlib import suppress
from typing import NoReturn

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.nodeapi import rpc
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.safe_open import PLACE, closing

TIMEOUT_S = 10.0
MESSAGE_BYTES_MAX = 8192
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def opened_as(uid: int, directory: str) -> int:
    """A descriptor (``PLACE``) of an empty directory, which is made where it is missing.

    Nothing may be asked of it but what the kernel knows by itself. Raises: InvalidInput.
    """
    try:
        user = pwd.getpwuid(uid)
        groups = os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError as error:
        raise InvalidInput(f"{directory}: this machine has no user {uid}") from error
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            child = os.fork()
            if not child:
                _answer(theirs, directory, uid, user.pw_gid, groups)
        try:
            return _answered(ours, directory)
        finally:
            os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)  # not for long: its file system may be stuck


def _answered(ours: socket.socket, directory: str) -> int:
    try:
        ours.settimeout(TIMEOUT_S)
        message = rpc.receive(ours, MESSAGE_BYTES_MAX, fds_max=1)
    except TimeoutError as error:
        raise InvalidInput(f"{directory}: its file system does not answer") from error
    except ConnectionError as error:
        raise InvalidInput(f"{directory}: who looked at it was killed") from error
    if not message.fds:
        raise InvalidInput(message.data.decode("utf-8", "replace"))
    return message.fds[0]


def _answer(
    theirs: socket.socket, directory: str, uid: int, gid: int, groups: list[int]
) -> NoReturn:
    try:
        libc.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)  # the user may not take it over
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        socket.send_fds(theirs, [b"opened"], [_opened(directory)])
    except InvalidInput as error:
        theirs.send(str(error).encode("utf-8", "replace")[:MESSAGE_BYTES_MAX])
    finally:
        os._exit(0)


def _opened(directory: str) -> int:
    try:
        fd = _open_or_make(directory)
        names_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        with closing(names_fd), os.scandir(names_fd) as entries:
            is_empty = next(entries, None) is None
    except OSError as error:
        raise InvalidInput(f"{directory}: {error.strerror}; name a directory") from error
    if not is_empty:
        raise InvalidInput(
            f"{directory} is not empty, and a mount would hide what is in it; choose an empty "
            "directory, or one that does not exist yet"
        )
    return fd


def _open_or_make(directory: str) -> int:
    """By a path whose symlinks are followed, as the user could."""
    try:
        return os.open(directory, PLACE)
    except FileNotFoundError:
        pass
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{directory} does not exist, and you may not make it ({error.strerror}); name a "
            "directory that is there, or one below your home or /tmp"
        ) from error
    return os.open(directory, PLACE)

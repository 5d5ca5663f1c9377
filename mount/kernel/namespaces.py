"""User and mount namespaces (namespaces(7)): what this process may do in its own, and leaving it.

A FUSE mount in a container's mount namespace must end with that namespace, and its processes must
find their files after pivot_root(2), which moves the root of every process of the namespace. So
they live in a private copy of it, from which their own mount has been removed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lodefs.chunkstore.errors import Unsupported
from lodefs.chunkstore.system import libc
from lodefs.mount.kernel import mount_table

_FIRST_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO, linux/proc_ns.h
_CAP_SYS_ADMIN = 21  # linux/capability.h
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000  # linux/sched.h
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000  # linux/mount.h
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_PROC = Path("/proc/self")
_YES = 255  # an exit code that is not an errno


def in_first_user_namespace(proc: Path = _PROC) -> bool:
    """Whether this process is in the machine's first user namespace; False if that is unknown."""
    try:
        return os.stat(proc / "ns/user").st_ino == _FIRST_USER_NAMESPACE
    except OSError:
        return False


def may_mount(proc: Path = _PROC) -> bool:
    """Whether this process has CAP_SYS_ADMIN in effect in its own user namespace, as any user.

    False if that is unknown.
    """
    try:
        status = (proc / "status").read_text()
    except OSError:
        return False
    effective = int(status.partition("CapEff:")[2].split(maxsplit=1)[0], 16)
    return bool(effective >> _CAP_SYS_ADMIN & 1)


def enter_new(*, user: bool) -> None:
    """Moves this process, which must have no threads, into a new mount namespace; nobody else sees
    mounts in it. ``user``: also into a new user namespace, in which it keeps its user.

    Raises: Unsupported if this machine or container does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        libc.call("unshare", _CLONE_NEWNS | (_CLONE_NEWUSER if user else 0))
        if user:
            (_PROC / "setgroups").write_text("deny")
            (_PROC / "uid_map").write_text(f"{uid} {uid} 1")
            (_PROC / "gid_map").write_text(f"{gid} {gid} 1")
        _make_private()
    except OSError as error:
        if not user:
            raise Unsupported(f"a mount namespace cannot be made: {error.strerror}") from error
        raise Unsupported(
            f"a user namespace cannot be made: {error.strerror}; the machine's settings "
            "user.max_user_namespaces, kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns may forbid it, as do containers"
        ) from error


def asked_in_new(question: Callable[[], bool]) -> bool:
    """Returns the answer to a question that needs the right to mount: a child asks it in a new user
    namespace. Raises: OSError, also if there can be no such namespace."""
    child = os.fork()
    if not child:
        code = errno.EPERM
        try:
            enter_new(user=True)
            code = _YES if question() else 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (0, _YES):
        return code == _YES
    raise OSError(code, os.strerror(code))


def leave(*, keep: str = "") -> None:
    """Continues in a copy of this process's mount namespace, without the lodefs mounts in it, which
    would live as long as this process. ``keep``: the device MAJOR:MINOR of one that stays.

    Raises: OSError. The process must have no threads.
    """
    libc.call("unshare", _CLONE_NEWNS)
    _make_private()
    for found in reversed(mount_table.read_table()):
        if (found.is_lodefs or found.is_writable) and found.device != keep:
            _take_away(found.mountpoint)


class Departure:
    """This process has left a mount namespace, in which it has just mounted, for a copy of it.

    It can go back until ``settle``. After that it holds neither the namespace nor the mount.
    """

    def __init__(self, mountpoint: str, device: str) -> None:
        """``device``: of the new mount, MAJOR:MINOR. Raises: OSError."""
        self._mountpoint = mountpoint
        self._former_fd = os.open(_PROC / "ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            leave(keep=device)
        except BaseException:
            self.close()
            raise

    def go_back(self) -> None:
        """Goes back to where others see the mount; not after ``settle``."""
        if self._former_fd >= 0:
            with suppress(OSError):
                libc.call("setns", self._former_fd, _CLONE_NEWNS)
        self.close()

    def settle(self) -> None:
        """Leaves the mount to processes in the former namespace; it ends with that."""
        _take_away(self._mountpoint)
        self.close()

    def close(self) -> None:
        """Lets go of the former namespace, in a child too."""
        if self._former_fd >= 0:
            os.close(self._former_fd)
        self._former_fd = -1


def _make_private() -> None:
    libc.call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)


def _take_away(mountpoint: str) -> None:
    with suppress(OSError):  # a mount from a more privileged namespace stays
        libc.call("umount2", os.fsencode(mountpoint), _MNT_DETACH | _UMOUNT_NOFOLLOW)

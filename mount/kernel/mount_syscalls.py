"""Mounts a FUSE connection on a directory and unmounts it: mount(2), umount2(2), fusermount3."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, Unavailable, Unsupported
from lodefs.chunkstore.protocol import rpc
from lodefs.mount.kernel import device, mountpoints, namespaces
from lodefs.mount.kernel.mount_table import FS_TYPE, SUBTYPE
from lodefs.mount.kernel.session import READ_BYTES_MAX

if TYPE_CHECKING:
    import subprocess

# linux/mount.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8

FUSERMOUNT_TIMEOUT_S = 60.0


def attach(mountpoint: str, source: bytes, *, allow_other: bool) -> int:
    """Mounts a new FUSE connection, and returns its device descriptor; INIT is still unanswered.
    ``mountpoint``: from ``mountpoints.real``.

    Uses mount(2) as root and as any user with CAP_SYS_ADMIN, also in a user namespace; otherwise
    fusermount3. Raises: Denied, Unsupported, InvalidInput.
    """
    if not _may_mount():
        return attach_by_helper(mountpoint, source, allow_other=allow_other)
    fd = device.open_device()
    try:
        _mount(fd, mountpoint, source, allow_other=allow_other)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _may_mount() -> bool:
    """Whether to do without fusermount3, which does not help root, or in a user namespace."""
    return os.geteuid() == 0 or namespaces.may_mount()


def _mount(fd: int, mountpoint: str, source: bytes, *, allow_other: bool) -> None:
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV
    options = [f"fd={fd}", "rootmode=40000", f"user_id={os.getuid()}", f"group_id={os.getgid()}"]
    options += ["default_permissions", f"max_read={READ_BYTES_MAX}"]
    if allow_other:
        options.append("allow_other")
    data = ",".join(options).encode()
    libc, last_error = _libc()
    with _checked(mountpoint), mountpoints.opened(mountpoint) as place:
        if libc.mount(source, place.encode(), FS_TYPE.encode(), flags, data) != 0:
            raise _mount_error(last_error(), mountpoint)


@contextmanager
def _checked(mountpoint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # from opening it
        raise InvalidInput(f"{mountpoint}: {error.strerror}") from error


def _mount_error(code: int, mountpoint: str) -> LodefsError:
    text = f"{mountpoint}: mount(2) fails: {os.strerror(code)}"
    if code in (errno.EPERM, errno.EACCES):
        return Denied(f"{text}; it needs root (CAP_SYS_ADMIN), or a user namespace (unshare -Ur)")
    if code == errno.ENODEV:
        return Unsupported(f"{text}; load the module: modprobe fuse")
    return InvalidInput(text)


def attach_by_helper(mountpoint: str, source: bytes, *, allow_other: bool) -> int:
    """Mounts with fusermount3, which passes the descriptor over a socket (_FUSE_COMMFD)."""
    name = source.replace(b"\\", b"\\\\").replace(b",", b"\\,")
    options = [b"ro,nosuid,nodev,default_permissions", b"subtype=" + SUBTYPE.encode()]
    options += [b"max_read=%d" % READ_BYTES_MAX, b"fsname=" + name]
    shared = [b"allow_other"] if allow_other else []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        with theirs:
            done = _mount_by_helper([*options, *shared], mountpoint, theirs.fileno())
            if done.returncode != 0 and shared and b"allow_other" in done.stderr:
                # /etc/fuse.conf allows only root's mounts to be shared: this one is the user's.
                done = _mount_by_helper(options, mountpoint, theirs.fileno())
        if done.returncode != 0:
            raise Denied(f"{mountpoint}: fusermount3 refused: {_reason(done)}")
        with suppress(ConnectionError):  # no other process has the other end now
            for fd in rpc.receive(ours, 1, fds_max=1).fds:
                return fd
    raise Unavailable(f"{mountpoint}: fusermount3 returned no descriptor")


def _mount_by_helper(
    options: list[bytes], mountpoint: str, comm_fd: int
) -> subprocess.CompletedProcess[bytes]:
    missing = (
        "mounting without root needs fusermount3 (Debian: apt-get install fuse3), "
        "or a user namespace (unshare -Ur --mount)"
    )
    arguments = [b"-o", b",".join(options), b"--", os.fsencode(mountpoint)]
    return _fusermount(arguments, missing, comm_fd)


def detach(mountpoint: str, *, lazy: bool, abort: bool = False) -> None:
    """Unmounts the mount at a path from ``mountpoints.plain``. ``lazy``: it disappears at once, and
    ends with its last user. ``abort``: whatever waits for an answer gets an error now, and nothing
    is answered any more (as root).

    Raises: BlockingIOError if it is in use and not ``lazy``; Denied, InvalidInput, Unavailable
    otherwise.
    """
    if not _may_mount():
        return detach_by_helper(mountpoint, lazy=lazy)
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0) | (_MNT_FORCE if abort else 0)
    libc, last_error = _libc()
    folder, name = os.path.split(mountpoint)
    with _checked(mountpoint), mountpoints.opened(folder) as place:  # the mount itself may be stuck
        if libc.umount2(os.fsencode(os.path.join(place, name)), flags) == 0:
            return None
        code = last_error()
    if code == errno.EBUSY:
        raise BlockingIOError(code, os.strerror(code), mountpoint)
    if code == errno.EPERM:
        raise Denied(f"{mountpoint}: umount fails: {os.strerror(code)}")
    raise InvalidInput(f"{mountpoint}: umount fails: {os.strerror(code)}")


def detach_by_helper(mountpoint: str, *, lazy: bool) -> None:
    """Unmounts a user's mount with fusermount3."""
    arguments = [b"-u", *([b"-z"] if lazy else []), b"--", os.fsencode(mountpoint)]
    done = _fusermount(arguments, "unmounting without root needs fusermount3")
    if done.returncode == 0:
        return
    reason = _reason(done)
    if "busy" in reason:
        raise BlockingIOError(errno.EBUSY, reason, mountpoint)
    raise Denied(f"{mountpoint}: fusermount3 refused: {reason}")


def _fusermount(
    arguments: list[bytes], missing: str, comm_fd: int = -1
) -> subprocess.CompletedProcess[bytes]:
    """Runs fusermount3. Raises: Unsupported with the text ``missing``; Unavailable if it does not
    end."""
    import shutil
    import subprocess

    helper = shutil.which("fusermount3")
    if helper is None:
        raise Unsupported(missing)
    try:
        return subprocess.run(
            [os.fsencode(helper), *arguments],
            env=os.environ | ({"_FUSE_COMMFD": str(comm_fd)} if comm_fd >= 0 else {}),
            pass_fds=[comm_fd] if comm_fd >= 0 else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FUSERMOUNT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{helper} did not end within {FUSERMOUNT_TIMEOUT_S:g} s") from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    return done.stderr.decode("utf-8", "replace").strip()


def _libc() -> tuple[Any, Any]:
    """Returns the C library, set up to keep the errno of its last call."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True), ctypes.get_errno

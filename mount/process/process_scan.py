"""Finds the processes of this machine that use or serve a mount, in /proc (proc(5))."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.kernel import mount_table
from lodefs.mount.process.supervisor import ended

PROC = Path("/proc")
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, linux/proc_ns.h
LINE_BYTES_MAX = 64 * 1024  # for a mount: path and source, with each byte escaped
TABLE_BYTES_MAX = 8 * 1024 * 1024  # for a mount namespace: 20,000 mounts
USER_BYTES_MAX = 64 * 1024 * 1024  # for all namespaces of a user other than root
_NS_GET_USERNS, _NS_GET_PARENT, _NS_GET_OWNER_UID = 0xB701, 0xB702, 0xB704  # linux/nsfs.h
DELETED = " (deleted)"  # the kernel's suffix for the path of a removed file
_PIDFD_GETFD = 438  # the number of pidfd_getfd(2) on every architecture but Alpha


def showing(places: Mapping[str, str], proc: Path = PROC) -> dict[str, set[int]]:
    """Returns the users whose processes see mounts in other mount namespaces, mostly of containers,
    by device MAJOR:MINOR; ``places``: where each device is mounted here.

    A mount at its own path there, or at that path below another directory, came along with the
    host's tree and does not count: services with mount namespaces of their own, and containers that
    watch the host under /rootfs, have it. A mount at another path in this process's own namespace
    is root's (`docker cp` makes one). Raises: Unavailable if this process cannot see all processes
    of the machine.
    """
    if not sees_all(proc):
        raise Unavailable("not all processes of this machine can be seen from here (hostPID?)")
    found: dict[str, set[int]] = {}

    def note(mounts: Sequence[mount_table.Mount], uid: int) -> None:
        for mounted in mounts:
            if not mounted.mountpoint.endswith(places[mounted.device]):
                found.setdefault(mounted.device, set()).add(uid)

    if places:
        note(_mounts_of(proc / "self/mountinfo", places)[0], 0)
        for process, mounts in _others(proc, places):
            with suppress(OSError):  # the process ended meanwhile
                note(mounts, _uid(process))
    return found


def runs_as(pid: int, uid: int | None, proc: Path = PROC) -> bool:
    """Whether there is such a process, and it is this user's."""
    with suppress(OSError):
        return _uid(proc / str(pid)) == uid
    return False


def _uid(process: Path) -> int:
    """Returns the user of a process; its directory in /proc may be root's. Raises: OSError."""
    _, _, rest = (process / "status").read_bytes().partition(b"\nUid:")
    return int(rest.split(maxsplit=1)[0])


def sees_all(proc: Path = PROC) -> bool:
    """Whether this process is in the machine's first process namespace."""
    try:
        return os.stat(proc / "self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


class MountUser(NamedTuple):
    """A process that has a directory or a file of a mount open."""

    pid: int
    name: str  # as ps(1) shows it


def processes_using(place: str, proc: Path = PROC) -> list[MountUser]:
    """Returns the processes of this mount namespace that use what lies at or below ``place``, as
    far as this process may see them. Reads only links, so that a dead mount cannot block it."""
    found = []
    for process in _processes(proc):
        if _uses(process, place):
            with suppress(OSError):
                name = (process / "comm").read_bytes().decode("utf-8", "replace").strip()
                found.append(MountUser(int(process.name), name))
    return sorted(found)


def _uses(process: Path, place: str) -> bool:
    for folder in ("fd", "map_files"):
        with suppress(OSError):
            for link in os.listdir(process / folder):
                if _leads_below(process / folder / link, place):
                    return True
    return any(_leads_below(process / link, place) for link in ("cwd", "root", "exe"))


def _leads_below(link: Path, place: str) -> bool:
    try:
        target = os.readlink(link)
    except OSError:
        return False
    return target == place or target.startswith(f"{place}/")


class Writer(NamedTuple):
    """A process that has a file open or mapped for writing, or has a removed file open in any way.
    ``path``: as that process sees it; it may end with `` (deleted)``."""

    pid: int
    name: str  # as ps(1) shows it
    path: str


def writers(device: str, proc: Path = PROC) -> list[Writer]:
    """Returns the processes that keep a file system from becoming read-only, in all mount
    namespaces, as far as this process may see them. ``device``: MAJOR:MINOR. Reads only links."""
    found = set()
    for process, mounts in _others(proc, [device], with_own=True):
        mounts = [mount for mount in mounts if mount.device == device]
        if mounts:
            with suppress(OSError):  # the process ended meanwhile
                name = (process / "comm").read_bytes().decode("utf-8", "replace").strip()
                for path in (*_written(process, mounts), *_mapped(process, mounts)):
                    found.add(Writer(int(process.name), name, path))
    return sorted(found)


def _written(process: Path, mounts: Sequence[mount_table.Mount]) -> Iterator[str]:
    """Yields the files that a process has open for writing in some mounts. Raises: OSError."""
    lines = {f"\nmnt_id:\t{mount.mount_id}\n" for mount in mounts}
    for fd in os.listdir(process / "fd"):
        with suppress(OSError):
            told = (process / "fdinfo" / fd).read_text()
            if any(line in told for line in lines):
                flags = int(told.partition("\nflags:\t")[2].split("\n", 1)[0], 8)
                path = os.readlink(process / "fd" / fd)
                is_open = not flags & os.O_PATH
                if is_open and (flags & os.O_ACCMODE != os.O_RDONLY or path.endswith(DELETED)):
                    yield path


def _mapped(process: Path, mounts: Sequence[mount_table.Mount]) -> Iterator[str]:
    """Yields the files that a process maps for writing, even after closing them. Raises:
    OSError."""
    for link in os.scandir(process / "map_files"):
        with suppress(OSError):
            path = os.readlink(link)
            is_writable = link.stat(follow_symlinks=False).st_mode & stat.S_IWUSR
            if (is_writable or path.endswith(DELETED)) and any(
                path.startswith(f"{mount.mountpoint}/") for mount in mounts
            ):
                yield path


def holders(device: str, proc: Path = PROC) -> list[int]:
    """Pidfds of the processes that hold a FUSE connection, by its device; the caller closes them.

    Includes connections that have ended and had this number before. Needs Linux 6.11
    (fs/fuse/dev.c, fuse_dev_show_fdinfo); older kernels show none.
    """
    return [pid_fd for pid_fd, _ in _holders(device, proc)]


def orphaned_processes(device: str, proc: Path = PROC) -> list[int]:
    """Returns the processes whose connection has ended: they serve nobody any more."""
    found = []
    for pid_fd, fd in _holders(device, proc):
        if _is_over(pid_fd, fd):
            found.append(pid_fd)
        else:
            os.close(pid_fd)
    return found


def _holders(device: str, proc: Path) -> list[tuple[int, int]]:
    """Returns the pidfd of each process, and its descriptor of the connection."""
    major, _, minor = device.partition(":")
    line = f"fuse_connection:\t{int(major) << 20 | int(minor)}\n"
    found = []
    for process in _processes(proc):
        with suppress(OSError):
            pid_fd = os.pidfd_open(int(process.name))
            fd = _connection(process, line)
            if fd is None:
                os.close(pid_fd)
            else:
                found.append((pid_fd, fd))
    return found


def _connection(process: Path, line: str) -> int | None:
    with suppress(OSError):
        for fd in os.listdir(process / "fd"):
            with suppress(OSError):
                is_fuse = os.readlink(process / "fd" / fd) == "/dev/fuse"
                if is_fuse and line in (process / "fdinfo" / fd).read_text():
                    return int(fd)
    return None


def _is_over(pid_fd: int, fd: int) -> bool:
    """Whether a FUSE connection that another process holds has ended. False if that cannot be seen,
    since it needs CAP_SYS_PTRACE, as debuggers do."""
    import ctypes

    copy = ctypes.CDLL(None).syscall(_PIDFD_GETFD, pid_fd, fd, 0)
    if copy < 0:
        return False
    try:
        return ended(copy)
    finally:
        os.close(copy)


def _others(
    proc: Path, devices: Collection[str], *, with_own: bool = False
) -> Iterator[tuple[Path, Sequence[mount_table.Mount]]]:
    """Each process of another mount namespace, and its mounts of some devices. ``with_own``: also
    processes of this mount namespace.

    A user may make any number of namespaces, with 100,000 mounts each, at paths of any length. So
    the bytes that are read of one table, and of all tables of the namespaces that one user made,
    are limited; mounts beyond that are not seen. The user of the processes in a namespace does not
    matter: containers of root run as any user.
    """
    own = os.stat(proc / "self/ns/mnt").st_ino
    known: dict[int, list[mount_table.Mount]] = {} if with_own else {own: []}
    read_bytes: Counter[int] = Counter()  # by user
    for process in _processes(proc):
        with suppress(OSError):  # the process ended meanwhile
            namespace = os.stat(process / "ns/mnt").st_ino
            if namespace not in known:
                uid = _maker(process)
                if uid and read_bytes[uid] >= USER_BYTES_MAX:
                    continue
                known[namespace], size_bytes = _mounts_of(process / "mountinfo", devices)
                read_bytes[uid] += size_bytes
            if with_own or namespace != own:
                yield process, known[namespace]


def _maker(process: Path) -> int:
    """Returns the user who made a process's mount namespace, and so may mount in it (ioctl_ns(2)):
    0 if it belongs to this process's own user namespace, else the owner of the user namespace
    directly below that. Raises: OSError."""
    fds = [os.open(process / "ns/mnt", os.O_RDONLY | os.O_CLOEXEC)]
    try:
        fds.append(fcntl.ioctl(fds[0], _NS_GET_USERNS))
        with suppress(PermissionError):  # it may not see the parent of its own namespace
            while True:
                fds.append(fcntl.ioctl(fds[-1], _NS_GET_PARENT))
        if len(fds) == 2:
            return 0
        (uid,) = struct.unpack("=I", fcntl.ioctl(fds[-2], _NS_GET_OWNER_UID, bytes(4)))
        return int(uid)
    finally:
        for fd in fds:
            os.close(fd)


def _mounts_of(table: Path, devices: Collection[str]) -> tuple[list[mount_table.Mount], int]:
    """Mounts of some devices in a table, and how many bytes of it were read. Raises: OSError."""
    needles = [f" {device} ".encode() for device in devices]
    lines: list[bytes] = []
    size_bytes, rest = 0, b""
    with table.open("rb", buffering=0) as file:
        while size_bytes < TABLE_BYTES_MAX and len(rest) < LINE_BYTES_MAX:
            part = file.read(LINE_BYTES_MAX)
            if not part:
                break
            size_bytes += len(part)
            *whole, rest = (rest + part).split(b"\n")
            lines += [line for line in whole if any(needle in line for needle in needles)]
    found = mount_table.parse(b"\n".join(lines))
    return [mounted for mounted in found if mounted.device in devices], size_bytes


def _processes(proc: Path) -> Iterator[Path]:
    return (proc / name for name in os.listdir(proc) if name.isdigit())

"""The lodefs mounts of this mount namespace, from /proc/self/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import NamedTuple

SUBTYPE = "lodefs"
FS_TYPE = f"fuse.{SUBTYPE}"
OVERLAY = "overlay"
PID_XATTR = "user.lodefs.pid"
PASSTHROUGH_XATTR = "user.lodefs.passthrough"
ANSWER_TIMEOUT_S = 2.0
SOURCE_BYTES_MAX = 3000  # the source of a mount must fit into a page
_DEAD = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_PID = re.compile(rb"[0-9]{1,10}")
_OCTAL = re.compile(rb"\\([0-7]{3})")
_ESCAPES = [(b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012")]
_OWNER = re.compile(rb"(?:^|,)user_id=(\d+)")
_ID = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)
_TABLE = Path("/proc/self/mountinfo")
_WRITABLE = b"lodefs:"  # prefix of the source of lodefs' overlays


class Mount(NamedTuple):
    """One line of the table. For lodefs mounts, ``source`` has the form that ``source_of``
    writes."""

    mountpoint: str  # with surrogate escapes for bytes that are not UTF-8
    fs_type: str
    source: bytes
    device: str  # MAJOR:MINOR
    owner: int | None = None  # the user who mounted it, which FUSE shows
    mount_id: int = 0  # a file system may have several mounts

    @property
    def is_lodefs(self) -> bool:
        """Whether it is a lodefs mount, alive or dead."""
        return self.fs_type == FS_TYPE

    @property
    def is_writable(self) -> bool:
        """Whether it is an overlay over a lodefs mount."""
        return self.fs_type == OVERLAY and self.source.startswith(_WRITABLE)

    @property
    def is_ours(self) -> bool:
        """Whether it is one of ours, or an overlay over one."""
        return self.is_lodefs or self.is_writable

    @property
    def repo(self) -> str:
        """The repository; "" if the source does not contain it."""
        repo, at, _ = self.snapshot.partition(b"@")
        return repo.decode("utf-8", "replace") if at else ""

    @property
    def commit(self) -> str:
        """The commit; "" if the source does not contain it."""
        _, at, rest = self.snapshot.partition(b"@")
        return rest.partition(b":")[0].decode("ascii", "replace") if at else ""

    @property
    def path(self) -> bytes:
        """The mounted directory of the snapshot; b"" for its root."""
        return self.snapshot.partition(b"@")[2].partition(b":")[2]

    @property
    def snapshot(self) -> bytes:
        """The source; for an overlay, the source of the mount below it."""
        is_writable = self.is_writable
        return self.source[len(_WRITABLE) :].rpartition(b"#")[0] if is_writable else self.source

    @property
    def lower_device(self) -> str:
        """For an overlay, the device of the mount below it."""
        return self._above.partition("/")[0]

    @property
    def generation(self) -> str:
        """For an overlay, the number of its upper directory."""
        return self._above.partition("/")[2]

    @property
    def _above(self) -> str:
        return self.source.rpartition(b"#")[2].decode("ascii", "replace")


def source_of(repo: str, commit: str, path: bytes) -> bytes:
    """``REPO@COMMIT[:PATH]``, the source of a mount; the path is left out if it is too long."""
    head = f"{repo}@{commit}".encode()
    full = head + b":" + path if path else head
    return full if len(full) <= SOURCE_BYTES_MAX else head


def overlay_source(lower: bytes, device: str, generation: int) -> bytes:
    """Returns the source of an overlay over a mount with the source ``lower`` and that device."""
    return _WRITABLE + lower + f"#{device}/{generation}".encode()


def parse(table: bytes) -> list[Mount]:
    """Returns the lines of a mountinfo table in its order: of two on one directory the later is on
    top."""
    mounts = []
    for line in table.split(b"\n"):  # the kernel escapes only this line break in names
        left, dash, right = line.partition(b" - ")
        fields, tail = left.split(b" "), right.split(b" ")
        if dash and len(fields) >= 5 and len(tail) >= 2 and fields[0].isdigit():
            mountpoint = os.fsdecode(_plain(fields[4]))
            kind, source, device = os.fsdecode(tail[0]), _plain(tail[1]), fields[2].decode()
            owner = _OWNER.search(tail[2]) if len(tail) > 2 else None
            uid = int(owner[1]) if owner else None
            mounts.append(Mount(mountpoint, kind, source, device, uid, int(fields[0])))
    return mounts


def read_table() -> list[Mount]:
    """Returns all mounts that this process sees."""
    return parse(_TABLE.read_bytes())


def on_top(mountpoint: str) -> Mount | None:
    """Returns the topmost mount on a directory (an absolute path without symlinks); None without
    one."""
    found = _with(_escaped(mountpoint) + b" ")
    return next((m for m in reversed(found) if m.mountpoint == mountpoint), None)


def below(directory: str) -> Mount | None:
    """Returns a mount below a directory (an absolute path without symlinks) at any depth; None
    without."""
    head = f"{directory.rstrip('/')}/"
    found = _with(_escaped(head))
    return next((m for m in found if m.mountpoint.startswith(head)), None)


def of_device(device: str) -> Mount | None:
    """Returns a lodefs mount by its device MAJOR:MINOR; None if it is not seen."""
    found = _with(device.encode() + b" ")
    return next((m for m in found if m.is_lodefs and m.device == device), None)


def _escaped(path: str) -> bytes:
    """Returns a path as a field of the table."""
    field = os.fsencode(path)
    for byte, escape in _ESCAPES:
        field = field.replace(byte, escape)
    return field


def _with(field: bytes) -> list[Mount]:
    """Mounts with a field that begins with these bytes, as they stand in the table. Most of
    thousands of mounts are not decoded."""
    needle = b" " + field
    table = _TABLE.read_bytes()
    if needle not in table:
        return []
    return parse(b"\n".join(line for line in table.split(b"\n") if needle in line))


def served(mountpoint: str) -> Mount | None:
    """Like ``on_top``, but for an overlay the lodefs mount below it, which a process serves; None
    if that is not mounted here."""
    found = on_top(mountpoint)
    if found is None or not found.is_writable:
        return found
    return of_device(found.lower_device)


def mount_id_of(fd: int) -> int:
    """Returns the id of the mount that contains an open file. Asks nothing of its server. Raises:
    OSError."""
    found = _ID.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    if found is None:
        raise OSError(errno.ENOSYS, "the kernel does not show the mounts of open files")
    return int(found[1])


def mount_of(fd: int) -> Mount | None:
    """Returns the mount that contains an open file; None if it is not in this mount namespace.
    Raises: OSError."""
    mount_id = mount_id_of(fd)
    return next((m for m in read_table() if m.mount_id == mount_id), None)


def is_dead(mountpoint: str) -> bool:
    """Whether a FUSE mount has lost its process. Uses statfs, which the kernel always passes on,
    unlike stat."""
    try:
        os.statvfs(mountpoint)
    except OSError as error:
        return error.errno in _DEAD
    return False


def pid_of(mountpoint: str) -> int | None:
    """Returns the process that answers for a mount; None if it does not answer in time, or is dead.
    The process of another user's mount may answer anything."""
    answer = _answer(mountpoint, PID_XATTR)
    return int(answer) or None if _PID.fullmatch(answer) else None


def passthrough_of(mountpoint: str) -> str:
    """``on``, or ``off: `` and the reason; "" if the mount does not answer in time."""
    return _answer(mountpoint, PASSTHROUGH_XATTR).decode("utf-8", "replace")


def _answer(mountpoint: str, name: str) -> bytes:
    """Returns an extended attribute; b"" if there is none, or no answer comes within
    ANSWER_TIMEOUT_S.

    Asked in a thread, since the kernel waits for ever for a stopped process, and only the end of
    the asking process ends that.
    """
    found: list[bytes] = []

    def ask() -> None:
        with suppress(OSError):
            found.append(os.getxattr(mountpoint, name))

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_TIMEOUT_S)
    return found[0] if found else b""


def _plain(field: bytes) -> bytes:
    """Returns a field without the octal escapes that the kernel writes for blanks and the like."""
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field)

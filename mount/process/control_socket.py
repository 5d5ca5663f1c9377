"""The Unix sockets at which the processes of a mount are reached, in a directory of the user's.

A socket is ``MAJOR-MINOR.sock``, after the mount's device, which no two mounts of a machine share.
Everyone who can open the directory can take over its mounts, so it belongs to the user alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InUse, LodefsError, Unavailable
from lodefs.chunkstore.protocol import rpc

ROOT = Path("/run/lodefs/mounts")
CONNECT_TIMEOUT_S = 5.0


def own_folders() -> list[Path]:
    """Returns the directories for sockets of this process's user."""
    return folders(os.environ, os.geteuid())


def folders(environ: Mapping[str, str], uid: int) -> list[Path]:
    """Returns the directories for sockets of a user's mounts; the first usable one holds them."""
    found = [ROOT] if uid == 0 else []
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and (uid != 0 or _is_of(runtime, uid)):
        found.append(Path(runtime) / "lodefs" / "mounts")
    return [*found, Path("/tmp") / f"lodefs-mounts-{uid}"]


def _is_of(folder: str, uid: int) -> bool:
    """Whether a directory is this user's: root may have the environment of another (sudo -E)."""
    with contextlib.suppress(OSError):
        return os.lstat(folder).st_uid == uid
    return False


class Place(msgspec.Struct, frozen=True):
    """The socket of one mount. ``inode``: of the socket's file, so that no other is removed."""

    path: Path
    inode: int = 0

    def remove(self) -> None:
        """Removes the socket and its lock, unless another mount has taken the name."""
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self.inode:
                self.path.unlink()
                self.path.with_suffix(".lock").unlink(missing_ok=True)

    def lock(self) -> int:
        """Lets nobody else take over this mount until the descriptor is closed. Raises: InUse.

        The lock belongs to the process: its children do not hold it.
        """
        fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise InUse("another take-over of this mount is under way") from error
        return fd


def listen(device: str, places: list[Path]) -> tuple[socket.socket, Place]:
    """Listens for processes that want to take over the mount. Raises: Unavailable without a usable
    directory.

    Also removes sockets that ended mounts have left there.
    """
    why = "there is no directory for it"
    for folder in places:
        try:
            _own(folder)
            sweep(folder)
            path = folder / name_of(device)
            listener = rpc.listen(path, replace=True)
            return listener, Place(path, path.lstat().st_ino)
        except (OSError, LodefsError) as error:
            why = f"{folder}: {error}"
    raise Unavailable(f"the mount has no socket, and cannot be taken over: {why}")


def find(device: str, places: list[Path] | None = None) -> Place | None:
    """Returns the socket of a living or dead mount, in the user's own directories or in ``places``;
    None without one."""
    for folder in own_folders() if places is None else places:
        path = folder / name_of(device)
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid == os.geteuid() and stat.S_ISSOCK(found.st_mode):
                return Place(path, found.st_ino)
    return None


def connect(place: Place, timeout_s: float = CONNECT_TIMEOUT_S) -> socket.socket:
    """Returns a connection to the process that answers for the mount. Raises: Unavailable."""
    try:
        return rpc.connect(place.path, timeout_s)
    except OSError as error:
        raise Unavailable(f"{place.path}: {error.strerror or error}") from error


def sweep(folder: Path) -> None:
    """Removes the sockets of mounts whose processes have all ended."""
    for path in folder.glob("*.sock"):
        try:
            place = Place(path, path.lstat().st_ino)
        except FileNotFoundError:
            continue  # another new mount sweeps, too
        try:
            rpc.connect(path, 0).close()
        except ConnectionRefusedError:
            place.remove()
        except OSError:
            continue


def name_of(device: str) -> str:
    """Returns the name of the socket for a device MAJOR:MINOR."""
    return f"{device.replace(':', '-')}.sock"


def _own(folder: Path) -> None:
    """Creates the directory, which must be the user's alone."""
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise Unavailable("it belongs to another user, or others may enter it")

"""The paths at which pods see a volume: bind mounts of the node's mounts.

Nothing here looks into a mount that may hang: the mount table says what is mounted. Only
``read_root`` reads, in a thread that the caller abandons if it takes too long. Directories of
targets are opened without following symlinks other than root's, and all work uses the opened
descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from lodefs.chunkstore.errors import Denied, InUse, InvalidInput, Unavailable
from lodefs.chunkstore.system import libc
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain, open_within
from lodefs.mount.kernel import mount_syscalls, mount_table, mountpoints

# linux/mount.h
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND = 32, 4096
STACKED_MAX = 16


class Targets(Protocol):
    """The operations of the node service on targets. This module implements them, and tests have
    another implementation."""

    def shown(self, target: str, /) -> mount_table.Mount | None: ...
    def same_mount(self, place: str, target: str, /) -> bool: ...
    def make(self, target: str, /) -> None: ...
    def bind(self, place: str, target: str, /, *, noexec: bool, writes: bool = ...) -> None: ...
    def restrict(self, target: str, /, *, noexec: bool, writes: bool = ...) -> None: ...
    def unbind(self, target: str, /) -> None: ...
    def remove(self, target: str, /) -> None: ...
    def read_root(self, target: str, /) -> None: ...


def shown(target: str) -> mount_table.Mount | None:
    """Returns the topmost mount on a target; None without one. Raises: InvalidInput, as
    ``mountpoints.real`` does."""
    return mount_table.on_top(mountpoints.plain(target))


def same_mount(place: str, target: str) -> bool:
    """Whether a target now shows the mount at ``place``."""
    there, here = mount_table.on_top(place), shown(target)
    return there is not None and here is not None and there.device == here.device


def make(target: str) -> None:
    """Creates the directory of a target without a mount. Raises: InvalidInput if something else is
    there, such as a symlink, or if its parent directory is missing."""
    try:
        with _folder(target) as (folder_fd, name):
            try:
                os.mkdir(name, 0o750, dir_fd=folder_fd)
            except FileExistsError:
                mode = os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode
                if not stat.S_ISDIR(mode):
                    what = "a symlink" if stat.S_ISLNK(mode) else "no directory"
                    raise InvalidInput(f"target_path {target} is {what}") from None
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            reason = f"target_path {target}: there is no directory to make it in"
            raise InvalidInput(reason) from error
        raise kind_of(error)(f"target_path {target}: {error.strerror}") from error


@contextmanager
def _folder(target: str) -> Iterator[tuple[int, str]]:
    """Yields a descriptor of the parent directory of a target, and the target's name in it. Raises:
    OSError, InvalidInput."""
    folder, name = os.path.split(mountpoints.plain(target))
    with closing(open_plain(folder, PLACE)) as fd:
        yield fd, name


def bind(place: str, target: str, *, noexec: bool, writes: bool = False) -> None:
    """Shows the mount at ``place`` on a target, too; read-only, unless its pod ``writes``. Raises:
    Denied, Unavailable; then nothing is mounted."""
    with _denials(target), _opened(target) as fd:
        _mount(place, fd, _MS_BIND)
    try:
        restrict(target, noexec=noexec, writes=writes)
    except BaseException:
        unbind(target)
        raise


def restrict(target: str, *, noexec: bool, writes: bool = False) -> None:
    """Removes rights from what a target shows; may be repeated. Raises: Denied, Unavailable."""
    flags = _MS_NOSUID | _MS_NODEV | (_MS_NOEXEC if noexec else 0)
    flags |= 0 if writes else _MS_RDONLY
    with _denials(target), _opened(target) as fd:
        found = mount_table.mount_of(fd)
        if found is None or not found.is_ours:
            raise Unavailable(f"target_path {target}: its mount is gone")
        _mount("none", fd, _MS_BIND | _MS_REMOUNT | flags)


def unbind(target: str) -> None:
    """Unmounts all lodefs mounts from a target, alive, dead or stuck; open files stay readable.
    Raises: InUse if something else is mounted there."""
    path = mountpoints.plain(target)
    for _ in range(STACKED_MAX):
        found = mount_table.on_top(path)
        if found is None:
            return
        if not found.is_ours:
            raise InUse(
                f"target_path {target}: another file system ({found.fs_type}) is mounted here"
            )
        with suppress(InvalidInput):  # another call was faster
            mount_syscalls.detach(path, lazy=True)


def remove(target: str) -> None:
    """Removes the directory of a target without a mount, unless it is not ours."""
    with suppress(OSError), _folder(target) as (folder_fd, name):
        os.rmdir(name, dir_fd=folder_fd)


def read_root(target: str) -> None:
    """Reads the root of a volume as a pod does. Raises: Unavailable, with the reason."""
    try:
        with os.scandir(target) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                break
    except OSError as error:
        raise Unavailable(f"{target}: its root cannot be read: {error.strerror}") from error


@contextmanager
def _opened(target: str) -> Iterator[int]:
    """Yields a descriptor of a target, or of the root of the mount on it. Raises: OSError,
    InvalidInput."""
    with _folder(target) as (folder_fd, name), closing(open_within(folder_fd, name, PLACE)) as fd:
        yield fd


@contextmanager
def _denials(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"target_path {target}: mount(2) fails: {error.strerror}"
        if error.errno in (errno.EPERM, errno.EACCES):
            reason = f"{text}; the driver needs CAP_SYS_ADMIN (a privileged container)"
            raise Denied(reason) from error
        raise Unavailable(text) from error


def _mount(source: str, fd: int, flags: int) -> None:
    libc.call("mount", os.fsencode(source), f"/proc/self/fd/{fd}".encode(), None, flags, None)

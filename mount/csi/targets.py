"""The places where pods see a volume: bind mounts of the node's mounts.

Nothing here looks into a mount that may hang: the table of mounts tells what is where. Only
``read_root`` reads, in a thread that the caller gives up when it takes too long. The directories
of targets are opened without following symlinks that are not root's, and what is done, is done to
what was opened.
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
    """What the node service does with targets; this module is one, and tests have another."""

    def shown(self, target: str, /) -> mount_table.Mount | None: ...
    def same_mount(self, place: str, target: str, /) -> bool: ...
    def make(self, target: str, /) -> None: ...
    def bind(self, place: str, target: str, /, *, noexec: bool) -> None: ...
    def restrict(self, target: str, /, *, noexec: bool) -> None: ...
    def unbind(self, target: str, /) -> None: ...
    def remove(self, target: str, /) -> None: ...
    def read_root(self, target: str, /) -> None: ...


def shown(target: str) -> mount_table.Mount | None:
    """What is mounted on a target, on top; None without any. InvalidInput as of
    ``mountpoints.real``."""
    return mount_table.on_top(mountpoints.plain(target))


def same_mount(place: str, target: str) -> bool:
    """Whether a target shows the mount that is at ``place`` now."""
    there, here = mount_table.on_top(place), shown(target)
    return there is not None and here is not None and there.device == here.device


def make(target: str) -> None:
    """Make the directory of a target that nothing is mounted on. InvalidInput where something else
    is there, a symlink above all, or no directory to make it in."""
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
    """A descriptor of the directory that a target is in, and its name there. Raises: OSError,
    InvalidInput."""
    folder, name = os.path.split(mountpoints.plain(target))
    with closing(open_plain(folder, PLACE)) as fd:
        yield fd, name


def bind(place: str, target: str, *, noexec: bool) -> None:
    """Show the mount at ``place`` on a target too, read-only. Denied, Unavailable; nothing is
    mounted then."""
    with _denials(target), _opened(target) as fd:
        _mount(place, fd, _MS_BIND)
    try:
        restrict(target, noexec=noexec)
    except BaseException:
        unbind(target)
        raise


def restrict(target: str, *, noexec: bool) -> None:
    """Take rights off what a target shows; may be repeated. Denied, Unavailable."""
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | (_MS_NOEXEC if noexec else 0)
    with _denials(target), _opened(target) as fd:
        found = mount_table.mount_of(fd)
        if found is None or not found.is_lodefs:
            raise Unavailable(f"target_path {target}: what was mounted there is gone")
        _mount("none", fd, _MS_BIND | _MS_REMOUNT | flags)


def unbind(target: str) -> None:
    """Take all lodefs mounts off a target, alive, dead or stuck: readers keep what they have open.
    InUse where something else is mounted there."""
    path = mountpoints.plain(target)
    for _ in range(STACKED_MAX):
        found = mount_table.on_top(path)
        if found is None:
            return
        if not found.is_lodefs:
            raise InUse(f"target_path {target}: something else ({found.fs_type}) is mounted here")
        with suppress(InvalidInput):  # somebody was faster
            mount_syscalls.detach(path, lazy=True)


def remove(target: str) -> None:
    """Remove the directory of a target, which nothing is mounted on; what is none of ours stays."""
    with suppress(OSError), _folder(target) as (folder_fd, name):
        os.rmdir(name, dir_fd=folder_fd)


def read_root(target: str) -> None:
    """Read the root of a volume as a pod does. Unavailable names why not."""
    try:
        with os.scandir(target) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                break
    except OSError as error:
        raise Unavailable(f"{target}: its root cannot be read: {error.strerror}") from error


@contextmanager
def _opened(target: str) -> Iterator[int]:
    """A descriptor of a target, or of the root of what is mounted on it. Raises: OSError,
    InvalidInput."""
    with _folder(target) as (folder_fd, name), closing(open_within(folder_fd, name, PLACE)) as fd:
        yield fd


@contextmanager
def _denials(target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"target_path {target}: mount(2) says {error.strerror}"
        if error.errno in (errno.EPERM, errno.EACCES):
            reason = f"{text}; the driver needs CAP_SYS_ADMIN (a privileged container)"
            raise Denied(reason) from error
        raise Unavailable(text) from error


def _mount(source: str, fd: int, flags: int) -> None:
    libc.call("mount", os.fsencode(source), f"/proc/self/fd/{fd}".encode(), None, flags, None)

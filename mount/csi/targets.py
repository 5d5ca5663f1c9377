"""The places where pods see a volume: bind mounts of the node's mounts.

Nothing here looks into a mount that may hang: the table of mounts tells what is where. Only
``read_root`` reads, in a thread that the caller gives up when it takes too long.
"""

from __future__ import annotations

import ctypes
import os
import stat
from contextlib import suppress
from typing import Protocol

from lodefs.chunkstore.errors import Denied, InUse, InvalidInput, Unavailable
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.mount.kernel import mount_syscalls, mount_table

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
    """What is mounted on a target, on top; None without any."""
    return mount_table.on_top(mount_table.plain(target))


def same_mount(place: str, target: str) -> bool:
    """Whether a target shows the mount that is at ``place`` now."""
    there, here = mount_table.on_top(place), shown(target)
    return there is not None and here is not None and there.device == here.device


def make(target: str) -> None:
    """Make the directory of a target that nothing is mounted on. InvalidInput where something else
    is there, a symlink above all, or no directory to make it in."""
    try:
        os.mkdir(target, 0o750)
    except FileExistsError:
        mode = os.lstat(target).st_mode
        if not stat.S_ISDIR(mode):
            what = "a symlink" if stat.S_ISLNK(mode) else "no directory"
            raise InvalidInput(f"target_path {target} is {what}") from None
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            reason = f"target_path {target}: there is no directory to make it in"
            raise InvalidInput(reason) from error
        raise kind_of(error)(f"target_path {target}: {error.strerror}") from error


def bind(place: str, target: str, *, noexec: bool) -> None:
    """Show the mount at ``place`` on a target too, read-only. Denied, Unavailable; nothing is
    mounted then."""
    _mount(place, target, _MS_BIND)
    try:
        restrict(target, noexec=noexec)
    except BaseException:
        unbind(target)
        raise


def restrict(target: str, *, noexec: bool) -> None:
    """Take rights off what a target shows; may be repeated. Denied, Unavailable."""
    flags = _MS_RDONLY | _MS_NOSUID | _MS_NODEV | (_MS_NOEXEC if noexec else 0)
    _mount("none", target, _MS_BIND | _MS_REMOUNT | flags)


def unbind(target: str) -> None:
    """Take all lodefs mounts off a target, alive, dead or stuck: readers keep what they have open.
    InUse where something else is mounted there."""
    path = mount_table.plain(target)
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
    with suppress(OSError):
        os.rmdir(target)


def read_root(target: str) -> None:
    """Read the root of a volume as a pod does. Unavailable names why not."""
    try:
        with os.scandir(target) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                break
    except OSError as error:
        raise Unavailable(f"{target}: its root cannot be read: {error.strerror}") from error


def _mount(source: str, target: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None) != 0:
        code = ctypes.get_errno()
        text = f"target_path {target}: mount(2) says {os.strerror(code)}"
        if code in (1, 13):  # EPERM, EACCES
            raise Denied(f"{text}; the driver needs CAP_SYS_ADMIN (a privileged container)")
        raise Unavailable(text)

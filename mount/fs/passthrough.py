"""Decides whether the kernel may read complete flat files by itself, and opens files accordingly.

FOPEN_PASSTHROUGH of Linux 6.9 (fs/fuse/passthrough.c): the answer to OPEN names a file of the
cache, which the kernel then reads and maps directly. Most of what the kernel requires is known
before INIT is answered. The first try shows the rest; if it fails, the mount does without.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.protocol.figures.mount_counts import Column
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.chunkstore.system import libc
from lodefs.mount.kernel import device, namespaces
from lodefs.mount.options import Wanted
from lodefs.mount.shm.open_files import CACHED, Opened, OpenFileTable
from lodefs.mount.shm.traffic_counters import Count, ignore_count

MARK_PERIOD_S = 5.0  # how often the flat files that the kernel reads are marked as used

# Opening and closing a file costs two more messages if the kernel does not open files by itself.
# That is the time that passthrough saves on about this many bytes from the disk, or from memory
# (docs/decisions/0011-passthrough.md). Only large files can be passed through, but then the kernel
# asks about each open of any file.
DISK_BYTES_BY_FILE_MIN = 64 * 1024
MEMORY_BYTES_BY_FILE_MIN = 256 * 1024

# f_type of file systems that are stacked on another, or are FUSE themselves (linux/magic.h)
_STACKED = {0x794C7630: "overlayfs", 0xF15F: "ecryptfs", 0x61756673: "aufs", libc.FUSE: "FUSE"}
_PASSING = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN})


class Flats(Protocol):
    """The complete flat files of the node's cache, as one thread finds them."""

    def complete_flat(self, ino: int) -> int | None:
        """Returns a descriptor of the complete, trusted flat file of an inode, valid until the next
        call; None without one. It counts as used now."""
        ...

    def is_cut(self, ino: int) -> bool:
        """Whether the flat file of an inode is complete but has the wrong size."""
        ...


class PassthroughFiles:
    """Opens and releases files for one thread of a worker; ``fd`` is the worker's device. ``count``
    is called for each open that the kernel handles by itself."""

    def __init__(
        self,
        fd: int,
        handles: OpenFileTable,
        flats: Flats,
        log: Callable[[str], None],
        count: Count = ignore_count,
    ) -> None:
        self._fd = fd
        self._handles = handles
        self._flats = flats
        self._log = log
        self._count = count

    @property
    def given_up(self) -> bool:
        """Whether the kernel never took a backing file and never will. Then it may as well open
        files by itself."""
        return self._handles.refused != 0 and not self._handles.granted

    def open(self, ino: int, request: int) -> Opened:
        """Returns the way to open the file for the OPEN number ``request``. A file that cannot be
        passed through is opened in cached mode. Raises: Corrupt, if the kernel would read a file
        that was cut."""
        opened = self._open(ino, request)
        if opened.backing != CACHED:
            flat = self._flat(ino)
            if flat is not None:
                self._count(Column.KERNEL_OPENED_BYTES, os.fstat(flat).st_size)
            elif _spoil_if_cut(self._handles, self._flats, ino):
                self.release(opened.handle)
                return self._open(ino, request)  # now it is refused, or all have closed it
            self._count(Column.KERNEL_OPENS, 1)
        return opened

    def _open(self, ino: int, request: int) -> Opened:
        handles = self._handles
        opened = handles.enter(ino, request)
        if opened is not None:
            return opened
        offered = self._backing(ino)
        opened = handles.enter(ino, request, offered)
        assert opened is not None
        if offered not in (CACHED, opened.backing):
            device.close_backing(self._fd, offered)  # another worker was faster
        return opened

    def release(self, handle: int) -> None:
        """Closes the file, and its backing file if nobody else has it open."""
        backing = self._handles.leave(handle)
        if backing != CACHED:
            device.close_backing(self._fd, backing)

    def passes_through(self, ino: int) -> bool:
        """Whether the kernel reads the open file by itself, or would if it was opened now."""
        backing = self._handles.backing(ino)
        if backing is None:
            return self._flat(ino) is not None
        return backing != CACHED

    @property
    def state(self) -> str:
        """The state for people: ``on``, or why it is off."""
        code = self._handles.refused
        if code:
            return f"off: the kernel refused a file of the cache: {os.strerror(code)}"
        return "off: too many files were open" if self._handles.is_overflown else "on"

    def mark_used(self, *, period_s: float = MARK_PERIOD_S) -> None:
        """Marks the flat files that the kernel reads by itself as used, so that others are evicted.

        Every worker calls this now and then; one of them does it in each ``period_s``.
        """
        if not self._handles.turn(time.monotonic(), period_s):
            return
        for ino in self._handles.passed_through():
            try:
                if self._flats.complete_flat(ino) is None:
                    _spoil_if_cut(self._handles, self._flats, ino)
            except LodefsError:
                return  # the index cannot be read now: try next time

    def _flat(self, ino: int) -> int | None:
        if self._handles.refused or self._handles.is_overflown:
            return None
        try:
            return self._flats.complete_flat(ino)
        except LodefsError:
            return None  # reads will report what is wrong

    def _backing(self, ino: int) -> int:
        flat = self._flat(ino)
        if flat is None:
            return CACHED
        try:
            backing = device.open_backing(self._fd, flat)
        except OSError as error:
            code = error.errno or errno.EIO
            if code not in _PASSING and self._handles.refuse(code):
                self._log(f"no passthrough from now on: {os.strerror(code)}")
            return CACHED
        self._handles.grant()
        return backing


def _spoil_if_cut(handles: OpenFileTable, flats: Flats, ino: int) -> bool:
    """Whether the file that the kernel reads for an inode was cut. Then it is not opened again
    before its last close, even if the cache has a good one."""
    try:
        is_cut = flats.is_cut(ino)
    except LodefsError:
        return False  # nothing is known, as for an evicted file
    if is_cut:
        handles.spoil(ino)
    return is_cut


def objection(
    wanted: Wanted,
    snapshot: Snapshot,
    cache_dir: Callable[[], Path | None],
    *,
    fits_memory: bool,
) -> str | None:
    """Returns the reason why a mount of ``snapshot`` must do without passthrough; None if there is
    none.

    ``cache_dir`` returns the directory of the node's cache, or None if it cannot be read from here.
    ``fits_memory``: whether the whole dataset can stay in the page cache.
    """
    if wanted == "off":
        return "it is switched off"
    if wanted == "auto" and not _pays(snapshot, fits_memory=fits_memory):
        return "most files are small"
    return obstacle(cache_dir())


def _pays(snapshot: Snapshot, *, fits_memory: bool) -> bool:
    """Whether passthrough saves more than it costs if everything is read once. A dataset that fits
    into memory comes from the disk only once."""
    by_file = MEMORY_BYTES_BY_FILE_MIN if fits_memory else DISK_BYTES_BY_FILE_MIN
    return snapshot.large_size_bytes >= by_file * max(snapshot.files, 1)


def obstacle(cache_dir: Path | None) -> str | None:
    """Returns the reason why this process cannot pass files of the cache through; None if it
    can."""
    if cache_dir is None:
        return "the node's cache is not visible here"
    if not is_admin():
        return "it needs CAP_SYS_ADMIN in the first user namespace"
    try:
        kind = _STACKED.get(libc.file_system_of(cache_dir))
    except OSError as error:
        return f"the node's cache {cache_dir} cannot be read: {error.strerror}"
    return f"the node's cache {cache_dir} is on {kind}" if kind else None


def is_admin(proc: Path = Path("/proc/self")) -> bool:
    """Whether this process has CAP_SYS_ADMIN in the namespace that the kernel requires."""
    return namespaces.in_first_user_namespace(proc) and namespaces.may_mount(proc)

"""Whether a mount may let the kernel read complete flat files by itself, and how a file is opened.

FOPEN_PASSTHROUGH of Linux 6.9 (fs/fuse/passthrough.c): the answer to OPEN names a file of ours,
and reads and mmap go to it without us. What the kernel demands is known before INIT is answered,
except what only the first try shows; then the mount does without from there on.
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

# Opening and closing a file costs two more messages than where the kernel opens files by itself,
# as much time as passthrough saves on about so many bytes that come from the disk, or from memory
# (docs/decisions/0011-passthrough.md). Only large files can be passed through, but the kernel asks
# about each open of any file.
DISK_BYTES_BY_FILE_MIN = 64 * 1024
MEMORY_BYTES_BY_FILE_MIN = 256 * 1024

# f_type of file systems that are stacked on another, or are FUSE themselves (linux/magic.h)
_STACKED = {0x794C7630: "overlayfs", 0xF15F: "ecryptfs", 0x61756673: "aufs", libc.FUSE: "FUSE"}
_PASSING = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN})


class Flats(Protocol):
    """The complete flat files of the node's cache, as one thread finds them."""

    def complete_flat(self, ino: int) -> int | None:
        """A descriptor of the whole, trusted flat file of an inode, good until the next call; None
        where there is none. It counts as used now."""
        ...

    def is_cut(self, ino: int) -> bool:
        """Whether the flat file of an inode is complete, and has another size than that."""
        ...


class PassthroughFiles:
    """Opens and releases files for one thread of a worker; ``fd`` is the worker's device.
    ``count`` is told of each open that goes past us."""

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
        """Whether the kernel never took a backing file and never will: it may as well open files
        by itself then."""
        return self._handles.refused != 0 and not self._handles.granted

    def open(self, ino: int, request: int) -> Opened:
        """How the file is opened for the OPEN number ``request``. A file that cannot be passed
        through is opened in cached mode. Raises: Corrupt, where the kernel would read a file that
        was cut."""
        opened = self._open(ino, request)
        if opened.backing != CACHED:
            flat = self._flat(ino)
            if flat is not None:
                self._count(Column.KERNEL_OPENED_BYTES, os.fstat(flat).st_size)
            elif _spoil_if_cut(self._handles, self._flats, ino):
                self.release(opened.handle)
                return self._open(ino, request)  # now it is refused, or everybody has closed it
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
        """The file is closed; its backing file too, where nobody else has it open."""
        backing = self._handles.leave(handle)
        if backing != CACHED:
            device.close_backing(self._fd, backing)

    def passes_through(self, ino: int) -> bool:
        """Whether the open file is read past us, or would be if it was opened now."""
        backing = self._handles.backing(ino)
        if backing is None:
            return self._flat(ino) is not None
        return backing != CACHED

    @property
    def state(self) -> str:
        """What people are told of it: ``on``, or why it is off."""
        code = self._handles.refused
        if code:
            return f"off: the kernel refused a file of the cache: {os.strerror(code)}"
        return "off: too many files were open" if self._handles.is_overflown else "on"

    def mark_used(self, *, period_s: float = MARK_PERIOD_S) -> None:
        """Mark the flat files that the kernel reads past us as used, so that others are evicted.

        Every worker calls this now and then; one of them does it each ``period_s``.
        """
        if not self._handles.turn(time.monotonic(), period_s):
            return
        for ino in self._handles.passed_through():
            try:
                if self._flats.complete_flat(ino) is None:
                    _spoil_if_cut(self._handles, self._flats, ino)
            except LodefsError:
                return  # the index cannot be read now: next time

    def _flat(self, ino: int) -> int | None:
        if self._handles.refused or self._handles.is_overflown:
            return None
        try:
            return self._flats.complete_flat(ino)
        except LodefsError:
            return None  # reads will say what is wrong, and where

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
    """Whether the file that the kernel reads for an inode was cut. It is not opened again then
    before its last close, also when the cache has a good one."""
    try:
        is_cut = flats.is_cut(ino)
    except LodefsError:
        return False  # as of a file that was evicted: nothing is known
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
    """Why a mount of ``snapshot`` is to do without passthrough; None: nothing is known against it.

    ``cache_dir`` tells where the node's cache lies, None where it cannot be read from here.
    ``fits_memory``: whether all of it can stay in the page cache.
    """
    if wanted == "off":
        return "not wanted"
    if wanted == "auto" and not _pays(snapshot, fits_memory=fits_memory):
        return "most files are small"
    return obstacle(cache_dir())


def _pays(snapshot: Snapshot, *, fits_memory: bool) -> bool:
    """Whether what passthrough saves, if all is read once, is more than what it costs. What fits
    into memory comes from the disk but once."""
    by_file = MEMORY_BYTES_BY_FILE_MIN if fits_memory else DISK_BYTES_BY_FILE_MIN
    return snapshot.large_size_bytes >= by_file * max(snapshot.files, 1)


def obstacle(cache_dir: Path | None) -> str | None:
    """Why this process cannot have files of the cache passed through."""
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
    """Whether this process has CAP_SYS_ADMIN where the kernel asks for it."""
    return namespaces.in_first_user_namespace(proc) and namespaces.may_mount(proc)

"""A job's tree on a node: the directories below which its datasets are mounted.

The directories are root's. A POSIX ACL lets only the job's user look into them. So only root
creates, moves and removes names there, and its paths lead where root has put them. Each call still
starts from a descriptor of the directory of all jobs, and follows no symlink.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lodefs.chunkstore.errors import AlreadyExists, Denied, Unavailable
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.safe_open import (
    PLACE,
    closing,
    make_within,
    open_plain,
    open_within,
    remove_within,
)
from lodefs.mount.kernel import detached_mounts, mount_table
from lodefs.slurm.job_record import JobRecords, Shown

_READ = os.O_RDONLY | os.O_DIRECTORY
_ACL = "system.posix_acl_access"
_ACL_VERSION, _NOBODY = 2, 0xFFFFFFFF
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20  # linux/posix_acl.h
_OTHERS_WRITE = 0o022


class JobTrees:
    """The trees of one node, next to the records of its jobs. Errors of a file system become
    Denied, NoSpace or Unavailable."""

    def __init__(self, records: JobRecords) -> None:
        self._records = records

    def make(self, job: int) -> None:
        """An empty tree, for root alone. Raises: AlreadyExists: it is built anew or not at all."""
        tree = self._records.tree(job)
        with _translated(tree), self._jobs() as jobs_fd:
            try:
                os.mkdir(str(job), 0o700, dir_fd=jobs_fd)
            except FileExistsError as error:
                raise AlreadyExists(
                    f"{tree} is still there, and is not used: look at it, and remove it"
                ) from error

    @contextmanager
    def made_place(self, job: int, shown: Shown) -> Iterator[int]:
        """Yields a descriptor of the directory for a dataset, which is made."""
        with self._tree(job) as tree_fd, closing(make_within(tree_fd, _path(shown))) as fd:
            yield fd

    def give(self, job: int, uid: int) -> None:
        """Lets the job's user look into the tree, where nothing is made any more."""
        with (
            _translated(self._records.tree(job)),
            self._jobs() as jobs_fd,
            closing(open_within(jobs_fd, str(job), _READ)) as fd,
        ):
            os.setxattr(fd, _ACL, readable_by(uid))

    @contextmanager
    def copy(self, job: int, shown: Shown) -> Iterator[int]:
        """Yields a descriptor of a copy of the mount of a dataset, to be put elsewhere. Raises:
        Unavailable where anything else is mounted there."""
        with (
            self._tree(job) as tree_fd,
            closing(open_within(tree_fd, _path(shown), PLACE)) as root_fd,
            copy_of(root_fd, shown) as fd,
        ):
            yield fd

    def remove(self, job: int) -> None:
        """Removes all mounts, whatever state they are in, and the directories, if there is a
        tree."""
        tree = self._records.tree(job)
        with _translated(tree), suppress(FileNotFoundError), self._jobs() as jobs_fd:
            folder = f"{os.readlink(f'/proc/self/fd/{jobs_fd}')}/"
            for mounted in reversed(mount_table.read_table()):
                if mounted.mountpoint.startswith(f"{folder}{job}/"):
                    _take_off(jobs_fd, mounted.mountpoint.removeprefix(folder))
            remove_within(jobs_fd, str(job))

    @contextmanager
    def _tree(self, job: int) -> Iterator[int]:
        with (
            _translated(self._records.tree(job)),
            self._jobs() as jobs_fd,
            closing(open_within(jobs_fd, str(job), PLACE)) as fd,
        ):
            yield fd

    @contextmanager
    def _jobs(self) -> Iterator[int]:
        """Yields the directory of all jobs, in which nobody else may make names."""
        root = self._records.root
        with closing(open_plain(os.path.abspath(root), PLACE)) as fd:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE:
                raise Denied(f"{root}: others may write there; remove it, it is made anew")
            yield fd


@contextmanager
def copy_of(root_fd: int, shown: Shown) -> Iterator[int]:
    """Yields a descriptor of a copy of a mount of the node, if it is the dataset's. Raises:
    Unavailable, OSError."""
    found = mount_table.mount_of(root_fd)
    wanted = mount_table.source_of(shown.repo, shown.commit, shown.path)
    if found is None or not _is_of(found, wanted, is_writable=shown.is_writable):
        raise Unavailable(f"{shown.directory}: its mount is not {os.fsdecode(wanted)}")
    if found.is_lodefs and found.owner != os.geteuid():  # root alone mounts an overlay
        raise Unavailable(f"{shown.directory}: user {found.owner} has made the mount there")
    copied = detached_mounts.copied_from(root_fd, found.mountpoint, read_only=not shown.is_writable)
    with closing(copied) as fd:
        yield fd


def _is_of(found: mount_table.Mount, snapshot: bytes, *, is_writable: bool) -> bool:
    kind = found.is_writable if is_writable else found.is_lodefs
    return kind and found.snapshot == snapshot


def readable_by(uid: int) -> bytes:
    """Returns a directory's ACL: its owner may do everything, and one user may read it."""
    entries = (
        (_OWNER, 7, _NOBODY),
        (_USER, 5, uid),
        (_GROUP, 0, _NOBODY),
        (_MASK, 5, _NOBODY),
        (_OTHERS, 0, _NOBODY),
    )
    return struct.pack("<I", _ACL_VERSION) + b"".join(struct.pack("<HHI", *one) for one in entries)


def _path(shown: Shown) -> str:
    return shown.directory.lstrip("/")


def _take_off(jobs_fd: int, path: str) -> None:
    with suppress(OSError), closing(open_within(jobs_fd, path, PLACE)) as fd:  # or it is gone
        detached_mounts.take_off(fd)


@contextmanager
def _translated(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise kind_of(error)(f"{place}: {error.strerror}") from error

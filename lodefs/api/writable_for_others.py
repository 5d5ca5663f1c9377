"""Writable mounts that the node makes for others, over mounts of its mount service: volumes of
containers, and datasets of jobs. They are committed, or kept, when nobody shows them any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from lodefs.api import base_tags
from lodefs.api.writable import unmount_writable
from lodefs.api.writable_changes import commit_and_unmount
from lodefs.chunkstore.errors import InUse, Unavailable
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.mount.helper import state_files
from lodefs.mount.kernel import mount_syscalls
from lodefs.mount.options import MountOptions
from lodefs.mount.writable import upper_checks, upper_place, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.settings.session import Session


class Closed(NamedTuple):
    """The outcome of changes: their commit (None: none was made), and whether they are still on the
    disk."""

    result: ChangesResult | None
    kept: bool


def mount(session: Session, place: UpperPlace, wanted: Record, token: str | None) -> None:
    """Mounts the snapshot that the record of a place names, or ``wanted`` if there is no record,
    unless it is mounted. The mount service has mounted the snapshot below, or does so now.

    Raises: InUse (somebody shows it who is not known any more), InvalidInput (a disk that cannot
    take changes), NoSpace, Denied, Unavailable.
    """
    with _translated(place), place.locked():
        wanted = place.read() or wanted
        if writable_mount.is_living(wanted):
            return
        if writable_mount.mounted_on(wanted) is None:
            state_files.make_private(Path(wanted.mountpoint))
        upper_checks.check_file_system(place.directory)
        tag = base_tags.name_for(session, place, wanted)
        record = writable_mount.mount(
            place, msgspec.structs.replace(wanted, tag=tag), token, _no_mounter
        )
        base_tags.put(session, record)
        remember(session, wanted.mountpoint, place)


def close(
    session: Session,
    place: UpperPlace,
    at: str,
    *,
    branch: str | None = None,
    message: str = "",
    author: str | None = None,
    keeps: bool = False,
    discards: bool = False,
) -> Closed:
    """Removes the mount at ``at``, if there is one, and commits its changes, if there are any; or
    ``keeps`` or ``discards`` them. ``branch``, ``message`` and ``author`` are those of ``commit``.

    The changes stay if this raises: InUse if somebody still shows the mount, Diverged, NotFound
    (the branch), NoSpace, Denied, Unavailable.
    """
    with _translated(place):
        if (record := place.read()) is None:
            if place.directory.exists():  # a removal was interrupted
                with place.locked():
                    pass
            return Closed(None, kept=False)
        remember(session, at, place)
        _detach(record)
        writable_mount.check_unused(place, record)
        unmount_writable(session, at, keep=not discards, discard=discards)
        if keeps or place.read() is None:
            return Closed(None, kept=place.read() is not None)
        result, _ = commit_and_unmount(
            at, branch=branch, message=message, author=author, session=session, workers=0
        )
        return Closed(result, kept=False)


def remember(session: Session, at: str, place: UpperPlace) -> None:
    """Records the place, so that commands such as `lodefs commit` find it."""
    upper_place.remember(upper_place.state_directory(session.environment), at, place)


def _no_mounter(_options: MountOptions) -> object:
    """Raises: Unavailable. The mount service counts the mount's users, since it sees the mount
    above its own mounts."""
    raise Unavailable(
        "the node's mount service did not mount what is below the changes, or where this process "
        "cannot see it (mountPropagation): look at its log, and try again"
    )


def _detach(record: Record) -> None:
    """Unmounts it from its place here; others may have it elsewhere. Raises: InUse."""
    while writable_mount.mounted_on(record) is not None:
        try:
            mount_syscalls.detach(record.mountpoint, lazy=False)
        except BlockingIOError as error:
            raise InUse(f"{record.mountpoint}: a process of this machine has it open") from error


@contextmanager
def _translated(place: UpperPlace) -> Iterator[None]:
    """Errors of the disk as those of errors.py."""
    try:
        yield
    except OSError as error:
        raise state_files.translated(error, place.directory) from error

"""Writable mounts that the node makes for others, over mounts of its mount service: volumes of
containers, and datasets of jobs. They are committed, or kept, when nobody shows them any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lodefs.api.writing import base_tags, writable_changes
from lodefs.api.writing.writable import unmount_writable
from lodefs.chunkstore.errors import InUse, Unavailable
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.mount.helper import state_files
from lodefs.mount.kernel import mount_syscalls
from lodefs.mount.options import MountOptions
from lodefs.mount.writable import upper_checks, upper_place, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.settings.session import Session

LEFT_OUT_MAX = 5  # paths that a message names


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


def commit(
    session: Session,
    place: UpperPlace,
    at: str,
    *,
    branch: str | None = None,
    message: str = "",
    author: str | None = None,
) -> ChangesResult | None:
    """Removes the mount at ``at``, if there is one, and commits its changes. The place stays, and
    its record is at the commit. Returns None if there are no changes. ``branch``, ``message`` and
    ``author`` are those of ``lodefs.commit``.

    The changes stay if this raises: InUse if somebody still shows the mount, Diverged, NotFound
    (the branch), NoSpace, Denied, Unavailable.
    """
    with _translated(place):
        record = _detached(session, place, at)
        if record is None or not place.has_changes(record.generation):
            return None
        return writable_changes.commit(
            at, branch=branch, message=message, author=author, session=session, workers=0
        )


def close(session: Session, place: UpperPlace, at: str, *, discards: bool = False) -> bool:
    """Removes the mount at ``at``, if there is one, and its place, unless that has changes, which
    are kept, or ``discards`` them. Returns whether there are kept ones. Raises: InUse if somebody
    still shows the mount; Denied; Unavailable, also for the node's mount service. Then it is to be
    repeated."""
    with _translated(place):
        if _detached(session, place, at) is None:
            return False
        unmount_writable(session, at, keep=not discards, discard=discards, insists=True)
        return place.read() is not None


def left_out(skipped: Sequence[Skipped]) -> str:
    """Returns the paths that a commit does not have, since no commit can hold them, and why, for
    people; "" if there are none."""
    named = [str(each) for each in skipped[:LEFT_OUT_MAX]]
    more = len(skipped) - len(named)
    return "; ".join([*named, *([f"and {more:,} more"] if more else [])])


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


def _detached(session: Session, place: UpperPlace, at: str) -> Record | None:
    """Returns the record of a place that is mounted nowhere; None if it is removed, which this
    completes. Raises: InUse."""
    if (record := place.read()) is None:
        if place.directory.exists():  # a removal was interrupted
            with place.locked():
                pass
        upper_place.forget(upper_place.state_directory(session.environment), at)
        return None
    remember(session, at, place)
    _detach(record)
    writable_mount.check_unused(place, record)
    return record


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

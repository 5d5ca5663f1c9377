"""Writable mounts: creates, finds, moves to a new commit, and unmounts them.

The record of the place is authoritative, and is written before the step that it describes. So after
a kill at any moment the same call continues: a mount that is not in the record is removed, and a
mount that is only in the record is mounted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Denied, InUse, InvalidInput, LodefsError, NotFound, Unsupported
from lodefs.chunkstore.system.safe_open import PLACE, closing, open_plain
from lodefs.mount.helper import state_files
from lodefs.mount.kernel import detached_mounts, mount_syscalls, mount_table, overlay
from lodefs.mount.options import MODE_MAX
from lodefs.mount.process import process_scan
from lodefs.mount.process.mount_target import check_mountpoint
from lodefs.mount.process.process_scan import MountUser, Writer
from lodefs.mount.writable import lower_mount
from lodefs.mount.writable.lower_mount import Mounter
from lodefs.mount.writable.upper_place import NotedCommit, Record, UpperPlace

OWNER_WRITES = 0o200


class WritableUnmounted(NamedTuple):
    """The result of unmounting. ``users``: processes that still have files open, as far as they can
    be seen; ``is_lazy``: there are some. ``kept``: the place has changes. ``tag_left``: the tag
    that kept their base, if it could not be removed; else ""."""

    is_lazy: bool
    users: Sequence[MountUser]
    kept: bool
    tag_left: str = ""


def mount(place: UpperPlace, wanted: Record, token: str | None, mounter: Mounter) -> Record:
    """Mounts what a record says, with the changes that its place has: then their base counts, and
    not the commit of ``wanted``. The caller has locked the place and checked the file system.

    Raises: InUse (it is mounted, here or in another mount namespace), InvalidInput (the mountpoint;
    the place has changes to something else), and what ``mounter.mount`` raises. Then nothing is
    lost, and nothing new stays mounted.
    """
    former = place.read()
    record = wanted if former is None else goes_on(former, wanted, place)
    record = msgspec.structs.replace(record, noted=None)  # it accepts writes from now on
    _clear(place, record)
    check_unused(place, record)
    if record != former:
        place.write(record)
    try:
        _sweep(place, record)
        with closing(_overlay(place, record, token, mounter)) as fd, _opened(record) as at:
            detached_mounts.put(fd, at, record.mountpoint)
        place.reserve()
    except BaseException as error:
        if mounted_on(record) is None:
            lower_mount.let_go(place, record)
            if former is None:
                place.remove()
        if isinstance(error, OSError):
            raise state_files.translated(error, place.directory) from error
        raise
    return record


def goes_on(former: Record, wanted: Record, place: UpperPlace) -> Record:
    """Returns the record to continue with, if a place has one. Pure. Raises: InvalidInput if its
    changes belong to another repository, path, revision or mountpoint."""
    same = (former.mountpoint, former.repo, former.path, former.branch)
    if same == (wanted.mountpoint, wanted.repo, wanted.path, wanted.branch) and (
        former.branch or former.commit == wanted.commit
    ):
        return msgspec.structs.replace(
            former,
            options=wanted.options,
            service=former.service or wanted.service,
            tag=wanted.tag or former.tag,
        )
    rev = former.branch or former.commit
    path = f":{former.path.decode('utf-8', 'backslashreplace')}" if former.path else ""
    raise InvalidInput(
        f"{place.directory} has changes to {former.repo}@{rev}{path} on {former.mountpoint}: mount "
        f"that there again, or discard them with `lodefs unmount --discard {former.mountpoint}`"
    )


def advance(
    place: UpperPlace,
    commit: str,
    token: str | None,
    mounter: Mounter,
    *,
    repo: str | None = None,
    branch: str | None = None,
) -> Record:
    """Continues from a commit of the changes: the mount shows it, and has no changes from now on.
    Open files read on as they were. ``repo``, ``branch``: where the next commit goes. The caller
    has locked the place.

    Raises: NotFound without a record, otherwise what ``mount`` raises; the old mount then stays.
    """
    former = recorded(place)
    options = former.options
    record = msgspec.structs.replace(
        former,
        options=options if repo is None else msgspec.structs.replace(options, repo=repo),
        commit=commit,
        generation=former.generation + 1,
        branch=former.branch if branch is None else branch,
        noted=None,
    )
    mounted = mounted_on(former)
    try:
        if mounted is None:
            _make(place, record)
            place.write(record)
        else:
            _sweep(place, former)
            with closing(_overlay(place, record, token, mounter)) as fd:
                place.write(record)
                _exchange(fd, record)
    except BaseException as error:
        if place.read() == former:
            lower_mount.let_go(place, record)
            with suppress(OSError):
                place.drop(record.generation)
        if isinstance(error, OSError):
            raise state_files.translated(error, place.directory) from error
        raise
    _sweep(place, record)
    place.reserve()
    return record


def catch_up(place: UpperPlace, token: str | None, mounter: Mounter) -> Record:
    """Returns the record of a place whose mount shows what the record says. A kill in ``advance``
    may have left a mount of the previous generation, which no commit reads any more. The caller has
    locked the place. Raises what ``mount`` raises."""
    record = recorded(place)
    was_behind = False
    while (found := mounted_on(record)) is not None and found.generation != str(record.generation):
        mount_syscalls.detach(record.mountpoint, lazy=True)
        was_behind = True
    return mount(place, record, token, mounter) if was_behind and found is None else record


def recorded(place: UpperPlace) -> Record:
    """Returns the record of a place. Raises: NotFound without one; what ``UpperPlace.read``
    raises."""
    record = place.read()
    if record is None:
        raise NotFound(f"{place.directory} has no changes of a writable mount")
    return record


def unmount(place: UpperPlace, *, discard: bool, insists: bool = False) -> WritableUnmounted:
    """Removes a writable mount if it is mounted. Processes that have files of it open read and
    write on. If there are changes, and they are not to be ``discard``ed, they are kept, and
    ``mount`` finds them again; else it is for the caller, who has the place locked, to remove that.
    ``insists``: as for ``lower_mount.let_go``. Raises: InUse if it is mounted in another mount
    namespace, and would be left without its place; Denied, Unavailable."""
    record = recorded(place)
    users: Sequence[MountUser] = ()
    is_lazy = False
    was_mounted = mounted_on(record) is not None
    while (found := mounted_on(record)) is not None:
        try:
            mount_syscalls.detach(record.mountpoint, lazy=False)
        except BlockingIOError:
            users, is_lazy = process_scan.processes_using(record.mountpoint), True
            mount_syscalls.detach(found.mountpoint, lazy=True)
    try:
        kept = not discard and (is_lazy or place.has_changes(record.generation))
        if not was_mounted and not kept:
            check_unused(place, record)
        for number in {record.generation, *place.generations()}:
            former = msgspec.structs.replace(record, generation=number)
            lower_mount.let_go(place, former, insists=insists)
        if kept:
            _sweep(place, record)
    except OSError as error:
        raise state_files.translated(error, place.directory) from error
    return WritableUnmounted(is_lazy, users, kept)


def set_read_only(place: UpperPlace, record: Record, *, read_only: bool) -> list[Writer]:
    """Makes the mount of a record refuse changes, or accept them again, if it is mounted. Returns
    the processes that prevent this; none if it is done. Raises: Denied, Unavailable; InUse if they
    cannot be seen, if something is mounted in it, or if a mount elsewhere can write to it."""
    found = mounted_on(record)
    if found is None:
        if read_only:
            check_unused(place, record)
        return []
    if read_only and (below := mount_table.below(record.mountpoint)) is not None:
        raise InUse(
            f"{below.mountpoint} is mounted in {record.mountpoint}, and would be lost with what "
            "the mount shows now: unmount that first"
        )
    try:
        overlay.set_read_only(found, read_only=read_only)
    except BlockingIOError as error:
        writers = process_scan.writers(found.device)
        if not writers:
            raise InUse(
                f"{record.mountpoint}: files are open for writing, or removed and still open, by "
                "processes that this user cannot see"
            ) from error
        return writers
    return []


def is_living(record: Record) -> bool:
    """Whether the mount of a record shows what it says, and a process serves what is below."""
    found = mounted_on(record)
    is_of_now = found is not None and found.generation == str(record.generation)
    return found is not None and is_of_now and lower_mount.lives(found.lower_device)


def note_commit(place: UpperPlace, noted: NotedCommit | None) -> None:
    """Records that a commit of all the changes is about to be made, from a mount that refuses
    changes until then; or (None) that it was not made. Raises: NotFound, NoSpace, Denied,
    Unavailable."""
    place.write(msgspec.structs.replace(recorded(place), noted=noted))


def is_read_only(record: Record) -> bool:
    """Whether the mount of a record exists and refuses changes: a commit is under way, or was
    interrupted."""
    if mounted_on(record) is None:
        return False
    try:
        return bool(os.statvfs(record.mountpoint).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def mounted_on(record: Record) -> mount_table.Mount | None:
    """Returns the writable mount on the mountpoint of a record, whatever commit it shows."""
    found = mount_table.on_top(record.mountpoint)
    return found if found is not None and found.is_writable else None


def _clear(place: UpperPlace, record: Record) -> None:
    """Ensures that the mountpoint is an empty directory: removes a mount of an earlier generation,
    or one whose snapshot has no process. Raises: InUse, InvalidInput."""
    while mounted_on(record) is not None:
        if is_living(record):
            raise InUse(
                f"{record.mountpoint}: {record.repo}@{record.commit} is mounted here for writing, "
                f"with its changes in {place.directory}; `lodefs unmount {record.mountpoint}` "
                "takes it away"
            )
        mount_syscalls.detach(record.mountpoint, lazy=True)
    check_mountpoint(record.mountpoint)


def check_unused(place: UpperPlace, record: Record) -> None:
    """Raises InUse if another overlay has the changes: each would miss the other's writes."""
    try:
        if place.is_in_use(record.generation):
            raise InUse(
                f"{place.directory} is still in use, by a mount in another mount namespace or by "
                f"processes that have files of {record.mountpoint} open: end them, or work there"
            )
    except PermissionError as error:
        raise Denied(
            "only root, or root of a user namespace, can see whether another mount has the "
            f"changes in {place.directory}: run `unshare --user --map-root-user --mount`, and "
            "repeat the command there"
        ) from error
    except OSError as error:
        raise state_files.translated(error, place.directory) from error


def _overlay(place: UpperPlace, record: Record, token: str | None, mounter: Mounter) -> int:
    """Returns a descriptor of the overlay of a record, which is not mounted yet. Raises:
    OSError."""
    number = record.generation
    _make(place, record)
    lower = lower_mount.bring_up(place, record, token, mounter)
    snapshot = mount_table.source_of(record.repo, record.commit, record.path)
    source = mount_table.overlay_source(snapshot, lower_mount.device_of(lower), number)
    return overlay.create(lower, place.upper(number), place.work(number), source)


def _make(place: UpperPlace, record: Record) -> None:
    """Creates the directories for a record's changes. Raises: OSError."""
    options = record.options
    place.make(record.generation, options.uid, options.gid, writable_mode(options.mode))


def _exchange(fd: int, record: Record) -> None:
    """Replaces the overlay on the mountpoint by another one, without a gap. Before Linux 6.5 the
    mountpoint is empty for a moment."""
    at = record.mountpoint
    with _opened(record) as directory_fd:
        try:
            detached_mounts.put(fd, directory_fd, at, beneath=True)
            fd = -1
        except Unsupported:
            pass
    try:
        mount_syscalls.detach(at, lazy=False)
    except BlockingIOError:
        mount_syscalls.detach(at, lazy=True)
    if fd >= 0:
        with _opened(record) as directory_fd:
            detached_mounts.put(fd, directory_fd, at)


def _opened(record: Record) -> AbstractContextManager[int]:
    try:
        return closing(open_plain(record.mountpoint, PLACE))
    except OSError as error:
        raise InvalidInput(f"{record.mountpoint}: {error.strerror}") from error


def _sweep(place: UpperPlace, record: Record) -> None:
    """Removes what other generations have left, except what is still in use."""
    for number in place.generations():
        if number != record.generation:
            former = msgspec.structs.replace(record, generation=number)
            with suppress(OSError, LodefsError):  # tried again next time
                lower_mount.let_go(place, former, insists=True)
                if not place.is_in_use(number):
                    place.drop(number)


def writable_mode(mode: int | None) -> int:
    """Returns the permissions of a snapshot below a writable mount, which include its owner's
    writes."""
    return (MODE_MAX if mode is None else mode) | OWNER_WRITES

"""Writable mounts: finds the place with the changes of a mountpoint, and mounts and unmounts."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from lodefs.api.mounting import Mount, options_of
from lodefs.api.writing import base_tags, commit_ends
from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, ID_HEX_CHARS_MIN
from lodefs.mount.helper import state_files
from lodefs.mount.kernel import mount_table, namespaces
from lodefs.mount.kernel.device import check_device
from lodefs.mount.options import READ_TIMEOUT_S, MountOptions
from lodefs.mount.process import mounter
from lodefs.mount.process.mount_target import canonical, check_mountpoint, resolve
from lodefs.mount.process.mounter import Unmounted
from lodefs.mount.service.process import RUN, SOCKET_NAME
from lodefs.mount.writable import upper_checks, upper_place, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.mount.writable.writable_mount import WritableUnmounted
from lodefs.settings.mount_file import MountFile
from lodefs.settings.session import Session

MOUNTER_SOCKET = "LODEFS_MOUNTER_SOCKET"


class WritableMounted(NamedTuple):
    """A writable mount that is ready. ``is_resumed``: it shows changes that were kept in its place.
    ``is_mended``: it existed, and accepts changes again after an interrupted commit. ``untagged``:
    why nothing keeps its base from the retention policy."""

    record: Record
    place: UpperPlace
    is_resumed: bool
    is_mended: bool = False
    untagged: LodefsError | None = None


class Uncommitted(NamedTuple):
    """A place with uncommitted changes."""

    record: Record
    place: UpperPlace
    is_mounted: bool


class WritableMount(Mount):
    """A writable mount that is ready. As a context manager it keeps its changes at the end."""

    def __init__(self, session: Session, made: WritableMounted) -> None:
        self._session = session
        self.mountpoint = made.record.mountpoint
        self.repo = made.record.repo
        self.commit = made.record.commit

    def unmount(self, *, keep: bool = True, discard: bool = False) -> Unmounted:
        """Unmounts it. A mount in use disappears, and ends when its last user closes its files. Its
        changes are kept for the next mount there, or ``discard``ed. Raises: NotFound, Denied."""
        done = unmount_writable(self._session, self.mountpoint, keep=keep, discard=discard)
        return Unmounted(self.mountpoint, done.is_lazy, done.users)


def mount_writable(
    session: Session,
    requested: MountFile,
    *,
    upper: str | None = None,
    log_path: str = "",
    fork: bool = False,
    ends_with: int = 0,
    leaves_namespace: bool = False,
) -> WritableMounted:
    """Mounts a revision on an empty directory for reading and writing. The changes lie in
    ``upper``, a directory of a local disk, or below the state directory. Kept changes of an earlier
    mount there are used, with their base. Starts a proxy if none runs. ``fork``: as for
    ``mounter.mount``. ``ends_with``: a process; the snapshot below the mount ends with it and with
    the mount namespace; 0: with neither, or with ``leaves_namespace`` with the namespace alone.

    Raises what ``lodefs.mount`` raises, and: InvalidInput (``upper`` cannot be used, or there are
    changes to something else), InUse, Conflict, NoSpace.
    """
    check_device()
    mountpoint = canonical(requested.directory)
    on_top = mount_table.on_top(mountpoint)
    if on_top is None or not on_top.is_writable:
        check_mountpoint(mountpoint)  # before a proxy is started in vain
    state = upper_place.state_directory(session.environment)
    place = _place(state, mountpoint, upper)
    with place.locked():
        upper_checks.check_file_system(place.directory)
        options = msgspec.structs.replace(
            options_of(session, requested, log_path),
            mountpoint=mountpoint,
            leaves_namespace=leaves_namespace or bool(ends_with),
        )
        mode = writable_mount.writable_mode(options.mode)
        former = place.read()
        if former is not None:
            former, is_mended = commit_ends.mended(session, place, former)
            if is_mended and writable_mount.is_living(former):
                is_resumed = place.has_changes(former.generation)
                return WritableMounted(former, place, is_resumed, is_mended=True)
        wanted = _wanted(session, msgspec.structs.replace(options, mode=mode), former)
        wanted = msgspec.structs.replace(wanted, tag=base_tags.name_for(session, place, wanted))
        is_resumed = place.has_changes(wanted.generation)

        def make(options: MountOptions) -> object:
            return mounter.mount(msgspec.structs.replace(options, ends_with=ends_with), fork=fork)

        try:
            record = writable_mount.mount(place, wanted, options.token, make)
        except NotFound as error:
            if is_resumed:
                error.add_note(base_tags.way_out(wanted))
            raise
        upper_place.remember(state, mountpoint, place)
    untagged = base_tags.put(session, record)
    return WritableMounted(record, place, is_resumed, untagged=untagged)


def place_of(session: Session, directory: str) -> UpperPlace:
    """Returns the place of a writable mount, mounted or not. Raises: NotFound."""
    mountpoint = canonical(directory)
    state = upper_place.state_directory(session.environment)
    found = upper_place.find(state, mountpoint)
    if found is None:
        raise NotFound(
            f"{directory}: there is no writable mount here, and no kept changes in "
            f"{state}; `lodefs mounts --uncommitted` lists this user's changes"
        )
    return found


def is_writable(session: Session, directory: str) -> bool:
    """Whether a directory is, or was, a writable mount: it has a place."""
    try:
        place_of(session, directory)
    except NotFound:
        return False
    return True


def branch_of(session: Session, directory: str) -> str:
    """Returns the branch to which the next commit of a writable mount goes; "" if it has none, or
    if this user cannot read the record of the mount."""
    with suppress(LodefsError, OSError):
        return writable_mount.recorded(place_of(session, directory)).branch
    return ""


def unmount_writable(
    session: Session,
    directory: str,
    *,
    keep: bool = False,
    discard: bool = False,
    insists: bool = False,
) -> WritableUnmounted:
    """Unmounts a writable mount, and ``keep``s or ``discard``s its changes, mounted or not.
    ``insists``: for a caller who tries again, also raises if the node's mount service does not let
    go of the snapshot below. Raises: NotFound; InvalidInput if there are changes and neither is
    asked for; Unavailable."""
    place = place_of(session, directory)
    with place.locked():
        record = writable_mount.recorded(place)
        if not keep and not discard and place.has_changes(record.generation):
            raise InvalidInput(
                f"{directory} has changes that are in no commit: `lodefs commit {directory}` "
                "commits them; or unmount with --commit, with --keep (for the next `lodefs mount "
                "--writable` there), or with --discard"
            )
        return take_away(session, place, record, discard=discard, insists=insists)


def take_away(
    session: Session, place: UpperPlace, record: Record, *, discard: bool, insists: bool = False
) -> WritableUnmounted:
    """Unmounts it; the caller has locked its place. Changes that are not discarded are kept. The
    tag goes before the record, which alone has its name."""
    done = writable_mount.unmount(place, discard=discard, insists=insists)
    if not done.kept:
        done = done._replace(tag_left=base_tags.remove(session, record))
        try:
            place.remove()
        except OSError as error:
            raise state_files.translated(error, place.directory) from error
        upper_place.forget(upper_place.state_directory(session.environment), record.mountpoint)
    return done


def uncommitted(session: Session) -> list[Uncommitted]:
    """Returns uncommitted changes of this user, mounted or not. Places that cannot be read are left
    out. Raises: OSError."""
    found = []
    for place in upper_place.all_places(upper_place.state_directory(session.environment)):
        with suppress(LodefsError, OSError):
            record = place.read()
            if record is not None and place.has_changes(record.generation):
                is_mounted = writable_mount.mounted_on(record) is not None
                found.append(Uncommitted(record, place, is_mounted))
    return found


def _place(state: Path, mountpoint: str, upper: str | None) -> UpperPlace:
    """Returns the place for the changes of a mountpoint. Raises: InvalidInput."""
    former = upper_place.find(state, mountpoint)
    chosen = upper_checks.chosen(upper, mountpoint) if upper is not None else None
    if former is not None:
        if chosen not in (None, former.directory):
            raise InvalidInput(
                f"{mountpoint} keeps its changes in {former.directory}: mount it without --upper, "
                f"or discard them first (`lodefs unmount --discard {mountpoint}`)"
            )
        return former
    place = UpperPlace(chosen) if chosen else upper_place.default_place(state, mountpoint)
    if upper_checks.overlap(str(place.directory), mountpoint):
        raise InvalidInput(
            f"{mountpoint} contains the directory for its own changes, {place.directory}: name "
            "another one by --upper"
        )
    upper_place.forget(state, mountpoint)  # the record of a removed place
    return place


def _wanted(session: Session, options: MountOptions, former: Record | None) -> Record:
    """Returns the record of the mount to make. Kept changes decide this: their base counts, not the
    argument."""
    service = _service(session, options)
    if former is not None and former.branch == options.rev and former.repo == options.repo:
        return msgspec.structs.replace(former, options=options, service=former.service or service)
    commit = resolve(options).snapshot.commit
    branch = _branch(session, options, commit)
    generation = former.generation if former is not None else 0
    return Record(
        options=options, branch=branch, commit=commit, generation=generation, service=service
    )


def _branch(session: Session, options: MountOptions, commit: str) -> str:
    """Returns the branch that a revision is; "" for a tag or a commit. If the store cannot be
    asked, it is taken for a branch: a commit will report it otherwise."""
    rev = options.rev
    if len(rev) >= ID_HEX_CHARS_MIN and commit.startswith(rev):
        return ""
    if rev != DEFAULT_BRANCH and session.has_store:
        from lodefs.chunkstore.repo.refs import BRANCHES

        with suppress(LodefsError):
            is_branch = session.store.refs(options.repo).head(BRANCHES, rev) is not None
            return rev if is_branch else ""
    return rev


def _service(session: Session, options: MountOptions) -> str:
    """Returns the socket of the mount service, if it may hold the snapshot, else "". A shared mount
    has no read limit and no log of a single mount."""
    is_root = os.geteuid() == 0 and namespaces.in_first_user_namespace()
    plain = (options.read_timeout_s, options.log_path, options.passthrough, options.without)
    if not is_root or plain != (READ_TIMEOUT_S, "", "auto", frozenset()):
        return ""
    path = session.environment.get(MOUNTER_SOCKET) or str(RUN / SOCKET_NAME)
    return path if os.path.exists(path) else ""

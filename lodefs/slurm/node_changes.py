"""Changes that jobs make to datasets on this node. They are mounted before a job begins. After its
end they are committed with the node's credentials, or kept.

Only root creates names where they are mounted and where they lie; a job gets a copy of the mount.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from lodefs.api.writing import writable_for_others
from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    InUse,
    InvalidInput,
    LodefsError,
    NoSpace,
    Unavailable,
)
from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.mount.helper import state_files
from lodefs.mount.options import MountOptions
from lodefs.mount.service.machine_clock import boot_id
from lodefs.mount.writable import upper_checks, upper_place, writable_mount
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.proxies.own_proxy import node_proxy
from lodefs.settings.session import Session
from lodefs.slurm.change_records import Change, ChangeRecords, Fate, fate_of
from lodefs.slurm.job_liveness import JobEnd
from lodefs.slurm.job_record import JobRecord, JobRecords, Shown

AGAIN = (Unavailable, Conflict, InUse, Denied, NoSpace)  # may go by itself, or once root has mended

Tell = Callable[["Settled"], str]
"""Tells an outcome to people, and returns what was said; "" if it is not the time to say it."""
EndOf = Callable[[int, int], JobEnd]
"""How a job's run with so many restarts ended. Raises: Unavailable."""
CheckWrite = Callable[[int, str], None]
"""Raises NotFound or Denied where a user (by number) may not commit to a repository."""


class Settled(NamedTuple):
    """The outcome of a change: its ``commit``, and what that left out (``skipped``); ``kept``: the
    directory in which the changes still lie, and ``error`` the reason, if they were to be
    committed. With none of these nothing was changed."""

    change: Change
    skipped: Sequence[Skipped] = ()
    kept: Path | None = None
    error: LodefsError | None = None

    @property
    def is_tried_again(self) -> bool:
        """Whether a later call may commit them."""
        return isinstance(self.error, AGAIN)


class NodeChanges:
    """The changes of jobs on one node. ``service``: the socket of its mount service. ``upper``: a
    directory in which the changes of jobs that begin now are to lie; "": where root's do."""

    def __init__(
        self,
        session: Session,
        service: Path,
        *,
        check_write: CheckWrite = lambda _uid, _repo: None,
        upper: str = "",
        records: ChangeRecords | None = None,
        jobs: JobRecords | None = None,
    ) -> None:
        self._session = session
        self._service = service
        self._check_write = check_write
        self._upper = upper
        self._records = records or ChangeRecords()
        self._jobs = jobs or JobRecords()

    def begin(self, job: JobRecord, shown: Shown) -> str:
        """Mounts a dataset for a job's changes, and returns the mountpoint. It first asks whether
        they could be committed. Raises: NotFound, Denied, InvalidInput (a tag), Unavailable; and as
        ``writable_for_others.mount``."""
        self._check_write(job.uid, shown.repo)
        change = self._change(job, shown, makes_branch=not self._has_branch(shown))
        place = self._place(change)
        if place.read() is not None:
            raise AlreadyExists(f"{place.directory} has changes of another job: try again")
        try:  # other users of the node may not look into it
            state_files.make_private(Path(change.mountpoint).parent)
        except OSError as error:
            raise state_files.translated(error, Path(change.mountpoint)) from error
        self._records.write(change)
        wanted = self._record(change)
        writable_for_others.mount(self._session, place, wanted, None)
        return change.mountpoint

    def settle(self, change: Change, end_of: EndOf, tell: Tell) -> Settled | None:
        """Commits changes, or keeps them, if their time has come, and tells it. Returns None if it
        has not, or if another process settles them. May be repeated: a kill at any moment loses
        nothing, there is one commit, and it is told at least once. Raises: Unavailable (Slurm does
        not answer); NoSpace, Denied (a record)."""
        try:
            with self._records.taken(change) as present:
                if present is None or (fate := self._fate(present, end_of)) is Fate.WAIT:
                    return None
                settled = self._closed(present, keeps=fate is Fate.KEEP)
                said = tell(settled)
                if not settled.is_tried_again:
                    self._records.remove(change)
                elif said not in ("", present.told):
                    self._records.write(msgspec.structs.replace(settled.change, told=said))
                return settled
        except InUse:
            return None

    def changes(self, job: int | None = None) -> Iterator[Change]:
        """Returns the changes that have no reported outcome yet. Raises: UnknownFormat."""
        return self._records.changes(job)

    def _fate(self, change: Change, end_of: EndOf) -> Fate:
        record, boot = self._jobs.read(change.job), boot_id()
        fate = fate_of(change, record, boot, None)
        if fate is Fate.ASK:
            fate = fate_of(change, record, boot, end_of(change.job, change.restarts))
        return fate

    def _closed(self, change: Change, *, keeps: bool) -> Settled:
        state = upper_place.state_directory(self._session.environment)
        link = upper_place.default_place(state, change.mountpoint).directory
        place = UpperPlace(Path(change.upper) / change.name if change.upper else link)
        try:
            if link.is_symlink() and not place.directory.exists() and not change.commit:
                raise Unavailable(f"{place.directory} is not there: is its disk mounted?")
            result = None if keeps or change.commit else self._committed(change, place)
            change = self._with_commit(change, place)
            kept = writable_for_others.close(
                self._session, place, change.mountpoint, discards=not keeps
            )
        except LodefsError as error:
            return Settled(change, kept=place.directory, error=error)
        except Exception as error:  # noqa: BLE001 - whatever one job has, others are settled
            failed = Unavailable(f"it fails with {type(error).__name__}: {error}")
            return Settled(change, kept=place.directory, error=failed)
        finally:
            with suppress(OSError):  # it is in use still, or gone
                os.rmdir(change.mountpoint)
        skipped = () if result is None else result.skipped
        return Settled(change, skipped, place.directory if kept else None)

    def _committed(self, change: Change, place: UpperPlace) -> ChangesResult | None:
        return writable_for_others.commit(
            self._session,
            place,
            change.mountpoint,
            branch=change.shown.branch if change.makes_branch else None,
            message=f"Slurm job {change.job}",
            author=_name_of(change.uid),
        )

    def _with_commit(self, change: Change, place: UpperPlace) -> Change:
        """Records the commit of a change, which the record of its place is at, before that is
        removed: after a kill nobody else knows it. Raises: NoSpace, Denied, Unavailable."""
        record = place.read()
        if change.commit or record is None or record.commit == change.shown.commit:
            return change
        change = msgspec.structs.replace(change, commit=record.commit)
        self._records.write(change)
        return change

    def _has_branch(self, shown: Shown) -> bool:
        """Whether there is the branch of a dataset, in a store that takes commits."""
        store = self._session.store
        store.ensure_writable()
        store.require_repo(shown.repo)
        refs = store.refs(shown.repo)
        if refs.head(TAGS, shown.branch) is not None:
            raise InvalidInput(
                f"{shown.branch} is a tag of {shown.repo}, which no commit moves: name the branch "
                f"to which changes go, as in {shown.repo}@{shown.branch}:DIR:rw=BRANCH"
            )
        return refs.head(BRANCHES, shown.branch) is not None

    def _change(self, job: JobRecord, shown: Shown, *, makes_branch: bool) -> Change:
        return Change(
            job=job.job,
            uid=job.uid,
            gid=job.gid,
            restarts=job.restarts,
            begun_s=job.begun_s,
            boot=boot_id(),
            shown=shown,
            number=job.datasets.index(shown),
            makes_branch=makes_branch,
            upper=self._upper,
        )

    def _place(self, change: Change) -> UpperPlace:
        if change.upper:
            chosen = str(Path(change.upper) / change.name)
            return UpperPlace(upper_checks.chosen(chosen, change.mountpoint))
        state = upper_place.state_directory(self._session.environment)
        return upper_place.default_place(state, change.mountpoint)

    def _record(self, change: Change) -> Record:
        shown = change.shown
        options = MountOptions(
            repo=shown.repo,
            rev=shown.branch,
            path=shown.path,
            mountpoint=change.mountpoint,
            proxy=node_proxy(self._session),
            uid=change.uid,
            gid=change.gid,
            mode=writable_mount.writable_mode(None),
        )
        return Record(
            options=options,
            branch=shown.branch,
            commit=shown.commit,
            service=str(self._service),
        )


def told(one: Settled) -> str:
    """Returns the outcome of changes, for people."""
    change = one.change
    what = f"the changes on {change.shown.directory} ({change.dataset})"
    if change.commit:
        left_out = writable_for_others.left_out(one.skipped)
        left = f"; left out: {left_out}" if left_out else ""
        left += f"; what is left on the node stays for now: {one.error}" if one.error else ""
        return f"{what} are commit {change.commit}{left}"
    if one.kept is None:
        return f"nothing was changed on {change.shown.directory} ({change.dataset})"
    said = f"{what} are kept in {one.kept}"
    if one.error is not None:
        why = "; ".join([str(one.error), *getattr(one.error, "__notes__", [])])
        again = ", and the commit is tried again" if one.is_tried_again else ""
        said = f"error: {what} are not committed: {why}; they are kept in {one.kept}{again}"
    return (
        f"{said}: as root of this node `lodefs commit {change.mountpoint}` commits them, `lodefs "
        f"unmount --discard {change.mountpoint}` gives them up"
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"

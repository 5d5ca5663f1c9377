"""How a commit of a writable mount comes to its end, also one that was interrupted.

The record notes a commit right before the branch leads to it, and the mount takes no changes until
the record has gone on from it. So a commit that was noted, and that the log of its branch has, is
one of all the changes that lie there.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from lodefs.api import base_tags
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.mount.process import mounter
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.lower_mount import Mounter
from lodefs.mount.writable.upper_place import NotedCommit, Record, UpperPlace
from lodefs.proxies.own_proxy import start_again
from lodefs.settings.session import Session


def mounter_of(session: Session) -> tuple[str | None, Mounter]:
    """A token, and what mounts a snapshot."""
    token = session.environment.get("LODEFS_TOKEN") or None
    return token, partial(mounter.mount, fork=True)


def go_on(session: Session, place: UpperPlace, record: Record, commit: str, at: Spec) -> Record:
    """The record, and the mount if it is there, go on from a commit, which is in the store, and
    ``at`` a branch. The caller has the place locked. Raises: as ``writable_mount.advance``."""
    try:
        with suppress(LodefsError):  # another one may have been started
            start_again(session, record.options.proxy)
        made_by = mounter_of(session)
        record = writable_mount.advance(place, commit, *made_by, repo=at.repo, branch=at.rev)
    except (LodefsError, OSError) as error:
        error.add_note(
            f"{commit} is committed, and {record.mountpoint} is still at its base, and takes no "
            "changes: repeat the command to go on from the commit"
        )
        raise
    base_tags.put(session, record)
    return record


def settled(session: Session, place: UpperPlace, record: Record) -> Record:
    """The record of a place where no commit is under way: one that was interrupted is gone on from
    if it was made, and forgotten if not. The caller has the place locked. Raises: what the store
    does; as ``go_on``."""
    noted = record.noted
    if noted is None:
        return record
    if was_made(session, noted):
        return go_on(session, place, record, noted.commit, Spec(noted.repo, noted.branch))
    writable_mount.note_commit(place, None)
    return writable_mount.recorded(place)


def mended(session: Session, place: UpperPlace, record: Record) -> tuple[Record, bool]:
    """The same, and a mount that an interrupted commit has left read-only takes changes again;
    whether there was one. If the store does not say whether the commit was made, the changes count
    as in no commit. The caller has the place locked. Raises: as ``go_on``; Denied, Unavailable."""
    was_read_only = writable_mount.is_read_only(record)
    if record.noted is not None and _is_made(session, record.noted):
        record = settled(session, place, record)
    elif was_read_only:
        record = take_changes(place, record)
    return record, was_read_only


def end(session: Session, place: UpperPlace, record: Record) -> None:
    """After a commit, or an error: the mount of ``record`` takes changes again, unless it has been
    left behind, or the commit was made: what is written now would be in no commit."""
    now = place.read()
    if now is None or now.generation != record.generation:
        return
    if now.noted is None or not _is_made(session, now.noted):
        take_changes(place, now)
        place.reserve()


def take_changes(place: UpperPlace, record: Record) -> Record:
    """The mount of a record, if there is one, takes changes: no commit that was noted has them all.
    Denied, NoSpace, Unavailable."""
    if record.noted is not None:
        writable_mount.note_commit(place, None)
        record = writable_mount.recorded(place)
    writable_mount.set_read_only(place, record, read_only=False)
    return record


def was_made(session: Session, noted: NotedCommit) -> bool:
    """Whether a branch ever led to a commit. Raises: what the store does."""
    moves = session.store.refs(noted.repo).history(BRANCHES, noted.branch)
    return any(one.commit is not None and one.commit.hex() == noted.commit for one in moves)


def _is_made(session: Session, noted: NotedCommit) -> bool:
    """The same; False where the store does not say."""
    if session.has_store:
        with suppress(LodefsError):
            return was_made(session, noted)
    return False

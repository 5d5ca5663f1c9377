"""Completes a commit of a writable mount, even one that was interrupted.

The record notes a commit just before the branch leads to it, and the mount refuses changes until
the record has moved to it. So a noted commit that is in the log of its branch contains all the
changes in the place.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import msgspec

from lodefs.api.writing import base_tags
from lodefs.chunkstore.errors import Denied, LodefsError
from lodefs.chunkstore.format.names import CommitId, Spec, parse_id
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.mount.process import mounter
from lodefs.mount.writable import writable_mount
from lodefs.mount.writable.lower_mount import Mounter
from lodefs.mount.writable.upper_place import NotedCommit, Record, UpperPlace
from lodefs.proxies.own_proxy import start_again
from lodefs.settings.session import Session


def mounter_of(session: Session) -> tuple[str | None, Mounter]:
    """Returns a token, and the function that mounts a snapshot."""
    token = session.environment.get("LODEFS_TOKEN") or None
    return token, partial(mounter.mount, fork=True)


def go_on(session: Session, place: UpperPlace, record: Record, commit: str, at: Spec) -> Record:
    """Moves the record and the mount, if it exists, to a commit in the store and to the branch
    ``at``. The tag goes first: without one a retention policy may delete the commit. The caller has
    locked the place. Raises what ``writable_mount.advance`` raises, and the store's errors."""
    try:
        with suppress(LodefsError):  # another mount may have been started
            start_again(session, record.options.proxy)
        record = _tagged(session, place, record, commit, at.repo)
        return writable_mount.advance(
            place, commit, *mounter_of(session), repo=at.repo, branch=at.rev
        )
    except (LodefsError, OSError) as error:
        error.add_note(
            f"{commit} is committed, but {record.mountpoint} is still at its base, and refuses "
            "changes: repeat the command to continue from the commit"
        )
        raise


def _tagged(session: Session, place: UpperPlace, record: Record, commit: str, repo: str) -> Record:
    """Returns the record of a place, whose tag now keeps a commit. Its name is recorded before
    there is one. A user who may make no tags has the grace time of gc, as after the mount."""
    tag = record.tag or base_tags.name_for(session, place, record)  # there may be a policy now
    if tag != record.tag:
        record = msgspec.structs.replace(record, tag=tag)
        place.write(record)
    options = msgspec.structs.replace(record.options, repo=repo)
    moved = msgspec.structs.replace(record, options=options, commit=commit)
    error = base_tags.put(session, moved)
    if error is not None and not isinstance(error, Denied):
        raise error
    return record


def settled(session: Session, place: UpperPlace, record: Record) -> Record:
    """Returns the record of a place without a commit under way: continues from an interrupted
    commit if it was made, and forgets it if not. The caller has locked the place. Raises the
    store's errors, and what ``go_on`` raises."""
    noted = record.noted
    if noted is None:
        return record
    if was_made(session, noted):
        return go_on(session, place, record, noted.commit, Spec(noted.repo, noted.branch))
    writable_mount.note_commit(place, None)
    return writable_mount.recorded(place)


def mended(session: Session, place: UpperPlace, record: Record) -> tuple[Record, bool]:
    """Like ``settled``, and makes a mount that an interrupted commit has left read-only accept
    changes again; returns whether there was one. If the store does not say whether the commit was
    made, the changes count as uncommitted. The caller has locked the place. Raises what ``go_on``
    raises; Denied, Unavailable."""
    was_read_only = writable_mount.is_read_only(record)
    if record.noted is not None and _is_made(session, record.noted):
        record = settled(session, place, record)
    elif was_read_only:
        record = take_changes(place, record)
    return record, was_read_only


def end(session: Session, place: UpperPlace, record: Record) -> None:
    """After a commit or an error: makes the mount of ``record`` accept changes again, unless the
    record has moved on, or the commit was made: then later writes would be in no commit."""
    now = place.read()
    if now is None or now.generation != record.generation:
        return
    if now.noted is None or not _is_made(session, now.noted):
        take_changes(place, now)
        place.reserve()


def take_changes(place: UpperPlace, record: Record) -> Record:
    """Makes the mount of a record, if there is one, accept changes: no noted commit has them all.
    Raises: Denied, NoSpace, Unavailable."""
    if record.noted is not None:
        writable_mount.note_commit(place, None)
        record = writable_mount.recorded(place)
    writable_mount.set_read_only(place, record, read_only=False)
    return record


def was_made(session: Session, noted: NotedCommit) -> bool:
    """Whether a branch ever led to a commit that is still there: if gc has deleted it, the place
    alone has the changes. Raises the store's errors."""
    moves = session.store.refs(noted.repo).history(BRANCHES, noted.branch)
    commit = CommitId(parse_id(noted.commit))
    return any(one.commit == commit for one in moves) and session.store.has_commit(
        noted.repo, commit
    )


def _is_made(session: Session, noted: NotedCommit) -> bool:
    """Like ``was_made``; False if the store does not answer."""
    if session.has_store:
        with suppress(LodefsError):
            return was_made(session, noted)
    return False

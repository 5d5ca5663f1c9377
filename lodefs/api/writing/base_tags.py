"""Tags that keep the bases of changes in the store if a retention policy would delete them.

See docs/decisions/0083.
"""

from __future__ import annotations

import platform
import re
from contextlib import suppress

from lodefs.api.refs import tag
from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.refs import TAGS
from lodefs.mount.writable import upper_place
from lodefs.mount.writable.upper_place import Record, UpperPlace
from lodefs.settings.session import Session

HOST_CHARS_MAX = 64
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")


def name_for(session: Session, place: UpperPlace, record: Record) -> str:
    """Returns the tag for the base of a place's changes; "" if the repository keeps its whole
    history, or the store cannot be asked. Changes keep their tag when the host gets another name,
    as each pod has one, and when the store is away."""
    if record.tag or not session.has_store:
        return record.tag
    with suppress(LodefsError):
        settings = session.store.settings_log(record.repo).newest()
        if settings.deletion is not None:  # perhaps it was renamed
            settings = session.store.settings_log(present_name(session, record)).newest()
        if settings.retention is not None:
            host = _UNFIT.sub("-", platform.node())[:HOST_CHARS_MAX]
            return f"mounted-{host}-{upper_place.id_of(str(place.directory))}"
    return ""


def present_name(session: Session, record: Record) -> str:
    """Returns the repository of a record, by its new name if it was renamed. Raises the store's
    errors."""
    return session.store.new_name(record.repo) or record.repo


def way_out(record: Record) -> str:
    """Returns advice on changes whose base is gone."""
    at = record.mountpoint
    return (
        f"the changes in {at} are to that commit: if another store has it, name that by --store; "
        f"if it is gone, `lodefs commit --base REV {at}` takes them as changes to another one, "
        "main, say, and a file that was changed replaces what that has"
    )


def put(session: Session, record: Record) -> LodefsError | None:
    """Makes the tag of a record, if it has one, keep its base, and no earlier commit. Returns None,
    or the error if that fails."""
    if not record.tag:
        return None
    try:
        base = Spec(present_name(session, record), record.commit)
        tag(base, record.tag, force=True, session=session)
    except LodefsError as error:
        return error
    return None


def remove(session: Session, record: Record) -> str:
    """Lets go of the base of a record, also if its repository was renamed, or is being renamed.
    Returns the tag if the store does not say that it is gone, else ""."""
    if not record.tag:
        return ""
    try:
        for repo in dict.fromkeys((record.repo, present_name(session, record))):
            refs = session.store.refs(repo)
            entry = refs.latest(TAGS, record.tag)
            if entry is not None and entry.commit is not None:
                refs.advance(TAGS, record.tag, None, expected_sequence=entry.sequence)
    except LodefsError:
        return record.tag
    return ""

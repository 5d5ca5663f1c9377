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
    """The tag for the base of a place's changes; "" if the repository keeps its whole history, or
    the store cannot be asked."""
    if not session.has_store:
        return ""
    with suppress(LodefsError):
        if session.store.settings_log(record.repo).newest().retention is not None:
            host = _UNFIT.sub("-", platform.node())[:HOST_CHARS_MAX]
            return f"mounted-{host}-{upper_place.id_of(str(place.directory))}"
    return ""


def way_out(record: Record) -> str:
    """Returns advice on changes whose base is gone."""
    at = record.mountpoint
    return (
        f"the changes in {at} are to that commit: `lodefs commit --base REV {at}` takes them as "
        "changes to another one, main, say; a file that was changed replaces what that has"
    )


def put(session: Session, record: Record) -> LodefsError | None:
    """Makes the tag of a record, if it has one, keep its base, and no earlier commit. Returns None,
    or the error if that fails."""
    if not record.tag:
        return None
    try:
        tag(Spec(record.repo, record.commit), record.tag, force=True, session=session)
    except LodefsError as error:
        return error
    return None


def remove(session: Session, record: Record) -> None:
    """Lets go of the base of a record. A tag that cannot be removed stays, for `lodefs rm
    REPO@TAG`."""
    if record.tag and session.has_store:
        with suppress(LodefsError):
            refs = session.store.refs(record.repo)
            entry = refs.read(TAGS, record.tag)
            refs.advance(TAGS, record.tag, None, expected_sequence=entry.sequence)

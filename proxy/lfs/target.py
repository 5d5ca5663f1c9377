"""The targets of requests below /lfs/, and the documents of the API. Pure; looks nothing up.

Source: https://github.com/git-lfs/git-lfs, docs/api.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.foreign.lfs import Action, Lock

OBJECTS_MAX = 1000  # in one batch; clients send 100
LOCKS_MAX = 1000  # in one answer
BASIC = "basic"
AGENT = "lodefs"  # the transfer of `lodefs lfs agent`
BATCH, FORM = "batch", "form"  # query parameters
PIECES = b"pieces"  # the FORM of a body that lfs_recipe describes
Operation = Literal["upload", "download"]


class ObjectRef(msgspec.Struct, frozen=True):
    """An object as a client names it."""

    oid: str
    size: int


class Batch(msgspec.Struct, frozen=True):
    """A question about objects. ``transfers`` are the ways that the client knows."""

    operation: Operation
    objects: list[ObjectRef]
    transfers: tuple[str, ...] = (BASIC,)
    hash_algo: str = "sha256"


class LockWanted(msgspec.Struct, frozen=True):
    """A request for a lock."""

    path: str


class Unlock(msgspec.Struct, frozen=True):
    """A request to remove a lock."""

    force: bool = False


class Page(msgspec.Struct, frozen=True):
    """The part of the locks that a client asks for."""

    cursor: str = ""
    limit: int = LOCKS_MAX


class ObjectError(msgspec.Struct, frozen=True):
    """Why an object cannot be transferred. ``code`` is an HTTP status."""

    code: int
    message: str


class ObjectAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer about one object. An upload without actions is in the store already."""

    oid: str
    size: int
    actions: dict[str, Action] = {}
    error: ObjectError | None = None


def checked(wanted: ObjectRef) -> ObjectRef:
    """Raises: InvalidInput for an id or a size that no object has."""
    lfs.check_oid(wanted.oid)
    if wanted.size < 0:
        raise InvalidInput(f"an object has 0 bytes or more, not {wanted.size}")
    return wanted


def answer_about(
    base: str,
    operation: Operation,
    key: str,
    header: dict[str, str],
    wanted: ObjectRef,
    stored: int | InvalidInput | None,
) -> ObjectAnswer:
    """Returns what a client must do with an object that has ``stored`` bytes in the store, or is
    not there, or cannot be. ``base`` is the URL of the server for its repository, ``key`` that of
    the batch, ``header`` what the client must send along. An upload needs no verification: its
    answer says what one would say."""
    url = f"{base}/objects/{wanted.oid}"
    if isinstance(stored, InvalidInput):
        return _failed(wanted, 422, str(stored))
    if stored is not None and stored != wanted.size:
        return _failed(wanted, 422, f"the object has {stored} bytes, not {wanted.size}")
    if operation == "upload":
        actions = {"upload": Action(f"{url}?{BATCH}={key}", header)}
        return ObjectAnswer(wanted.oid, wanted.size, actions if stored is None else {})
    if stored is None:
        return _failed(wanted, 404, "the object is not in the store: push it from where it is")
    return ObjectAnswer(wanted.oid, wanted.size, {"download": Action(url, header)})


def _failed(wanted: ObjectRef, code: int, message: str) -> ObjectAnswer:
    return ObjectAnswer(wanted.oid, wanted.size, error=ObjectError(code, message))


def page_of(locks: list[Lock], page: Page) -> tuple[list[Lock], str]:
    """Returns a page of locks that are in the order of their ids, and the cursor of the next one
    or ""."""
    limit = min(max(page.limit, 1), LOCKS_MAX)
    left = [lock for lock in locks if lock.id > page.cursor]
    return left[:limit], left[limit - 1].id if len(left) > limit else ""

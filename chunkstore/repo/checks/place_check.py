"""Checks that a place meets the requirements of a store, with small objects that are removed again.

Each requirement is tried as lodefs uses it, through the interface of object stores. Conditions that
a server ignores, and listings that lack what was just written, lose commits or data later, without
an error: so a new store is refused if one requirement does not hold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from lodefs.chunkstore.errors import AlreadyExists, Changed, LodefsError, Unsupported
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import ObjectStore, exists

WRITERS = 8  # at once
_DATA = bytes(range(256)) * 8


class Result(NamedTuple):
    """Whether one requirement holds; if not, ``problem`` says what the place does instead."""

    requirement: str
    holds: bool
    problem: str = ""


class Requirement(NamedTuple):
    """One requirement of a place. ``problem`` checks it below a prefix of keys, and returns what is
    wrong, or ""."""

    name: str
    problem: Callable[[ObjectStore, str], str]


def check_place(objects: ObjectStore) -> Iterator[Result]:
    """Yields the result of each requirement. Raises: Denied, Unavailable, NotFound for a missing
    bucket. Objects that may not be deleted stay, and do no harm."""
    for requirement in REQUIREMENTS:
        prefix = keys.probe(os.urandom(8).hex())
        try:
            problem = requirement.problem(objects, prefix)
        except Unsupported as error:
            problem = str(error)
        finally:
            _remove(objects, prefix)
        yield Result(requirement.name, not problem, problem)


def require_place(objects: ObjectStore) -> None:
    """Raises: Unsupported, which names the first requirement that does not hold; what check_place
    raises."""
    for result in check_place(objects):
        if not result.holds:
            raise Unsupported(
                f"{objects.url} cannot hold a store: {result.requirement}: {result.problem}"
            )


def _put_if_absent(objects: ObjectStore, prefix: str) -> str:
    objects.put(f"{prefix}-a", [b"first"], if_absent=True)
    try:
        objects.put(f"{prefix}-a", [b"second"], if_absent=True)
    except AlreadyExists:
        found = bytes(objects.get(f"{prefix}-a", size=99).data)
        return "" if found == b"first" else "the refused write changed the object"
    return "the condition is ignored, and the object overwritten: two pushes could lose commits"


def _one_writer_wins(objects: ObjectStore, prefix: str) -> str:
    def write(number: int) -> bool:
        try:
            objects.put(f"{prefix}-a", [b"writer %d" % number], if_absent=True)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(WRITERS, "probe") as pool:
        won = [number for number, wins in enumerate(pool.map(write, range(WRITERS))) if wins]
    if len(won) != 1:
        return f"of {WRITERS} writers at once {len(won)} were told that they wrote it"
    found = bytes(objects.get(f"{prefix}-a", size=99).data)
    return "" if found == b"writer %d" % won[0] else "the object is of a writer that was refused"


def _read_after_write(objects: ObjectStore, prefix: str) -> str:
    etags = set()
    for data in (b"old", b"newer"):
        etags.add(objects.put(f"{prefix}-a", [data]))
        part = objects.get(f"{prefix}-a", size=99)
        if bytes(part.data) != data or objects.head(f"{prefix}-a").etag != part.etag:
            return "a read does not show what was just written"
        if part.etag not in etags:
            return "a write and a read tell different ETags"
    objects.delete(f"{prefix}-a")
    if exists(objects, f"{prefix}-a"):
        return "a deleted object is still there"
    return "" if len(etags) == 2 else "an object keeps its ETag when it is overwritten"


def _ranges(objects: ObjectStore, prefix: str) -> str:
    objects.put(f"{prefix}-a", [_DATA])
    for offset, size in ((3, 100), (2000, 500), (-24, 24)):
        part = objects.get(f"{prefix}-a", offset=offset, size=size)
        end = offset + size or None
        if part.data != _DATA[offset:end] or part.object_size_bytes != len(_DATA):
            return f"{size} bytes from {offset} on are others than were written"
    return ""


def _if_match(objects: ObjectStore, prefix: str) -> str:
    etag = objects.put(f"{prefix}-a", [b"old"])
    if bytes(objects.get(f"{prefix}-a", size=3, if_match=etag).data) != b"old":
        return "a read with the ETag of the object shows other bytes"
    objects.put(f"{prefix}-a", [b"new"])
    with suppress(Changed):
        objects.get(f"{prefix}-a", size=3, if_match=etag)
        return "a read with the ETag of former bytes is answered"
    return ""


def _lists(objects: ObjectStore, prefix: str) -> str:
    written = [f"{prefix}{name}" for name in ("-a", "-b/c", ".d", "/a", "/b-c", "/b/c", "/b0", "0")]
    for key in reversed(written):
        objects.put(key, [b"x"])
    found = [one.key for one in objects.list(prefix)]
    if found != written:
        missing, more = set(written) - set(found), set(found) - set(written)
        what = "lacks" if missing else "has more than" if more else "is not in the order of"
        return f"a listing {what} the keys that were just written"
    for after in written[:-1]:
        rest = [one.key for one in objects.list(prefix, after=after, limit=2)]
        if rest != [key for key in written if key > after][:2]:
            return "a listing after a key does not begin there"
    objects.delete(written[0])
    listed = [one.key for one in objects.list(prefix)]
    return "" if listed == written[1:] else "a listing shows an object that was deleted"


REQUIREMENTS = (
    Requirement("put if absent", _put_if_absent),
    Requirement("one of many writers wins", _one_writer_wins),
    Requirement("read after write", _read_after_write),
    Requirement("ranges", _ranges),
    Requirement("read if unchanged", _if_match),
    Requirement("list after write, in order", _lists),
)


def _remove(objects: ObjectStore, prefix: str) -> None:
    """Removes the probes below a prefix, if these credentials may."""
    with suppress(LodefsError):
        for one in list(objects.list(prefix, limit=2 * WRITERS)):
            objects.delete(one.key)

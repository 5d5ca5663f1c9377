"""Branches and tags: each is a log of put-if-absent objects, and the newest sorts first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec

from lodefs.chunkstore.errors import AlreadyExists, Conflict, Corrupt, InvalidInput, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import CommitId, check_ref_name, check_repo, parse_id
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, exists, read_whole
from lodefs.chunkstore.repo.gallop import last_of_row

BRANCHES = "branches"
TAGS = "tags"
VERSION = 1
SIZE_BYTES_MAX = 64 * 1024  # limit for an entry, which has less than 1 KiB today
_KIND = "ref"
_NAMED_MAX = 8  # refs that an error lists


@dataclass(frozen=True, slots=True)
class RefEntry:
    """One move of a ref. ``commit`` is None if it deletes the ref. Sequences count from 0."""

    commit: CommitId | None
    sequence: int
    time_s: int  # Unix time


class _RefBody(msgspec.Struct, forbid_unknown_fields=True):
    repo: str
    kind: str
    name: str
    sequence: int
    commit: str | None
    time_s: int


class Refs:
    """The refs of one repository."""

    def __init__(
        self, objects: ObjectStore, repo: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._objects = objects
        self._repo = check_repo(repo)
        self._clock = clock

    def latest(self, kind: str, name: str) -> RefEntry | None:
        """Returns the newest entry, even if it is a deletion; None if there is no entry."""
        log = keys.ref(self._repo, _check_kind(kind), check_ref_name(name))
        newest = next(iter(self._objects.list(log, limit=1)), None)
        return None if newest is None else self._entry(kind, name, newest)

    def head(self, kind: str, name: str) -> CommitId | None:
        """Returns the commit of a branch or tag; None if there is no such ref."""
        found = self.latest(kind, name)
        return None if found is None else found.commit

    def surely_newest(self, kind: str, name: str, at_least: int = -1) -> RefEntry | None:
        """Does what ``latest`` does, but checks for entries one by one after the one that a list
        shows, or after ``at_least`` (such an entry must exist), since a list may lack some."""
        log = keys.ref(self._repo, _check_kind(kind), check_ref_name(name))
        listed = next(iter(self._objects.list(log, limit=1)), None)
        found = None if listed is None else keys.ref_of_entry(listed.key)
        known = max(at_least, -1 if found is None else found[3])
        sequence = last_of_row(lambda n: self.has(kind, name, n), known)
        return None if sequence < 0 else self.entry(kind, name, sequence)

    def entry(self, kind: str, name: str, sequence: int) -> RefEntry:
        """Returns one entry of a ref. Raises: NotFound; Corrupt, UnknownFormat."""
        return self._read(kind, name, keys.ref_entry(self._repo, kind, name, sequence))

    def read(self, kind: str, name: str) -> RefEntry:
        """Returns the current entry of a ref. Raises: NotFound; Corrupt, UnknownFormat."""
        entry = self.latest(kind, name)
        if entry is None or entry.commit is None:
            raise NotFound(f"{self._repo} has no {singular(kind)} {name}")
        return entry

    def list(self, kind: str) -> dict[str, RefEntry]:
        """Returns all refs of a kind that are not deleted, by name: one list, and one GET for
        each."""
        return dict(self.living(kind))

    def living(self, kind: str, *, beginning: str = "") -> Iterator[tuple[str, RefEntry]]:
        """Yields the same for the names with a beginning, and reads each on demand."""
        found = self.newest(kind, beginning=beginning)
        return ((name, entry) for name, entry in found if entry.commit is not None)

    def newest(
        self, kind: str, *, start: str = "", beginning: str = ""
    ) -> Iterator[tuple[str, RefEntry]]:
        """Yields the newest entries of all refs of a kind whose names have a beginning, even
        deletions, by the bytes of NAME/, from ``start`` on. It reads each on demand."""
        for name, info in self._newest(kind, start, beginning):
            yield name, self._entry(kind, name, info)

    def names(self, kind: str) -> Iterator[str]:
        """Yields the names of all refs of a kind, even deleted ones: one list for each, and no
        GET."""
        return (name for name, _ in self._newest(kind))

    def history(self, kind: str, name: str) -> Iterator[RefEntry]:
        """Yields all moves of a ref, newest first; none if it never existed."""
        log = keys.ref(self._repo, _check_kind(kind), check_ref_name(name))
        return (self._entry(kind, name, info) for info in self._objects.list(log))

    def before_deletion(self, kind: str, name: str) -> tuple[RefEntry, CommitId]:
        """Returns the newest entry of a deleted ref, and its commit before the deletion.

        Raises: AlreadyExists if it is not deleted; NotFound, which names deleted refs, if it never
        existed.
        """
        entries = self.history(kind, name)
        newest = next(entries, None)
        if newest is not None and newest.commit is not None:
            raise AlreadyExists(
                f"{singular(kind)} {name} of {self._repo} is not deleted: it is at "
                f"{newest.commit.hex()[:12]}"
            )
        for entry in entries:
            if newest is not None and entry.commit is not None:
                return newest, entry.commit
        deleted = islice((n for n in self.names(kind) if self._is_deleted(kind, n)), _NAMED_MAX)
        raise NotFound(
            f"{self._repo} never had a {singular(kind)} {name}; deleted ones: "
            f"{', '.join(deleted) or 'none'}"
        )

    def advance(
        self, kind: str, name: str, commit_id: CommitId | None, *, expected_sequence: int | None
    ) -> RefEntry:
        """Moves a ref whose newest entry is ``expected_sequence`` (None: it has no entry yet).

        ``commit_id`` None deletes the ref. When this returns, the entry counts, with all that it
        refers to. Raises: Conflict if another writer moved the ref first.
        """
        _check_kind(kind)
        check_ref_name(name)
        sequence = 0 if expected_sequence is None else expected_sequence + 1
        if not 0 <= sequence <= keys.SEQUENCE_MAX:
            raise InvalidInput(f"{sequence} is not a sequence number of a ref")
        if sequence:
            # Otherwise a wrong expectation could skip numbers, and an older entry could count later
            self._check_stands_at(kind, name, sequence - 1)
        return self._put(kind, name, commit_id, sequence)

    def delete_at(self, kind: str, name: str, sequence: int) -> RefEntry:
        """Puts a deletion at a number of a log that lacks the entries before it, since somebody has
        removed them in the bucket itself. Raises: Conflict if that number exists."""
        return self._put(_check_kind(kind), check_ref_name(name), None, sequence)

    def restore(self, kind: str, name: str, commit_id: CommitId | None, sequence: int) -> RefEntry:
        """Overwrites an entry that was lost or damaged. For repairs only."""
        return self._put(
            _check_kind(kind), check_ref_name(name), commit_id, sequence, if_absent=False
        )

    def _put(
        self,
        kind: str,
        name: str,
        commit_id: CommitId | None,
        sequence: int,
        *,
        if_absent: bool = True,
    ) -> RefEntry:
        entry = RefEntry(commit_id, sequence, int(self._clock()))
        body = _RefBody(
            repo=self._repo,
            kind=kind,
            name=name,
            sequence=sequence,
            commit=None if commit_id is None else commit_id.hex(),
            time_s=entry.time_s,
        )
        key = keys.ref_entry(self._repo, kind, name, sequence)
        try:
            self._objects.put(key, [seal(_KIND, VERSION, body)], if_absent=if_absent)
        except AlreadyExists:
            raise self._conflict(kind, name) from None
        return entry

    def _is_deleted(self, kind: str, name: str) -> bool:
        latest = self.latest(kind, name)
        return latest is not None and latest.commit is None

    def _check_stands_at(self, kind: str, name: str, sequence: int) -> None:
        # Ask for the entry itself: a list may lack it. The put finds out whether it is the newest
        if not self.has(kind, name, sequence):
            raise self._conflict(kind, name)

    def _conflict(self, kind: str, name: str) -> Conflict:
        latest = self.latest(kind, name)
        now = "it has no entries"
        if latest is not None:
            at = "deleted" if latest.commit is None else f"at {latest.commit.hex()[:12]}"
            now = f"it is {at} now"
        return Conflict(
            f"{singular(kind)} {name} of {self._repo} was moved by another writer: {now}. "
            "Nothing is lost: repeat the command to continue from there"
        )

    def _newest(
        self, kind: str, start: str = "", beginning: str = ""
    ) -> Iterator[tuple[str, ObjectInfo]]:
        prefix = keys.refs(self._repo, _check_kind(kind))
        after = start and prefix + start
        while (
            info := next(iter(self._objects.list(prefix + beginning, after=after, limit=1)), None)
        ) is not None:
            name = info.key[len(prefix) :].partition("/")[0]
            yield name, info
            after = f"{prefix}{name}0"  # '0' follows '/': past the whole log of this name

    def has(self, kind: str, name: str, sequence: int) -> bool:
        """Whether a ref has that entry."""
        return exists(self._objects, keys.ref_entry(self._repo, kind, name, sequence))

    def _entry(self, kind: str, name: str, info: ObjectInfo) -> RefEntry:
        return self._read(kind, name, info.key)

    def _read(self, kind: str, name: str, key: str) -> RefEntry:
        data = read_whole(self._objects, key, SIZE_BYTES_MAX).data
        body = unseal(_KIND, {VERSION: _RefBody}, data, key)
        found = (body.repo, body.kind, body.name)
        if (
            found != (self._repo, kind, name)
            or body.sequence < 0
            or key != keys.ref_entry(self._repo, kind, name, body.sequence)
        ):
            raise Corrupt(f"{key} is an entry of another ref: {found}, {body.sequence}")
        try:
            commit = None if body.commit is None else CommitId(parse_id(body.commit, "commit id"))
        except InvalidInput as error:
            raise Corrupt(f"{key}: {error}") from error
        return RefEntry(commit, body.sequence, body.time_s)


def _check_kind(kind: str) -> str:
    if kind not in (BRANCHES, TAGS):
        raise InvalidInput(f"{kind!r} is not a kind of ref")
    return kind


def singular(kind: str) -> str:
    """Returns the singular of a kind of ref."""
    return {BRANCHES: "branch", TAGS: "tag"}[kind]

"""The inventory of a store from lists alone: packs with their sizes, commits, refs."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryFile, gettempdir

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import (
    ID_BYTES,
    CommitId,
    PackId,
    check_ref_name,
    check_repo,
    parse_id,
)
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.chunkstore.system.task_share import TaskShare

_ROW = struct.Struct("<32sQ")
_ROWS_AT_ONCE = 8192


class PackList:
    """The packs of a store and their sizes, in a temporary file of 40 bytes for each. It is closed
    at the end of its block. Raises: NoSpace, Unavailable if no file can be made."""

    def __init__(self) -> None:
        try:
            self._file = TemporaryFile(prefix="lodefs-")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise self._error(error) from error
        self.count = 0
        self.size_bytes = 0

    def __enter__(self) -> PackList:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(self, objects: ObjectStore, share: TaskShare | None = None) -> None:
        """Lists the packs of a store, or those of a share. Skips objects with other names."""
        after = "" if share is None else keys.before_packs(share.first_prefix)
        try:
            for info in objects.list(keys.PACKS, after=after):
                if (pack_id := keys.pack_of(info.key)) is not None:
                    if share is not None and not share.has(pack_id):
                        break  # the list is sorted
                    self._file.write(_ROW.pack(pack_id, info.size_bytes))
                    self.count += 1
                    self.size_bytes += info.size_bytes
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def __iter__(self) -> Iterator[tuple[PackId, int]]:
        at, size = 0, _ROW.size * _ROWS_AT_ONCE
        while rows := os.pread(self._file.fileno(), size, at):
            at += len(rows)
            for pack_id, size_bytes in _ROW.iter_unpack(rows):
                yield PackId(pack_id), size_bytes

    @staticmethod
    def _error(error: OSError) -> Exception:
        return kind_of(error)(
            f"no temporary file can be written in {gettempdir()} ({error.strerror}): set TMPDIR to "
            "a directory with more room"
        )


@dataclass(slots=True)
class Repositories:
    """All commits (ids joined, by repository), and the refs, each with the newest sequence that a
    list shows."""

    commits: dict[str, bytearray] = field(default_factory=dict)
    refs: dict[RefName, int] = field(default_factory=dict)

    def fill(self, objects: ObjectStore) -> None:
        """Adds what lists show."""
        for info in objects.list(keys.REPOS):
            repo, found, name = info.key.removeprefix(keys.REPOS).partition("/commits/")
            if found and (commit_id := _commit_of(repo, name)) is not None:
                self.commits.setdefault(repo, bytearray()).extend(commit_id)
            elif (ref := keys.ref_of_entry(info.key)) is not None and _is_ref(*ref[:3]):
                name_of = RefName(*ref[:3])
                self.refs[name_of] = max(ref[3], self.refs.get(name_of, -1))

    def all_commits(self) -> Iterator[tuple[str, CommitId]]:
        """Yields the repository and id of each commit."""
        for repo, joined in self.commits.items():
            for at in range(0, len(joined), ID_BYTES):
                yield repo, CommitId(bytes(joined[at : at + ID_BYTES]))


def _commit_of(repo: str, name: str) -> CommitId | None:
    try:
        check_repo(repo)
        return CommitId(parse_id(name))
    except InvalidInput:
        return None


def _is_ref(repo: str, kind: str, name: str) -> bool:
    try:
        check_repo(repo)
        check_ref_name(name)
    except InvalidInput:
        return False
    return kind in (BRANCHES, TAGS)

"""The tombstones of gc runs, as a writer of a ref needs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from lodefs.chunkstore.format.journal import DeletionOutcome, Garbage, JournalEntry
from lodefs.chunkstore.format.names import CommitId, PackId, digest_of

NamedChunks = Mapping[PackId, int]  # chunks of packs: bits of their numbers


class CondemnedIds(Protocol):
    """Ids of packs, keys of commits (``commit_key``), and chunks of packs, by the entry that
    tombstones them.

    Implementations: MemoryCondemned; push/index/condemned_rows.py. They pass
    ``tests.support.chunkstore.tombstoned_suite``.
    """

    @property
    def newest(self) -> int | None:
        """The newest entry that was added; None without any."""

    @property
    def newest_token(self) -> str | None:
        """The token of that entry; None without any, or if it was added before tokens were kept."""

    def add(self, entries: Sequence[JournalEntry]) -> None:
        """Adds entries, in the order of their numbers: all of them or none."""

    def find(self, ids: Collection[bytes]) -> dict[int, set[bytes]]:
        """Returns those of ``ids`` that are tombstoned, by entry."""

    def find_chunks(self, named: NamedChunks) -> dict[int, dict[PackId, int]]:
        """Returns those of the chunks that are tombstoned, by entry."""

    def settle(self, outcome: DeletionOutcome) -> None:
        """Forgets the parts of an entry that were not deleted."""


class MemoryCondemned:
    """CondemnedIds in memory: for a few entries, or one command."""

    def __init__(self) -> None:
        self._ids: dict[int, set[bytes]] = {}
        self._chunks: dict[int, dict[PackId, int]] = {}
        self._token: str | None = None

    @property
    def newest(self) -> int | None:
        return max(self._ids, default=None)

    @property
    def newest_token(self) -> str | None:
        return self._token

    def add(self, entries: Sequence[JournalEntry]) -> None:
        self._ids |= {entry.number: set(ids_of(entry.tombstoned)) for entry in entries}
        self._chunks |= {entry.number: chunks_of(entry.tombstoned) for entry in entries}
        self._token = entries[-1].token if entries else self._token

    def find(self, ids: Collection[bytes]) -> dict[int, set[bytes]]:
        found = {number: tombstoned.intersection(ids) for number, tombstoned in self._ids.items()}
        return {number: some for number, some in found.items() if some}

    def find_chunks(self, named: NamedChunks) -> dict[int, dict[PackId, int]]:
        found: dict[int, dict[PackId, int]] = {}
        for number, tombstoned in self._chunks.items():
            for pack in tombstoned.keys() & named.keys():
                if both := tombstoned[pack] & named[pack]:
                    found.setdefault(number, {})[pack] = both
        return found

    def settle(self, outcome: DeletionOutcome) -> None:
        if outcome.number in self._ids:
            self._ids[outcome.number] = set(ids_of(outcome.deleted))
            self._chunks[outcome.number] = chunks_of(outcome.deleted)


def ids_of(garbage: Garbage | None) -> list[bytes]:
    """Returns ids of packs and keys of commits."""
    if garbage is None:
        return []
    return [*garbage.packs, *(commit_key(repo, commit) for repo, commit in garbage.commits)]


def chunks_of(garbage: Garbage | None) -> dict[PackId, int]:
    """Returns the chunks of packs in use."""
    return {} if garbage is None else {dead.pack: dead.chunks for dead in garbage.chunks}


def commit_key(repo: str, commit: CommitId) -> bytes:
    """Returns 32 bytes that stand for a commit of one repository; another may have the same
    commit."""
    return digest_of(repo.encode() + b"\0" + commit)

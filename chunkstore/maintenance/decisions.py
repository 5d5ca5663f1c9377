"""The decisions of a gc run: pure functions of what it has seen.

Clocks decide only when something is done. The order of the journal proves that it is safe.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lodefs.chunkstore.format.journal import (
    CHUNK_PACKS_MAX,
    IDS_MAX,
    DeadChunks,
    DeletionOutcome,
    Garbage,
    Intent,
    JournalEntry,
    LastHeartbeat,
    Ledger,
    RefName,
)
from lodefs.chunkstore.format.names import CommitId, PackId

SILENCE_S_MIN = 600  # before a writer counts as dead; it sends a heartbeat each minute
ENTRIES_MAX = 1024  # that one gc run puts into the journal, for a million packs
_ENTRIES_GOAL = 16  # a push that saves one pack saves all of its entry until the next run
_ENTRY_IDS_MIN = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer in the journal that may still write its ref."""

    number: int
    beats: int
    intent: Intent | None  # None: the writer has not ended


def last_heartbeats(
    writers: Iterable[Writer], before: Mapping[int, LastHeartbeat], now_s: int
) -> dict[int, LastHeartbeat]:
    """Returns the last heartbeat of each writer, as this and earlier gc runs have seen it. A time
    in the future counts as now, since some clock was wrong."""
    found: dict[int, LastHeartbeat] = {}
    for writer in writers:
        known = before.get(writer.number)
        is_silent = known is not None and known.beats == writer.beats
        since_s = min(known.since_s, now_s) if known is not None and is_silent else now_s
        found[writer.number] = LastHeartbeat(writer.beats, since_s)
    return found


def dead(
    silences_: Mapping[int, LastHeartbeat], before: Ledger, now_s: int, grace_s: int
) -> set[int]:
    """Returns the writers that an earlier gc run saw, and that were silent for the grace time."""
    silence_s = max(grace_s, SILENCE_S_MIN)
    return {
        number
        for number, last_heartbeat in silences_.items()
        if number in before.last_heartbeats and last_heartbeat.since_s + silence_s <= now_s
    }


def from_the_future(
    entries: Iterable[JournalEntry], before: Mapping[int, LastHeartbeat], now_s: int
) -> dict[int, LastHeartbeat]:
    """Returns when gc runs first saw each tombstoning entry with a time in the future. The clock of
    the gc run that put it was wrong, or that of a gc run that saw it is."""
    found: dict[int, LastHeartbeat] = {}
    for entry in entries:
        known = before.get(entry.number)
        since_s = now_s if known is None else min(known.since_s, now_s)
        if since_s < entry.time_s:
            found[entry.number] = LastHeartbeat(0, since_s)
    return found


def ripe_at_s(entry: JournalEntry, grace_s: int, seen: LastHeartbeat | None = None) -> int:
    """Returns when the garbage of an entry may be deleted at the earliest (Unix time): a grace time
    after it was tombstoned, or after ``seen`` if that was earlier."""
    tombstoned_s = entry.time_s if seen is None else min(entry.time_s, seen.since_s)
    return tombstoned_s + grace_s


def outcome_of(
    entry: JournalEntry,
    packs: Container[PackId],
    commits: Container[tuple[str, CommitId]],
    chunks: Mapping[PackId, int],
) -> DeletionOutcome:
    """Returns the outcome that deletes the garbage of an entry except the packs, commits and chunks
    (bits of their numbers) that are in use."""
    tombstoned = entry.tombstoned or Garbage()
    unused = [(pack, bits & ~chunks.get(pack, 0)) for pack, bits in tombstoned.chunks]
    deleted = Garbage(
        tuple(pack for pack in tombstoned.packs if pack not in packs),
        tuple(commit for commit in tombstoned.commits if commit not in commits),
        tuple(DeadChunks(pack, bits) for pack, bits in unused if bits),
    )
    return DeletionOutcome(entry.number, deleted or None)


def entries_of(garbage: Garbage) -> list[Garbage]:
    """Splits garbage into parts, each for one entry of the journal. If one gc run cannot take all
    of it, only the first parts are returned."""
    count = len(garbage.packs) + len(garbage.commits)
    size = min(IDS_MAX, max(_ENTRY_IDS_MIN, -(-count // _ENTRIES_GOAL)))
    found = [Garbage(commits=part) for part in _parts(garbage.commits, size)]
    found += [Garbage(packs=part) for part in _parts(garbage.packs, size)]
    found += [Garbage(chunks=part) for part in _parts(garbage.chunks, CHUNK_PACKS_MAX)]
    return found[:ENTRIES_MAX]


def _parts(items: Sequence[T], size: int) -> list[tuple[T, ...]]:
    return [tuple(items[at : at + size]) for at in range(0, len(items), size)]


def next_ledger(
    before: Ledger,
    refs: Mapping[RefName, int],
    waiting: Mapping[int, LastHeartbeat],
    newest: int,
    tombstoning: Mapping[int, LastHeartbeat],
) -> Ledger:
    """Returns the ledger from which the next gc run starts. ``waiting`` are writers that may still
    write. ``newest`` is the number of the journal's newest entry that was seen, or -1.
    ``tombstoning`` are the entries of ``from_the_future``; no writer has their numbers."""
    known = {**before.refs, **refs}
    first = min([*waiting, max(newest + 1, before.before)])
    return Ledger(first, known, {**tombstoning, **waiting})

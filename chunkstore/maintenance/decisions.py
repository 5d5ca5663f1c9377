"""What a gc run decides: pure functions of what it has seen.

Clocks decide only when something is done. That it is right to do it, the journal's order says.
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

SILENCE_S_MIN = 600  # of a writer that is taken for dead: it says each minute that it is alive
ENTRIES_MAX = 1024  # that one gc run puts into the journal: of a million packs
_ENTRIES_GOAL = 16  # a push that saves one pack saves all of its entry until the next time
_ENTRY_IDS_MIN = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer of the journal that may yet write its ref."""

    number: int
    beats: int
    intent: Intent | None  # None: it has not ended


def last_heartbeats(
    writers: Iterable[Writer], before: Mapping[int, LastHeartbeat], now_s: int
) -> dict[int, LastHeartbeat]:
    """Since when each writer is silent, as the looks of this and earlier gc runs tell. A time
    that is yet to come counts as now: a clock was wrong."""
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
    """Writers that an earlier gc run saw already, and that are silent for the grace time."""
    silence_s = max(grace_s, SILENCE_S_MIN)
    return {
        number
        for number, last_heartbeat in silences_.items()
        if number in before.last_heartbeats and last_heartbeat.since_s + silence_s <= now_s
    }


def from_the_future(
    entries: Iterable[JournalEntry], before: Mapping[int, LastHeartbeat], now_s: int
) -> dict[int, LastHeartbeat]:
    """When gc runs first saw each entry that tombstones and has a time that is yet to come: the
    clock of the gc run that put it was wrong, or is now, or one of those that saw it."""
    found: dict[int, LastHeartbeat] = {}
    for entry in entries:
        known = before.get(entry.number)
        since_s = now_s if known is None else min(known.since_s, now_s)
        if since_s < entry.time_s:
            found[entry.number] = LastHeartbeat(0, since_s)
    return found


def ripe_at_s(entry: JournalEntry, grace_s: int, seen: LastHeartbeat | None = None) -> int:
    """When the garbage of an entry may be deleted at the earliest (Unix): a grace time after it was
    tombstoned, or ``seen``, if that was before."""
    tombstoned_s = entry.time_s if seen is None else min(entry.time_s, seen.since_s)
    return tombstoned_s + grace_s


def outcome_of(
    entry: JournalEntry,
    packs: Container[PackId],
    commits: Container[tuple[str, CommitId]],
    chunks: Mapping[PackId, int],
) -> DeletionOutcome:
    """Deletes what of an entry's garbage is not among the packs, commits and chunks (bits of their
    numbers) that are in use."""
    tombstoned = entry.tombstoned or Garbage()
    unused = [(pack, bits & ~chunks.get(pack, 0)) for pack, bits in tombstoned.chunks]
    deleted = Garbage(
        tuple(pack for pack in tombstoned.packs if pack not in packs),
        tuple(commit for commit in tombstoned.commits if commit not in commits),
        tuple(DeadChunks(pack, bits) for pack, bits in unused if bits),
    )
    return DeletionOutcome(entry.number, deleted or None)


def entries_of(garbage: Garbage) -> list[Garbage]:
    """Garbage in parts, of which each gets an entry of the journal: the first of it, if there is
    more than one gc run takes."""
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
    """What the next gc run starts from. ``waiting``: writers that may yet write; ``newest``:
    the number of the journal's newest entry that was seen, -1 without any; ``tombstoning``: entries
    as of ``from_the_future``, which no writer has the number of."""
    known = {**before.refs, **refs}
    first = min([*waiting, max(newest + 1, before.before)])
    return Ledger(first, known, {**tombstoning, **waiting})

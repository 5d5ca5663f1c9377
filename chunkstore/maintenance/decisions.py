"""What a collection decides: pure functions of what it has seen.

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
    Fate,
    Garbage,
    Intent,
    JournalEntry,
    Ledger,
    RefName,
    Silence,
)
from lodefs.chunkstore.format.names import CommitId, PackId

SILENCE_S_MIN = 600  # of a writer that is taken for dead: it says each minute that it is alive
ENTRIES_MAX = 1024  # that one collection puts into the journal: of a million packs
_ENTRIES_GOAL = 16  # a push that saves one pack saves all of its entry until the next time
_ENTRY_IDS_MIN = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer of the journal that may yet write its ref."""

    number: int
    beats: int
    intent: Intent | None  # None: it has not ended


def silences(
    writers: Iterable[Writer], before: Mapping[int, Silence], now_s: int
) -> dict[int, Silence]:
    """Since when each writer is silent, as the looks of this and earlier collections tell. A time
    that is yet to come counts as now: a clock was wrong."""
    found: dict[int, Silence] = {}
    for writer in writers:
        known = before.get(writer.number)
        is_silent = known is not None and known.beats == writer.beats
        since_s = min(known.since_s, now_s) if known is not None and is_silent else now_s
        found[writer.number] = Silence(writer.beats, since_s)
    return found


def dead(silences_: Mapping[int, Silence], before: Ledger, now_s: int, grace_s: int) -> set[int]:
    """Writers that an earlier collection saw already, and that are silent for the grace time."""
    silence_s = max(grace_s, SILENCE_S_MIN)
    return {
        number
        for number, silence in silences_.items()
        if number in before.silences and silence.since_s + silence_s <= now_s
    }


def from_the_future(
    entries: Iterable[JournalEntry], before: Mapping[int, Silence], now_s: int
) -> dict[int, Silence]:
    """When collections first saw each entry that condemns and has a time that is yet to come: the
    clock of the collection that put it was wrong, or is now, or one of those that saw it."""
    found: dict[int, Silence] = {}
    for entry in entries:
        known = before.get(entry.number)
        since_s = now_s if known is None else min(known.since_s, now_s)
        if since_s < entry.time_s:
            found[entry.number] = Silence(0, since_s)
    return found


def ripe_at_s(entry: JournalEntry, grace_s: int, seen: Silence | None = None) -> int:
    """When the garbage of an entry may be deleted at the earliest (Unix): a grace time after it was
    condemned, or ``seen``, if that was before."""
    condemned_s = entry.time_s if seen is None else min(entry.time_s, seen.since_s)
    return condemned_s + grace_s


def fate_of(
    entry: JournalEntry,
    packs: Container[PackId],
    commits: Container[tuple[str, CommitId]],
    chunks: Mapping[PackId, int],
) -> Fate:
    """Deletes what of an entry's garbage is not among the packs, commits and chunks (bits of their
    numbers) that are in use."""
    condemned = entry.condemned or Garbage()
    unused = [(pack, bits & ~chunks.get(pack, 0)) for pack, bits in condemned.chunks]
    deleted = Garbage(
        tuple(pack for pack in condemned.packs if pack not in packs),
        tuple(commit for commit in condemned.commits if commit not in commits),
        tuple(DeadChunks(pack, bits) for pack, bits in unused if bits),
    )
    return Fate(entry.number, deleted or None)


def entries_of(garbage: Garbage) -> list[Garbage]:
    """Garbage in parts, of which each gets an entry of the journal: the first of it, if there is
    more than one collection takes."""
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
    waiting: Mapping[int, Silence],
    newest: int,
    condemning: Mapping[int, Silence],
) -> Ledger:
    """What the next collection starts from. ``waiting``: writers that may yet write; ``newest``:
    the number of the journal's newest entry that was seen, -1 without any; ``condemning``: entries
    as of ``from_the_future``, which no writer has the number of."""
    known = {**before.refs, **refs}
    first = min([*waiting, max(newest + 1, before.before)])
    return Ledger(first, known, {**condemning, **waiting})

"""What a gc run decides, from what it has seen."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.format.journal import (
    CHUNK_PACKS_MAX,
    IDS_MAX,
    DeadChunks,
    DeletionOutcome,
    Garbage,
    JournalEntry,
    LastHeartbeat,
    Ledger,
    RefName,
)
from lodefs.chunkstore.format.names import CommitId, PackId, digest_of
from lodefs.chunkstore.maintenance.decisions import (
    ENTRIES_MAX,
    SILENCE_S_MIN,
    Writer,
    dead,
    entries_of,
    from_the_future,
    last_heartbeats,
    next_ledger,
    outcome_of,
    ripe_at_s,
)

PACKS = tuple(PackId(digest_of(b"%d" % n)) for n in range(5000))
COMMIT = ("r", CommitId(digest_of(b"commit")))


def test_silence_is_since_the_first_look_that_saw_the_same() -> None:
    """A writer that has said something since is silent from now on; one that has not, since then; a
    time to come, of a wrong clock, counts as now."""
    before = {1: LastHeartbeat(4, 100), 2: LastHeartbeat(4, 100), 3: LastHeartbeat(0, 900)}
    writers = [Writer(n, beats, None) for n, beats in ((1, 4), (2, 5), (3, 0), (4, 0))]
    assert last_heartbeats(writers, before, 500) == {
        1: LastHeartbeat(4, 100),
        2: LastHeartbeat(5, 500),
        3: LastHeartbeat(0, 500),
        4: LastHeartbeat(0, 500),
    }


@pytest.mark.parametrize("grace_s", [0, 3600])
def test_the_dead_are_silent_for_long(grace_s: int) -> None:
    """From one look to a later one, for the grace time, and never for less than ten beats."""
    silent_s = max(grace_s, SILENCE_S_MIN)
    found = {1: LastHeartbeat(4, 1000), 2: LastHeartbeat(4, 1000)}
    before = Ledger(last_heartbeats={1: LastHeartbeat(4, 1000)})
    assert dead(found, before, 1000 + silent_s - 1, grace_s) == set()
    assert dead(found, before, 1000 + silent_s, grace_s) == {1}


def test_ripe() -> None:
    """After the grace time."""
    assert ripe_at_s(JournalEntry(3, None, 1000, ""), 50) == 1050


def test_a_time_that_is_yet_to_come() -> None:
    """The garbage of such an entry is ripe a grace time after gc runs first saw it, as the
    earliest of their clocks said; of other entries nothing is remembered."""
    entries = [JournalEntry(n, None, time_s, "") for n, time_s in ((3, 900), (5, 9000), (6, 8000))]
    seen = from_the_future(entries, {5: LastHeartbeat(0, 700), 6: LastHeartbeat(0, 5000)}, 1000)
    assert seen == {5: LastHeartbeat(0, 700), 6: LastHeartbeat(0, 1000)}
    assert [ripe_at_s(one, 50, seen.get(one.number)) for one in entries] == [950, 750, 1050]


def test_what_is_in_use_is_kept() -> None:
    """An outcome deletes what is not in use; with nothing to delete, all is kept."""
    entry = JournalEntry(3, None, 0, "", Garbage(PACKS[:3], (COMMIT,)))
    unused = Garbage((PACKS[0], PACKS[2]), (COMMIT,))
    assert outcome_of(entry, {PACKS[1]}, set(), {}) == DeletionOutcome(3, unused)
    assert outcome_of(entry, set(PACKS), {COMMIT}, {}) == DeletionOutcome(3, None)


def test_chunks_that_are_in_use_are_kept() -> None:
    """Of the chunks of a pack that an entry tombstones, those that are not in use are deleted."""
    chunks = DeadChunks(PACKS[0], 0b1011), DeadChunks(PACKS[1], 0b11)
    entry = JournalEntry(3, None, 0, "", Garbage(chunks=chunks))
    used = {PACKS[0]: 0b0110, PACKS[1]: 0b111}
    expected = Garbage(chunks=(DeadChunks(PACKS[0], 0b1001),))
    assert outcome_of(entry, set(PACKS), set(), used) == DeletionOutcome(3, expected)
    assert outcome_of(entry, set(), set(), {PACKS[0]: 0b1111, PACKS[1]: 0b11}) == DeletionOutcome(
        3, None
    )


def test_parts_of_chunks() -> None:
    """Chunks of many packs are tombstoned by entries of a few packs each."""
    chunks = tuple(DeadChunks(pack, 1) for pack in PACKS[:100])
    parts = entries_of(Garbage(chunks=chunks))
    assert tuple(one for part in parts for one in part.chunks) == chunks
    assert max(len(part.chunks) for part in parts) <= CHUNK_PACKS_MAX


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1025, 5000])
def test_parts_of_garbage(count: int) -> None:
    """All of it is in one part each, commits first; no part is larger than an entry may be, and
    little garbage is not in many parts."""
    parts = entries_of(Garbage(PACKS[:count], (COMMIT,)))
    assert parts[0].commits == (COMMIT,)
    assert tuple(pack for part in parts for pack in part.packs) == PACKS[:count]
    assert max(len(part.packs) for part in parts) <= IDS_MAX
    assert len(parts) <= 2 + 16


def test_too_much_garbage_waits() -> None:
    """What one gc run cannot tombstone is left for the next one."""
    packs = PACKS * (-(-ENTRIES_MAX * IDS_MAX // len(PACKS)) + 2)
    parts = entries_of(Garbage(packs))
    assert len(parts) == ENTRIES_MAX
    assert sum(len(part.packs) for part in parts) < len(packs)


def test_the_ledger_stands_before_whoever_may_yet_write() -> None:
    """The next gc run starts at the first writer that has not ended, knows all refs, and never
    starts earlier than before."""
    name, other = RefName("r", "tags", "v1"), RefName("r", "tags", "v2")
    before = Ledger(4, {name: 3}, {})
    assert next_ledger(
        before, {other: 0}, {7: LastHeartbeat(0, 1)}, 9, {5: LastHeartbeat(0, 2)}
    ) == Ledger(7, {name: 3, other: 0}, {5: LastHeartbeat(0, 2), 7: LastHeartbeat(0, 1)})
    assert next_ledger(before, {}, {}, 9, {5: LastHeartbeat(0, 2)}).before == 10
    assert next_ledger(before, {}, {}, 1, {}).before == 4

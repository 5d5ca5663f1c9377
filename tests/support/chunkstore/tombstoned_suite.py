"""What every CondemnedIds must do: a subclass gives ``tombstoned``."""

from __future__ import annotations

from lodefs.chunkstore.format.journal import DeadChunks, DeletionOutcome, Garbage, JournalEntry
from lodefs.chunkstore.format.names import CommitId, PackId, digest_of
from lodefs.chunkstore.journal.tombstoned import CondemnedIds, commit_key

PACKS = [PackId(digest_of(b"%d" % n)) for n in range(6)]
COMMIT = CommitId(digest_of(b"commit"))


def entry(
    number: int, *packs: PackId, commits: tuple[tuple[str, CommitId], ...] = ()
) -> JournalEntry:
    """One that tombstones."""
    return JournalEntry(number, None, 0, "", Garbage(packs, commits))


class CondemnedSuite:
    """The shared contract."""

    def test_nothing_is_known_at_first(self, tombstoned: CondemnedIds) -> None:
        """No entry, and nothing is tombstoned."""
        assert tombstoned.newest is None
        assert tombstoned.find(PACKS) == {}

    def test_what_is_tombstoned_is_found_by_its_entry(self, tombstoned: CondemnedIds) -> None:
        """Ids are found under each entry that tombstones them; others are not."""
        tombstoned.add([entry(3, *PACKS[:2]), entry(5, PACKS[1], PACKS[2])])
        assert tombstoned.newest == 5
        assert tombstoned.find(PACKS[1:]) == {3: {PACKS[1]}, 5: {PACKS[1], PACKS[2]}}
        assert tombstoned.find(PACKS[4:]) == {}

    def test_the_newest_entry_is_known_by_its_token(self, tombstoned: CondemnedIds) -> None:
        """The number alone could be that of another entry, in a store restored from a backup."""
        assert tombstoned.newest_token is None
        tombstoned.add([JournalEntry(n, None, 0, f"token {n}", Garbage()) for n in (2, 4)])
        tombstoned.add([JournalEntry(7, None, 0, "token 7", Garbage())])
        tombstoned.settle(DeletionOutcome(7, None))
        assert (tombstoned.newest, tombstoned.newest_token) == (7, "token 7")

    def test_a_commit_is_that_of_one_repository(self, tombstoned: CondemnedIds) -> None:
        """The same commit of another repository is not tombstoned."""
        tombstoned.add([entry(1, commits=(("a", COMMIT),))])
        assert tombstoned.find([commit_key("a", COMMIT)]) == {1: {commit_key("a", COMMIT)}}
        assert tombstoned.find([commit_key("b", COMMIT), COMMIT]) == {}

    def test_what_was_not_deleted_is_forgotten(self, tombstoned: CondemnedIds) -> None:
        """With its outcome only what is deleted of an entry stays; the entry is known as before."""
        tombstoned.add([entry(3, *PACKS[:3]), entry(4, *PACKS[:3])])
        tombstoned.settle(DeletionOutcome(3, Garbage((PACKS[0],))))
        tombstoned.settle(DeletionOutcome(4, None))
        assert tombstoned.find(PACKS) == {3: {PACKS[0]}}
        assert tombstoned.newest == 4

    def test_chunks_are_found_by_pack_and_number(self, tombstoned: CondemnedIds) -> None:
        """Of the chunks that are named, those that an entry tombstones are found; with its outcome,
        of these only the deleted ones. Their packs are not tombstoned."""
        dead = DeadChunks(PACKS[0], 0b0110), DeadChunks(PACKS[1], 0b1)
        tombstoned.add([JournalEntry(3, None, 0, "", Garbage(chunks=dead)), entry(4, PACKS[2])])
        tombstoned.add([JournalEntry(5, None, 0, "", Garbage(chunks=dead[:1]))])
        named = {PACKS[0]: 0b1100, PACKS[1]: 0b10, PACKS[2]: 0b1}
        assert tombstoned.find_chunks(named) == {3: {PACKS[0]: 0b0100}, 5: {PACKS[0]: 0b0100}}
        assert tombstoned.find(PACKS[:2]) == {}
        tombstoned.settle(DeletionOutcome(3, Garbage(chunks=(DeadChunks(PACKS[0], 0b0010),))))
        tombstoned.settle(DeletionOutcome(5, None))
        assert tombstoned.find_chunks(named) == {}
        assert tombstoned.find_chunks({PACKS[0]: 0b1111}) == {3: {PACKS[0]: 0b0010}}

"""What every CondemnedIds must do: a subclass gives ``condemned``."""

from __future__ import annotations

from lodefs.chunkstore.format.journal import DeadChunks, Fate, Garbage, JournalEntry
from lodefs.chunkstore.format.names import CommitId, PackId, digest_of
from lodefs.chunkstore.journal.condemned import CondemnedIds, commit_key

PACKS = [PackId(digest_of(b"%d" % n)) for n in range(6)]
COMMIT = CommitId(digest_of(b"commit"))


def entry(
    number: int, *packs: PackId, commits: tuple[tuple[str, CommitId], ...] = ()
) -> JournalEntry:
    """One that condemns."""
    return JournalEntry(number, None, 0, "", Garbage(packs, commits))


class CondemnedSuite:
    """The shared contract."""

    def test_nothing_is_known_at_first(self, condemned: CondemnedIds) -> None:
        """No entry, and nothing is condemned."""
        assert condemned.newest is None
        assert condemned.find(PACKS) == {}

    def test_what_is_condemned_is_found_by_its_entry(self, condemned: CondemnedIds) -> None:
        """Ids are found under each entry that condemns them; others are not."""
        condemned.add([entry(3, *PACKS[:2]), entry(5, PACKS[1], PACKS[2])])
        assert condemned.newest == 5
        assert condemned.find(PACKS[1:]) == {3: {PACKS[1]}, 5: {PACKS[1], PACKS[2]}}
        assert condemned.find(PACKS[4:]) == {}

    def test_the_newest_entry_is_known_by_its_token(self, condemned: CondemnedIds) -> None:
        """The number alone could be that of another entry, in a store restored from a backup."""
        assert condemned.newest_token is None
        condemned.add([JournalEntry(n, None, 0, f"token {n}", Garbage()) for n in (2, 4)])
        condemned.add([JournalEntry(7, None, 0, "token 7", Garbage())])
        condemned.settle(Fate(7, None))
        assert (condemned.newest, condemned.newest_token) == (7, "token 7")

    def test_a_commit_is_that_of_one_repository(self, condemned: CondemnedIds) -> None:
        """The same commit of another repository is not condemned."""
        condemned.add([entry(1, commits=(("a", COMMIT),))])
        assert condemned.find([commit_key("a", COMMIT)]) == {1: {commit_key("a", COMMIT)}}
        assert condemned.find([commit_key("b", COMMIT), COMMIT]) == {}

    def test_what_was_not_deleted_is_forgotten(self, condemned: CondemnedIds) -> None:
        """With its fate only what is deleted of an entry stays; the entry is known as before."""
        condemned.add([entry(3, *PACKS[:3]), entry(4, *PACKS[:3])])
        condemned.settle(Fate(3, Garbage((PACKS[0],))))
        condemned.settle(Fate(4, None))
        assert condemned.find(PACKS) == {3: {PACKS[0]}}
        assert condemned.newest == 4

    def test_chunks_are_found_by_pack_and_number(self, condemned: CondemnedIds) -> None:
        """Of the chunks that are named, those that an entry condemns are found; with its fate, of
        these only the deleted ones. Their packs are not condemned."""
        dead = DeadChunks(PACKS[0], 0b0110), DeadChunks(PACKS[1], 0b1)
        condemned.add([JournalEntry(3, None, 0, "", Garbage(chunks=dead)), entry(4, PACKS[2])])
        condemned.add([JournalEntry(5, None, 0, "", Garbage(chunks=dead[:1]))])
        named = {PACKS[0]: 0b1100, PACKS[1]: 0b10, PACKS[2]: 0b1}
        assert condemned.find_chunks(named) == {3: {PACKS[0]: 0b0100}, 5: {PACKS[0]: 0b0100}}
        assert condemned.find(PACKS[:2]) == {}
        condemned.settle(Fate(3, Garbage(chunks=(DeadChunks(PACKS[0], 0b0010),))))
        condemned.settle(Fate(5, None))
        assert condemned.find_chunks(named) == {}
        assert condemned.find_chunks({PACKS[0]: 0b1111}) == {3: {PACKS[0]: 0b0010}}

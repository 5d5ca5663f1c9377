"""Entries of branches and tags, as a check reads them."""

from __future__ import annotations

from threading import Barrier

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import Intent, RefName
from lodefs.chunkstore.format.names import CommitId, digest_of
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repair.ref_repair import ANNOUNCED, ref_damages
from lodefs.chunkstore.repo.refs import BRANCHES, Refs
from tests.support.chunkstore.memory_objects import MemoryObjects

LONG_S = 30.0
COMMIT = CommitId(digest_of(b"commit"))


class _Slow(MemoryObjects):
    """Gives no entry before two are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.both = Barrier(1)

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.both.wait(LONG_S)
        return super().get(key, offset=offset, size=size, if_match=if_match)


def test_entries_are_read_side_by_side() -> None:
    """Entries of several logs are asked for at once, and each is told in its own log's place."""
    objects = _Slow()
    for name in ("one", "two"):
        Refs(objects, "r").restore(BRANCHES, name, COMMIT, 1)
    damaged = keys.ref_entry("r", BRANCHES, "two", 1)
    objects.objects[damaged] = b"rubbish"
    objects.both = Barrier(2)
    one, two = (RefName("r", BRANCHES, name) for name in ("one", "two"))
    refs, damages = ref_damages(objects, [], {}, [])
    assert refs == {one: 1, two: 1}
    told = [(damage.ref, damage.sequence, damage.what[:7]) for damage in damages]
    assert told == [(one, 0, "lost"), (two, 0, "lost"), (two, 1, "damaged")]


def test_an_entry_that_may_never_have_been_written() -> None:
    """A writer that is killed between its intent and the entry leaves what a loss leaves, which is
    said; an entry with a later one after it was there."""
    objects = MemoryObjects()
    Refs(objects, "r").restore(BRANCHES, "one", COMMIT, 1)
    one = RefName("r", BRANCHES, "one")
    intents = [Intent(one, sequence, COMMIT) for sequence in range(3)]
    _, damages = ref_damages(objects, intents, {}, [])
    told = [(damage.sequence, damage.what, damage.source) for damage in damages]
    assert told == [(0, "lost", "the journal"), (2, ANNOUNCED, "the journal")]

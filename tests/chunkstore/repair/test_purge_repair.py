"""A repair of purges writes over none that anybody can read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId, digest_of
from lodefs.chunkstore.journal.purges import Purge, Purges, encode_purge
from lodefs.chunkstore.repair.purge_repair import LOST, WHAT, repair_purges
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects

CHUNKS = tuple(ChunkId(digest_of(bytes([n]))) for n in range(3))
THEIRS = Purge(0, 7, "r:secret", CHUNKS)


@pytest.mark.parametrize("what", [LOST, "damaged: on the way"])
def test_a_purge_that_was_hidden_once_stays(what: str) -> None:
    """One that could not be read at first, and is there, keeps what it says: the packs that said
    it too may be collected."""
    objects = MemoryObjects()
    objects.put(keys.purge(0), [encode_purge(THEIRS)])
    assert repair_purges(objects, {0: what}) == {0}
    assert list(Purges(objects).after(-1)) == [THEIRS]


class _Meanwhile(MemoryObjects):
    """Somebody purges in the moment before something is put."""

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        self.objects.setdefault(keys.purge(0), encode_purge(THEIRS))
        return super().put(key, data, if_absent=if_absent)


def test_a_purge_that_takes_the_gap_meanwhile_stays() -> None:
    """A repair that finds a gap, and stands still, does not write over who takes it."""
    objects = _Meanwhile()
    assert repair_purges(objects, {0: LOST}) == {0}
    assert list(Purges(objects).after(-1)) == [THEIRS]


@pytest.mark.parametrize("damaged", [None, b"rubbish"])
def test_a_purge_that_is_wrong_is_put_again(damaged: bytes | None) -> None:
    """One that is not there, or cannot be read by anybody, ends no row of purges any more."""
    objects = MemoryObjects()
    if damaged is not None:
        objects.put(keys.purge(0), [damaged])
    objects.put(keys.purge(1), [encode_purge(Purge(1, 7, "r:secret", CHUNKS))])
    assert repair_purges(objects, {0: LOST if damaged is None else "spoilt"}) == set()
    assert [one.what for one in Purges(objects).after(-1)] == [WHAT, "r:secret"]

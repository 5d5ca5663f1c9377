"""Virtual packs through the store: they read as ordinary ones, and never give wrong bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lodefs.chunkstore.errors import Changed, Corrupt, SourceLost, SourceUnknown
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.pack import PackIndex, unpack_chunks
from lodefs.chunkstore.format.virtual_pack import SourceObject, VirtualPack
from lodefs.chunkstore.maintenance.adopt import Written, adopt_pack
from lodefs.chunkstore.objects.in_place.virtual_packs import VirtualPacks, is_virtual_etag
from lodefs.chunkstore.repo.pack_reader import PackReader, read_index, read_pack, read_stored
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.memory_source import MemorySource, sources_of
from tests.support.chunkstore.virtual_packs import (
    SOURCE,
    MadePack,
    PlacedChunk,
    virtual_pack_of,
    virtual_packs,
)


def store_of(made: MadePack) -> tuple[VirtualPacks, MemoryObjects, MemorySource]:
    """A store with the pack, and the source with its objects."""
    inner, source = MemoryObjects(), MemorySource(SOURCE)
    inner.put(keys.pack(made.pack_id), [made.stored])
    for key, data in made.objects.items():
        source.put(key, data)
    return VirtualPacks(inner, sources_of(source)), inner, source


@given(virtual_packs, st.data())
def test_it_reads_as_an_ordinary_pack(made: MadePack, data: st.DataObject) -> None:
    """Each range, with the ETag or without, is that of the ordinary pack with all bytes; one from
    the end begins at the index at the earliest."""
    objects, _, _ = store_of(made)
    key = keys.pack(made.pack_id)
    version, payload = read_pack(objects, made.pack_id)
    whole = bytes(payload) + made.pack.index.encode()
    unpack_chunks(version.index, 0, len(version.index), payload)
    assert PackIndex.decode(made.pack_id, whole).encode() == version.index.encode()
    offset = data.draw(st.integers(-len(whole) - 2, len(whole) + 2))
    size = data.draw(st.integers(0, len(whole) + 2))
    etag = data.draw(st.sampled_from([None, version.etag]))
    part = objects.get(key, offset=offset, size=size, if_match=etag)
    first = max(len(payload), len(whole) + offset) if offset < 0 else offset
    assert bytes(part.data) == whole[first : first + size]
    assert (part.object_size_bytes, part.etag) == (len(whole), version.etag)


def test_a_range_asks_for_nothing_more() -> None:
    """A range in one object is one request for just these bytes, and none of the store."""
    made = virtual_pack_of([PlacedChunk(bytes([n]) * 100, "a") for n in range(9)])
    objects, inner, source = store_of(made)
    version = read_index(objects, made.pack_id)
    objects.at(made.pack_id, version.etag)
    inner.objects.clear()
    assert read_stored(objects, version, 2, 3) == b"".join(bytes([n]) * 100 for n in (2, 3, 4))
    assert source.reads == [("a", 200, 300)]


def test_a_pack_that_is_adopted_meanwhile() -> None:
    """Once an ordinary pack is written under the id, a reader of the virtual one reads the index
    again, and needs the source no more."""
    made = virtual_pack_of([PlacedChunk(b"own"), PlacedChunk(b"abc" * 9, "a")])
    objects, inner, source = store_of(made)
    packs, stranger = PackReader(objects), PackReader(VirtualPacks(inner, sources_of()))
    assert packs.read(made.pack_id, 0, 2) == [b"own", b"abc" * 9]
    assert stranger.read(made.pack_id, 0, 1) == [b"own"]
    version = read_index(objects, made.pack_id)
    _, payload = read_pack(objects, made.pack_id)
    inner.put(keys.pack(made.pack_id), [payload, made.pack.index.encode()])
    source.delete("a")
    with pytest.raises(Changed):
        VirtualPacks(inner, sources_of()).get(
            keys.pack(made.pack_id), size=1, if_match=version.etag
        )
    for reader in (packs, stranger):  # of the index from before
        assert reader.read(made.pack_id, 1, 1) == [b"abc" * 9]
    assert PackReader(VirtualPacks(inner, sources_of())).read(made.pack_id, 1, 1) == [b"abc" * 9]


def test_a_source_that_the_reader_does_not_know() -> None:
    """The error names the source and the lines to add; the index, and other chunks, can be read."""
    made = virtual_pack_of([PlacedChunk(b"own"), PlacedChunk(b"abc", "a")])
    _, inner, _ = store_of(made)
    packs = PackReader(VirtualPacks(inner, sources_of()))
    assert packs.read(made.pack_id, 0, 1) == [b"own"]
    with pytest.raises(SourceUnknown, match=r"\[sources.field-7\]"):
        packs.read(made.pack_id, 1, 1)


def test_an_ordinary_pack_costs_nothing_more() -> None:
    """The end of an ordinary pack, and its ranges, take one request each."""
    made = virtual_pack_of([PlacedChunk(b"abc" * 9, "a")])
    inner = MemoryObjects()
    etag = inner.put(keys.pack(made.pack_id), [b"abc" * 9, made.pack.index.encode()])
    objects = VirtualPacks(inner, sources_of())
    version = read_index(objects, made.pack_id)
    assert version.etag == etag
    assert not is_virtual_etag(etag)
    assert read_stored(objects, version, 0, 1) == b"abc" * 9


KEYS = ("a", "b", "c")
CONTENTS = st.binary(min_size=1, max_size=60)


class Bucket(RuleBasedStateMachine):
    """The owner of a bucket does anything to its objects while they are read and adopted."""

    @initialize(has_versions=st.booleans(), contents=st.lists(CONTENTS, min_size=3, max_size=3))
    def imported(self, *, has_versions: bool, contents: list[bytes]) -> None:
        """Three objects are imported, each as two chunks, with an own chunk between them."""
        self.source = MemorySource(SOURCE, has_versions=has_versions)
        raws = [PlacedChunk(b"own" + bytes([n])) for n in range(len(KEYS))]
        for n, (key, data) in enumerate(zip(KEYS, contents, strict=True)):
            raws[2 * n : 2 * n] = [PlacedChunk(data[:9], key)]
            if data[9:]:
                raws.append(PlacedChunk(data[9:], key))
        made = virtual_pack_of(raws)
        self.raws = [chunk.raw for chunk in raws]
        self.first = {key: self.source.put(key, data) for key, data in made.objects.items()}
        described = [self.first[one.key] for one in made.pack.objects]
        self.pack = VirtualPack(made.pack.index, described, made.pack.runs)
        own = made.stored[: made.pack.own_size_bytes]
        inner = MemoryObjects()
        inner.put(keys.pack(made.pack_id), [own, self.pack.encode_tail()])
        self.objects = VirtualPacks(inner, sources_of(self.source))
        self.packs = PackReader(self.objects)
        self.pack_id = made.pack_id
        self.contents = made.objects

    @rule(key=st.sampled_from(KEYS), data=CONTENTS)
    def overwritten(self, key: str, data: bytes) -> None:
        self.source.put(key, data)

    @rule(key=st.sampled_from(KEYS))
    def deleted(self, key: str) -> None:
        self.source.delete(key)

    @rule(key=st.sampled_from(KEYS))
    def archived(self, key: str) -> None:
        if key in self.source.current:
            self.source.archived.add(key)

    @rule(key=st.sampled_from(KEYS))
    def restored(self, key: str) -> None:
        self.source.put(key, self.contents[key])

    @rule()
    def adopted(self) -> None:
        """What can be read is in the store from then on; the reader has the old index."""
        adopt_pack(self.objects, Written(), self.pack_id, dry_run=False, may_go=False)
        left = PackReader(self.objects).virtual(self.pack_id)
        self.pack = left or replace(self.pack, runs=[])

    @rule(key=st.sampled_from(KEYS), data=CONTENTS, first=st.integers(0, 8))
    def overwritten_during_a_read(self, key: str, data: bytes, first: int) -> None:
        """One more write comes between two requests of one read."""
        self.source.before_read = lambda: self.source.put(key, data)
        self._read(first % len(self.raws), len(self.raws) - first % len(self.raws))
        self.source.before_read = lambda: None

    @invariant()
    def each_chunk_is_right_or_lost(self) -> None:
        """Each chunk has its bytes exactly as long as its object's state can be read; else the
        error names the object."""
        for n in range(len(self.raws)):
            self._read(n, 1)

    def _read(self, first: int, count: int) -> None:
        placed = {
            run.first: self.pack.objects[run.object]
            for run in self.pack.runs
            if first <= run.first < first + count
        }
        try:
            found, error = self.packs.read(self.pack_id, first, count), ""
        except SourceLost as lost:
            found, error = [], str(lost)
        gone = [one for one in placed.values() if self._is_lost(one)]
        if error:
            assert any(f"/{one.key} " in error for one in gone)
        else:
            assert found == self.raws[first : first + count]
            assert count > 1 or not gone

    def _is_lost(self, found: SourceObject) -> bool:
        """Whether the bucket lacks what was imported; archived objects may come back."""
        if found.key in self.source.archived:
            return True
        try:
            self.source.check(found)
        except SourceLost:
            return True
        return False


Bucket.TestCase.settings = settings(max_examples=60, stateful_step_count=12)
TestBucket = Bucket.TestCase


def test_a_damaged_place_field_is_corrupt() -> None:
    """Damage in the pack's own object is found before anything is asked of a source."""
    made = virtual_pack_of([PlacedChunk(b"abc", "a")])
    objects, inner, source = store_of(made)
    key = keys.pack(made.pack_id)
    inner.put(key, [b"more", made.stored])
    with pytest.raises(Corrupt):
        read_index(objects, made.pack_id)
    assert not source.reads

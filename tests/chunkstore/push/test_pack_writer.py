"""Chunks become packs, and packs go to the store."""

from __future__ import annotations

import threading

import pytest

from lodefs.chunkstore.errors import NoSpace, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.compression import RAW
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex, unpack
from lodefs.chunkstore.format.tree import SAME_PACK, Segment
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.push import pack_writer
from lodefs.chunkstore.push.pack_writer import PackWriter, Uploader
from lodefs.chunkstore.repo.pack_reader import read_index
from lodefs.chunkstore.system.progress import Progress
from tests.support.chunkstore.faulty_store import FaultyObjects, block_until, fail
from tests.support.chunkstore.memory_objects import MemoryObjects

SIZES = (3000, 6000)


class Packing:
    """A packer over a store, and what it confirmed."""

    def __init__(self, objects: ObjectStore, uploads_max: int = 2) -> None:
        self.objects = objects
        self.prepared = 0
        self.confirmed: list[PackIndex] = []
        self.progress = Progress()
        self.uploader = Uploader(objects, self.progress, self.prepare, uploads_max)
        self.packer = PackWriter(self.uploader, self.confirmed.append, SIZES)

    def prepare(self) -> None:
        self.prepared += 1

    def add(self, raw: bytes) -> int:
        return self.packer.add(digest_of(raw), RAW, raw, len(raw))

    def add_all(self, raws: list[bytes]) -> None:
        for raw in raws:
            self.add(raw)

    def finish(self) -> None:
        self.packer.seal()
        self.uploader.finish()


def raws(count: int, size_bytes: int = 1000) -> list[bytes]:
    return [n.to_bytes(4, "big") * (size_bytes // 4) for n in range(count)]


def test_every_chunk_is_in_a_pack_where_segments_say() -> None:
    """All chunks can be read back from the segments of their serials."""
    packing_ = Packing(MemoryObjects())
    chunks = raws(50)
    assert [packing_.add(raw) for raw in chunks] == list(range(50))
    packing_.finish()
    found = []
    for segment in packing_.packer.segments(0, 50):
        index = read_index(packing_.objects, segment.pack).index
        for place in index.places(segment.first, segment.count):
            part = packing_.objects.get(
                keys.pack(segment.pack), offset=place.offset, size=place.stored_size_bytes
            )
            found.append(bytes(unpack(place, part.data)))
    assert found == chunks
    packing_.uploader.close()


def test_packs_grow() -> None:
    """The first pack is small, so that it travels soon; the later ones are larger."""
    packing_ = Packing(MemoryObjects())
    for raw in raws(20):
        packing_.add(raw)
    packing_.finish()
    assert [len(index) for index in packing_.confirmed] == [3, 6, 6, 5]
    assert packing_.packer.uploaded == packing_.packer.sealed == 20
    packing_.uploader.close()


def test_chunks_of_the_open_pack_are_in_the_same_pack() -> None:
    """Before a pack has its id, its segments say SAME_PACK; afterwards they name it."""
    packing_ = Packing(MemoryObjects())
    added = raws(5)
    for raw in added:
        packing_.add(raw)
    sizes = [sum(map(len, added[1:3])), sum(map(len, added[3:]))]
    packer = packing_.packer
    assert packer.sealed == 3
    segments = packer.segments(1, 4)
    assert segments[0][1:] == (1, 2, sizes[0])
    assert segments[1] == Segment(SAME_PACK, 0, 2, sizes[1])
    packing_.finish()
    ids = [index.pack_id for index in packing_.confirmed]
    assert packer.segments(1, 4) == [
        Segment(ids[0], 1, 2, sizes[0]),
        Segment(ids[1], 0, 2, sizes[1]),
    ]
    packing_.uploader.close()


def test_room_in_the_open_pack() -> None:
    """has_room says whether the next chunks go into the pack that is open."""
    packer = Packing(MemoryObjects()).packer
    assert packer.has_room(3000, 1)
    assert not packer.has_room(3001, 1)
    assert not packer.has_room(1, 1_000_000)


def test_many_tiny_chunks_start_a_new_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack is full at its limit of chunks too."""
    monkeypatch.setattr(pack_writer, "PACK_CHUNKS_MAX", 10)
    packing_ = Packing(MemoryObjects())
    for raw in raws(25, size_bytes=4):
        packing_.add(raw)
    packing_.finish()
    assert [len(index) for index in packing_.confirmed] == [10, 10, 5]
    packing_.uploader.close()


def test_nothing_is_written_for_nothing() -> None:
    """Without a chunk there is no pack, and the store is not even probed."""
    objects = MemoryObjects()
    packing_ = Packing(objects)
    packing_.finish()
    packing_.uploader.close()
    assert (objects.objects, packing_.prepared) == ({}, 0)


def test_a_pack_that_is_there_already_is_fine() -> None:
    """Its name says all about its chunks, so it is neither written again nor counted."""
    objects = MemoryObjects()
    for _ in range(2):
        packing_ = Packing(objects)
        packing_.add(b"x" * 100)
        packing_.finish()
        packing_.uploader.close()
        assert len(packing_.confirmed) == 1
        assert packing_.prepared == 1
    assert len(objects.objects) == 1
    assert packing_.uploader.stored_bytes == 0


def test_bytes_are_counted() -> None:
    """Whole objects count as stored and as sent."""
    objects = MemoryObjects()
    packing_ = Packing(objects)
    for raw in raws(20):
        packing_.add(raw)
    packing_.finish()
    packing_.uploader.close()
    stored_bytes = sum(map(len, objects.objects.values()))
    assert packing_.uploader.stored_bytes == packing_.progress.bytes_sent == stored_bytes


def test_a_failed_upload_surfaces_and_ends_all_uploads() -> None:
    """The error comes out of a later call, and no further pack is put."""
    objects = FaultyObjects(MemoryObjects())
    objects.add(fail(NoSpace("the disk is full")), "put", first=2)
    packing_ = Packing(objects)
    with pytest.raises(NoSpace, match="the disk is full"):
        packing_.add_all(raws(1000))
    with pytest.raises(NoSpace):
        packing_.uploader.finish()
    packing_.uploader.close()
    assert objects.count("put") <= 1 + 2 * 2  # at most what was under way
    assert len(packing_.confirmed) <= 1


def test_uploads_are_bounded() -> None:
    """The packer waits for the store: memory for packs does not grow with a slow one."""
    objects = FaultyObjects(MemoryObjects())
    gate, entered = threading.Event(), threading.Event()
    objects.add(block_until(gate, entered=entered), "put")
    packing_ = Packing(objects, uploads_max=2)
    adding = threading.Thread(target=lambda: [packing_.add(raw) for raw in raws(60)])
    adding.start()
    assert entered.wait(60)
    assert objects.count("put") <= 2
    gate.set()
    adding.join(60)
    packing_.finish()
    packing_.uploader.close()
    assert sum(map(len, packing_.confirmed)) == 60
    assert len(packing_.uploader._bodies) <= 3


def test_confirmations_come_in_order() -> None:
    """A pack counts as stored only when those before it are, however the puts finish."""
    objects = FaultyObjects(MemoryObjects())
    gate = threading.Event()
    objects.add(block_until(gate), "put", times=1)
    packing_ = Packing(objects, uploads_max=2)
    for raw in raws(10):
        packing_.add(raw)
    assert packing_.packer.uploaded == 0
    gate.set()
    packing_.finish()
    serials = [packing_.packer.segments(n, 1)[0].pack for n in (0, 3, 9)]
    assert [index.pack_id for index in packing_.confirmed] == serials
    assert all(isinstance(pack, bytes) and pack != PackId(bytes(32)) for pack in serials)
    packing_.uploader.close()


def test_a_store_that_cannot_be_written_is_told_before_any_pack() -> None:
    """What the preparation raises comes out, and nothing is put."""
    objects = FaultyObjects(MemoryObjects())

    def refuse() -> None:
        raise Unavailable("no probe")

    uploader = Uploader(objects, Progress(), refuse)
    packer = PackWriter(uploader, lambda _: None, SIZES)
    packer.add(digest_of(b"x"), RAW, b"x", 1)
    with pytest.raises(Unavailable, match="no probe"):
        packer.seal()
    uploader.close()
    assert objects.count("put") == 0

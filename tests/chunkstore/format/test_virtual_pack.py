"""Virtual packs: their pieces are the bytes of an ordinary pack, and a damaged place field is
refused."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt, TooLarge, UnknownFormat
from lodefs.chunkstore.format.pack import (
    DROPPED,
    PLACE_SIZE_BYTES_MAX,
    PURGED,
    PackIndex,
    is_virtual,
    unpack,
)
from lodefs.chunkstore.format.virtual_pack import OWN, PlacedRun, SourceObject, VirtualPack
from tests.support.chunkstore.virtual_packs import (
    SOURCE,
    MadePack,
    PlacedChunk,
    virtual_pack_of,
    virtual_packs,
)

MADE = virtual_pack_of([PlacedChunk(b"here"), PlacedChunk(b"abc", "a/b", 2)])


def payload_of(made: MadePack, pack: VirtualPack) -> bytes:
    """Returns the joined pieces, cut from the objects."""
    places = {OWN: made.stored} | {n: made.objects[o.key] for n, o in enumerate(pack.objects)}
    return b"".join(places[p.object][p.offset :][: p.size_bytes] for p in pack.pieces)


@given(virtual_packs)
def test_round_trip(made: MadePack) -> None:
    """What is encoded is decoded, and the pieces have every chunk at the offset in the index."""
    pack = VirtualPack.decode(made.pack_id, made.stored)
    assert pack.encode_tail() == made.pack.encode_tail()
    assert (list(pack.objects), list(pack.runs)) == (made.pack.objects, made.pack.runs)
    payload = payload_of(made, pack)
    assert len(payload) == pack.index.offsets[-1]
    for place in pack.index.places(0, len(pack.index)):
        unpack(place, payload[place.offset : place.offset + place.stored_size_bytes])


@given(virtual_packs, st.integers(0, 511), st.sampled_from([DROPPED, PURGED]))
def test_without_some_chunks(made: MadePack, gone: int, codec: int) -> None:
    """A pack that lost chunks in objects still has all others, at their places there."""
    placed = sum(1 << run.first for run in made.pack.runs)
    index = made.pack.index.without(gone & placed, codec)
    thin = replace(made.pack, index=index)
    own = made.stored[: made.pack.own_size_bytes]
    pack = VirtualPack.decode(made.pack_id, own + thin.encode_tail())
    payload = payload_of(made, pack)
    for first, count in pack.index.live_runs(0, len(index)):
        for place in pack.index.places(first, count):
            unpack(place, payload[place.offset : place.offset + place.stored_size_bytes])


def test_adjacent_chunks_are_one_piece() -> None:
    """Chunks that lie in a row in an object are read in one piece."""
    chunks = [PlacedChunk(b"own"), *(PlacedChunk(bytes([n]) * 9, "a") for n in range(50))]
    assert [piece.size_bytes for piece in virtual_pack_of(chunks).pack.pieces] == [3, 450]


@given(virtual_packs, st.data())
def test_damage_is_noticed(made: MadePack, data: st.DataObject) -> None:
    """No bit of index, place field or trailer changes unseen, and no end of it can be missing."""
    tail = bytearray(made.pack.encode_tail())
    own = made.pack.own_size_bytes
    with pytest.raises(Corrupt):
        VirtualPack.decode(made.pack_id, tail[: data.draw(st.integers(0, len(tail) - 1))])
    bit = data.draw(st.integers(0, 8 * len(tail) - 1))
    tail[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Corrupt, UnknownFormat)):
        VirtualPack.decode(made.pack_id, made.stored[:own] + tail)


@given(virtual_packs)
def test_an_ordinary_reader_refuses_it(made: MadePack) -> None:
    """A reader that does not know where the chunks lie takes no byte for one of them."""
    assert is_virtual(made.stored)
    with pytest.raises(UnknownFormat):
        PackIndex.decode(made.pack_id, made.stored)


def sealed(**changes: object) -> bytes:
    """The pack MADE with some columns of its place field changed, and a right checksum."""
    columns: dict[str, object] = {
        "sources": [SOURCE],
        "numbers": [0],
        "keys": ["a/b"],
        "sizes": [5],
        "etags": ['"e"'],
        "versions": [""],
        "runs": [1, 1, 0, 2],
    } | changes
    field = msgspec.msgpack.encode(list(columns.values()))
    return b"here" + MADE.pack.index.encode_with(field, 4)


def test_the_sealed_pack_is_good_unchanged() -> None:
    """The next test changes one column of what is a right place field."""
    pack = VirtualPack.decode(MADE.pack_id, sealed())
    assert pack.objects == [SourceObject(SOURCE, "a/b", 5, '"e"', "")]
    assert pack.runs == [PlacedRun(1, 1, 0, 2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": ["s3://bucket"]},
        {"sources": [""]},
        {"sources": []},
        {"numbers": [1]},
        {"numbers": [-1]},
        {"keys": ["../b"]},
        {"keys": ["a/./b"]},
        {"keys": ["/a"]},
        {"keys": ["a//b"]},
        {"keys": [""]},
        {"keys": ["a\0"]},
        {"keys": ["ä" * 513]},
        {"keys": ["a", "b"]},
        {"keys": []},
        {"sizes": [4]},  # the run ends after it
        {"sizes": [0]},
        {"sizes": [2**64 - 1], "runs": [1, 1, 0, -1]},
        {"etags": [""]},
        {"etags": ["a\r\nHost: b"]},
        {"etags": ["x" * 1025]},
        {"etags": ['W/"e"']},
        {"versions": ["\n"]},
        {"runs": []},
        {"runs": [1, 1, 0]},
        {"runs": [1, 2, 0, 0]},
        {"runs": [1, 0, 0, 2]},
        {"runs": [-1, 1, 0, 2]},
        {"runs": [1, 1, 1, 2]},
        {"runs": [1, 1, -1, 2]},
        {"runs": [0, 1, 0, 0, 0, 1, 0, 0]},  # out of order
        {"runs": [0, 1, 0, 0]},  # then the own object lacks bytes
        {"more": 1},
        {"runs": "no numbers"},
    ],
)
def test_impossible_place_fields(changes: dict[str, object]) -> None:
    """Columns that cannot be are Corrupt, also with a right checksum."""
    with pytest.raises(Corrupt):
        VirtualPack.decode(MADE.pack_id, sealed(**changes))


def test_a_chunk_in_an_object_is_not_compressed() -> None:
    """A run of compressed chunks is Corrupt: objects have files as they are."""
    made = virtual_pack_of([PlacedChunk(b"a" * 1000), PlacedChunk(b"abc", "a/b")])
    index, own = made.pack.index, made.pack.index.stored_sizes[0]
    assert own < 1000
    field = [[SOURCE], [0], ["a/b"], [1003], ["e"], [""], [0, 2, 0, 0]]
    with pytest.raises(Corrupt, match="compressed"):
        VirtualPack.decode(made.pack_id, index.encode_with(msgspec.msgpack.encode(field), 0))


def test_an_oversized_place_field_is_refused() -> None:
    """A place field over its bound is refused before it is read."""
    tail = MADE.pack.index.encode_with(bytes(PLACE_SIZE_BYTES_MAX + 1), 4)
    with pytest.raises(TooLarge):
        VirtualPack.decode(MADE.pack_id, tail[-64:])

"""Packs: what goes in comes out, the id names the chunks, damage is noticed."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Changed, Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys, pack
from lodefs.chunkstore.format.compression import RAW, ZSTD
from lodefs.chunkstore.format.names import ChunkId, PackId, digest_of
from lodefs.chunkstore.format.pack import TAIL_SIZE_BYTES, ChunkPlace, PackIndex, unpack
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repo.pack_reader import read_index
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.packs import PackBuilder, pack_id_of
from tests.support.chunkstore.strategies import chunk_lists, pack_of

MANY = [n.to_bytes(3, "big") for n in range(4000)]  # an index of more than 64 KiB


class Counted(MemoryObjects):
    """Counts reads, and can do something before the one of a number."""

    gets = 0

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, Callable[[], object]] = {}

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.gets += 1
        self.before.get(self.gets, lambda: None)()
        return super().get(key, offset=offset, size=size, if_match=if_match)


def stored_in(objects: MemoryObjects, raws: list[bytes]) -> PackId:
    finished = pack_of(raws)
    objects.put(keys.pack(finished.pack_id), finished.buffers)
    return finished.pack_id


@given(chunk_lists)
def test_round_trip(raws: list[bytes]) -> None:
    """Every chunk of a pack comes back, and the index from the pack's bytes is the built one."""
    finished = pack_of(raws)
    data = b"".join(finished.buffers)
    index = PackIndex.decode(finished.pack_id, data)
    assert index.encode() == finished.index.encode()
    for n, raw in enumerate(raws):
        place = index.place(n)
        assert unpack(place, data[place.offset : place.offset + place.stored_size_bytes]) == raw
        assert (index.chunk_id(n), index.raw_sizes[n]) == (digest_of(raw), len(raw))
    assert list(index.raw_offsets) == [sum(map(len, raws[:n])) for n in range(len(raws) + 1)]


@given(chunk_lists, st.integers(0, 9), st.integers(0, 9))
def test_places_are_those_of_each_chunk(raws: list[bytes], first: int, count: int) -> None:
    """A run of places is the places one by one; chunks that are not there are Corrupt."""
    index = pack_of(raws).index
    if first + count > len(raws):
        with pytest.raises(Corrupt, match="are not in it"):
            index.places(first, count)
    else:
        assert index.places(first, count) == [index.place(first + n) for n in range(count)]


@given(chunk_lists)
def test_the_id_names_the_chunks(raws: list[bytes]) -> None:
    """The id is the BLAKE3 of ids and sizes: codecs play no part, order does."""
    finished = pack_of(raws)
    rows = [(ChunkId(digest_of(raw)), len(raw)) for raw in raws]
    assert finished.pack_id == pack_id_of(rows)
    plain = PackBuilder()
    for raw in raws:
        plain.add(ChunkId(digest_of(raw)), RAW, raw, len(raw))
    assert plain.finish().pack_id == finished.pack_id
    assert pack_id_of([*rows, (ChunkId(bytes(32)), 1)]) != finished.pack_id


@given(chunk_lists, st.data())
def test_a_flipped_bit_in_a_chunk_is_noticed(raws: list[bytes], data: st.DataObject) -> None:
    """No bit of a chunk that has a meaning changes unseen (a zstd frame has some without)."""
    finished = pack_of(raws)
    n = data.draw(st.integers(0, len(raws) - 1))
    place = finished.index.place(n)
    stored = bytearray(finished.buffers[n])
    bit = data.draw(st.integers(0, 8 * len(stored) - 1))
    stored[bit // 8] ^= 1 << bit % 8
    try:
        assert bytes(unpack(place, stored)) == raws[n]
    except Corrupt:
        return
    assert place.codec == ZSTD


@given(chunk_lists, st.data())
def test_damage_to_the_index_is_noticed(raws: list[bytes], data: st.DataObject) -> None:
    """No bit of index or trailer changes unseen, and no end of it can be missing."""
    finished = pack_of(raws)
    encoded = bytearray(finished.index.encode())
    size = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(Corrupt):
        PackIndex.decode(finished.pack_id, encoded[:size])
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Corrupt, UnknownFormat)):
        PackIndex.decode(finished.pack_id, encoded)


def forged(**fields: int) -> bytes:
    """Index and trailer of one chunk of 3 bytes, some fields changed, with a right checksum."""
    row = {"raw": 3, "stored": 3, "codec": RAW, "version": 1, "flags": 0, "count": 1, "offset": 3}
    row |= {"place": 0, "size": 41} | fields
    body = digest_of(b"abc") + struct.pack("<IIB", row["raw"], row["stored"], row["codec"])
    head = struct.pack(
        "<8sHHIQII",
        b"LODEPACK",
        *(row[name] for name in ("version", "flags", "count", "offset", "size", "place")),
    )
    return body + head + blake3(body + head).digest()


def test_the_forged_pack_is_good_unchanged() -> None:
    """The next two tests change one field of what is a right index."""
    pack_id = pack_id_of([(ChunkId(digest_of(b"abc")), 3)])
    assert PackIndex.decode(pack_id, forged()).place(0) == ChunkPlace(
        ChunkId(digest_of(b"abc")), 0, 3, 3, RAW
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"raw": 4},  # stored raw in fewer bytes
        {"raw": 0, "stored": 0, "offset": 0},
        {"raw": 2**32 - 1, "codec": ZSTD},  # a reader would make room for 4 GiB
        {"codec": 9},
        {"stored": 2},
        {"raw": 2, "codec": ZSTD},
        {"offset": 2},
        {"count": 0, "size": 0},
        {"count": 2},
        {"count": 2**32 - 1, "size": 2**32 - 1},
        {"count": 2**21, "size": 2**21 * 41},
    ],
)
def test_impossible_indexes(fields: dict[str, int]) -> None:
    """Counts, sizes and codecs that cannot be are Corrupt, also with a right checksum."""
    size, offset = fields.get("raw", 3), fields
    with pytest.raises(Corrupt):
        PackIndex.decode(pack_id_of([(ChunkId(digest_of(b"abc")), size)]), forged(**offset))


@pytest.mark.parametrize("fields", [{"version": 3}, {"flags": 1}, {"flags": 256}, {"place": 8}])
def test_newer_formats(fields: dict[str, int]) -> None:
    """A newer version, and the virtual packs that have a place in this one, are named as such."""
    with pytest.raises(UnknownFormat, match="a newer lodefs is needed"):
        PackIndex.decode(PackId(bytes(32)), forged(**fields))


def test_another_packs_index() -> None:
    """An index under the id of another pack is Corrupt."""
    with pytest.raises(Corrupt, match="lists the chunks of pack"):
        PackIndex.decode(PackId(bytes(32)), forged())


@pytest.mark.parametrize(("raws", "gets"), [([b"one", b"two"], 1), (MANY, 2)])
def test_read_index(raws: list[bytes], gets: int) -> None:
    """One read brings the index of a small pack, two that of one with many chunks."""
    objects = Counted()
    pack_id = stored_in(objects, raws)
    found = read_index(objects, pack_id)
    assert len(found.index) == len(raws)
    assert found.etag == objects.head(keys.pack(pack_id)).etag
    assert objects.gets == gets


def test_an_index_of_4000_chunks_is_compact() -> None:
    """An index takes 41 bytes for each chunk, and a trailer."""
    assert len(pack_of(MANY).index.encode()) == 4000 * 41 + 64


@pytest.mark.parametrize("changes", [1, 2])
def test_read_index_of_a_pack_that_changes(changes: int) -> None:
    """A pack that is rewritten between the two reads of its index is read anew, once; two versions
    are never mixed up."""
    objects = Counted()
    pack_id = stored_in(objects, MANY)
    key = keys.pack(pack_id)
    as_it_was, rewritten = [objects.objects[key]], [b"x" + objects.objects[key]]
    for change in range(changes):
        objects.before[2 * change + 2] = lambda: objects.put(key, rewritten)
        objects.before[2 * change + 3] = lambda: objects.put(key, as_it_was)
    if changes == 1:
        assert read_index(objects, pack_id).etag == objects.head(key).etag
    else:
        with pytest.raises(Changed):
            read_index(objects, pack_id)


@pytest.mark.parametrize("lost", [1, 63, 64, 65, 200])
def test_read_index_of_a_cut_pack(lost: int) -> None:
    """A pack whose end or beginning is missing is Corrupt; one that is missing is NotFound."""
    objects = MemoryObjects()
    pack_id = stored_in(objects, MANY)
    key, whole = keys.pack(pack_id), objects.objects[keys.pack(pack_id)]
    assert len(whole) > TAIL_SIZE_BYTES
    for part in (whole[:-lost], whole[lost:], whole[-lost:]):
        objects.put(key, [part])
        with pytest.raises(Corrupt):
            read_index(objects, pack_id)
    objects.delete(key)
    with pytest.raises(NotFound):
        read_index(objects, pack_id)


@given(chunk_lists)
def test_columns_of_a_good_index(raws: list[bytes]) -> None:
    """Ids and sizes are those that the whole index has; a cut one is Corrupt."""
    index = pack_of(raws).index
    ids, sizes = pack.columns_of(index.pack_id, index.encode())
    assert (bytes(ids), sizes) == (index.ids, index.raw_sizes)
    with pytest.raises(Corrupt, match="truncated"):
        pack.columns_of(index.pack_id, index.encode()[1:])

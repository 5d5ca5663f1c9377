"""Index shards: what goes in comes out, damage is noticed."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt, TooLarge, UnknownFormat
from lodefs.chunkstore.format.index_shard import ShardPack, decode_shard, encode_shard
from lodefs.chunkstore.repo import shard_reader
from lodefs.chunkstore.repo.shard_reader import read_shard
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.strategies import chunk_lists, pack_of

shards = st.lists(chunk_lists.map(lambda raws: pack_of(raws).index), max_size=4)


@pytest.mark.slow
@given(shards)
def test_round_trip(packs: list[ShardPack]) -> None:
    """The packs of a shard come back, and give the same shard again."""
    data = encode_shard(packs)
    found = decode_shard(data)
    assert found == [ShardPack(pack.pack_id, pack.ids, pack.raw_sizes) for pack in packs]
    assert encode_shard(found) == data


@pytest.mark.slow
@given(shards, st.data())
def test_damage_is_noticed(packs: list[ShardPack], data: st.DataObject) -> None:
    """No bit changes, and no byte is lost or added, unseen."""
    good = encode_shard(packs)
    at = data.draw(st.integers(0, len(good) - 1))
    spoiled = bytearray(good)
    spoiled[at] ^= 1 << data.draw(st.integers(0, 7))
    for bad in (spoiled, good[:at], good + b"\0"):
        with pytest.raises(Corrupt, match="index/abc"):
            decode_shard(bad, "index/abc")


def forged(packs: bytes, *, version: int = 1, flags: int = 0, count: int = 1) -> bytes:
    body = struct.pack("<8sHHI", b"LODESHRD", version, flags, count) + packs
    return body + blake3(body).digest()


INDEX = pack_of([b"one", b"two"]).index
ROWS = encode_shard([INDEX])[16:-32]


@pytest.mark.parametrize(
    "data",
    [
        forged(ROWS, count=0),
        forged(ROWS, count=2),
        forged(ROWS, count=2**32 - 1),
        forged(ROWS[:-1]),
        forged(ROWS[:20]),
        forged(ROWS[:32] + struct.pack("<I", 2**32 - 1) + ROWS[36:]),
        forged(bytes(32) + ROWS[32:]),
        b"LODESHRD",
        b"",
    ],
)
def test_impossible_shards(data: bytes) -> None:
    """Counts that cannot be, and chunks that are not a pack's own, are Corrupt."""
    assert decode_shard(forged(ROWS)) == [ShardPack(INDEX.pack_id, INDEX.ids, INDEX.raw_sizes)]
    with pytest.raises(Corrupt):
        decode_shard(data)


@pytest.mark.parametrize("fields", [{"version": 2}, {"flags": 1}])
def test_newer_version(fields: dict[str, int]) -> None:
    """A shard of a newer lodefs is named as such."""
    with pytest.raises(UnknownFormat, match="newer lodefs"):
        decode_shard(forged(ROWS, **fields))


def stored(packs: int) -> tuple[MemoryObjects, list[ShardPack]]:
    """A store with one shard of so many packs, and these."""
    indexes = [
        pack_of([b"%d %d" % (pack, n) for n in range(pack + 1)]).index for pack in range(packs)
    ]
    objects = MemoryObjects()
    objects.put("index/abc", [encode_shard(indexes)])
    return objects, [ShardPack(index.pack_id, index.ids, index.raw_sizes) for index in indexes]


@pytest.mark.parametrize("window_size_bytes", [16, 17, 100, 1000, 1 << 20])
def test_a_large_shard_is_read_in_windows(window_size_bytes: int) -> None:
    """A shard of any size gives all its packs, whatever is read of it at once."""
    objects, packs = stored(10)
    assert list(read_shard(objects, "index/abc", window_size_bytes)) == packs


@pytest.mark.parametrize("at", [0, 8, 12, 40, -40, -1])
def test_damage_of_a_large_shard(at: int) -> None:
    """A wrong byte anywhere in a shard that is read in windows is an error."""
    objects, _ = stored(10)
    data = bytearray(objects.objects["index/abc"])
    data[at] ^= 0x55
    objects.put("index/abc", [data])
    with pytest.raises((Corrupt, UnknownFormat)):
        list(read_shard(objects, "index/abc", 100))


def test_bound_of_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard over the bound is refused after one window, and a pack that claims more chunks than
    any has, without reading them."""
    objects, _ = stored(10)
    monkeypatch.setattr(shard_reader, "SIZE_BYTES_MAX", len(objects.objects["index/abc"]) - 1)
    with pytest.raises(TooLarge, match="index/abc"):
        read_shard(objects, "index/abc", 100)
    monkeypatch.undo()
    data = bytearray(objects.objects["index/abc"])
    data[48:52] = b"\xff" * 4  # the first pack's chunks
    with pytest.raises(Corrupt, match="chunks"):
        decode_shard(bytes(data[:-32]) + blake3(data[:-32]).digest())
    objects.put("index/abc", [data])
    with pytest.raises(Corrupt, match="truncated"):
        list(read_shard(objects, "index/abc", 100))

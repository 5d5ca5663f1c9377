"""Index shards: what goes in comes out, damage is noticed."""

from __future__ import annotations

import struct

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import Corrupt, UnknownFormat
from chunkstore.shard import ShardPack, decode_shard, encode_shard
from chunkstore.testing.strategies import chunk_lists, pack_of

shards = st.lists(chunk_lists.map(lambda raws: pack_of(raws).index), max_size=4)


@pytest.mark.slow
@given(shards)
def test_round_trip(packs: list) -> None:
    """The packs of a shard come back, and give the same shard again."""
    data = encode_shard(packs)
    found = decode_shard(data)
    assert found == [ShardPack(pack.pack_id, pack.ids, pack.raw_sizes) for pack in packs]
    assert encode_shard(found) == data


@pytest.mark.slow
@given(shards, st.data())
def test_damage_is_noticed(packs: list, data: st.DataObject) -> None:
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

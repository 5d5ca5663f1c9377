"""Index shards: what goes in comes out, damage is noticed."""

from __future__ import annotations

import struct
from array import array

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import Corrupt, TooLarge, UnknownFormat
from lodefs.chunkstore.format.index_shard import (
    PackHooks,
    ShardPack,
    decode_hooks,
    decode_shard,
    encode_shard,
    fewer_hooks,
    hooks_of,
    hooks_size_bytes,
)
from lodefs.chunkstore.repo import shard_reader
from lodefs.chunkstore.repo.shard_reader import read_hooks, read_shard
from lodefs.chunkstore.types import Buffer
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


def head_size_bytes(shard: Buffer) -> int:
    """The size of a shard's head and hooks, which it has."""
    size_bytes = hooks_size_bytes(shard)
    assert size_bytes is not None
    return size_bytes


INDEX = pack_of([b"one", b"two"]).index
WITH_HOOKS = encode_shard([INDEX])
ROWS = WITH_HOOKS[head_size_bytes(WITH_HOOKS) : -32]


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
        forged(b"\xff" * 4 + WITH_HOOKS[20:-32], version=2),
        forged(ROWS, version=2),
        b"LODESHRD",
        b"",
    ],
)
def test_impossible_shards(data: bytes) -> None:
    """Counts that cannot be, and chunks that are not a pack's own, are Corrupt."""
    own = [ShardPack(INDEX.pack_id, INDEX.ids, INDEX.raw_sizes)]
    assert decode_shard(forged(ROWS)) == decode_shard(WITH_HOOKS) == own
    with pytest.raises(Corrupt):
        decode_shard(data)


@pytest.mark.parametrize("fields", [{"version": 3}, {"flags": 1}])
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


@pytest.mark.parametrize("at", [0, 8, 12, 17, 40, 400, -40, -1])
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
    at = head_size_bytes(data) + 32
    data[at : at + 4] = b"\xff" * 4  # the first pack's chunks
    with pytest.raises(Corrupt, match="chunks"):
        decode_shard(bytes(data[:-32]) + blake3(data[:-32]).digest())
    objects.put("index/abc", [data])
    with pytest.raises(Corrupt, match="truncated"):
        list(read_shard(objects, "index/abc", 100))


def test_hooks_are_first_chunks_and_those_that_end_with_zero_bits() -> None:
    """Such chunks stand for a pack, whatever pack of whatever push they come in."""
    ids = [bytes([n]) * 31 + bytes([32 * n % 256]) for n in range(1, 11)]
    pack = ShardPack(INDEX.pack_id, b"".join(ids), array("I", range(10)))
    hooks = hooks_of(pack)
    assert hooks == (pack.pack_id, b"".join([ids[0], *ids[1::2]]), array("I", [0, 1, 3, 5, 7, 9]))
    assert fewer_hooks(hooks) == (pack.pack_id, ids[0] + ids[7], array("I", [0, 7]))
    none = ShardPack(INDEX.pack_id, b"", array("I"))
    assert hooks_of(none) == fewer_hooks(hooks_of(none)) == none


def _hooks(packs: list[ShardPack]) -> list[PackHooks]:
    return [hooks_of(pack) for pack in packs]


@pytest.mark.parametrize("window_size_bytes", [20, 100, 1 << 20])
def test_hooks_are_read_alone(window_size_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the beginning of a shard is read for its hooks; all of one that was written without."""
    monkeypatch.setattr(shard_reader, "HOOKS_WINDOW_SIZE_BYTES", window_size_bytes)
    objects, packs = stored(10)
    whole = objects.objects["index/abc"]
    size_bytes = head_size_bytes(whole)
    objects.objects["index/abc"] = whole[:size_bytes] + bytes(len(whole) - size_bytes)
    assert read_hooks(objects, "index/abc") == _hooks(packs)
    objects.put("index/abc", [forged(whole[size_bytes:-32], count=10)])
    assert read_hooks(objects, "index/abc") == _hooks(packs)


def test_damaged_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong bytes, impossible counts and cuts are errors, and nothing large is read for them."""
    objects, _ = stored(3)
    whole = objects.objects["index/abc"]
    size_bytes = head_size_bytes(whole)
    for at in (4, 8, 10, 12, 16, 30, size_bytes - 1):
        bad = bytearray(whole)
        bad[at] ^= 0x11
        objects.put("index/abc", [bad])
        with pytest.raises((Corrupt, UnknownFormat)):
            read_hooks(objects, "index/abc")
    objects.put("index/abc", [whole[: size_bytes - 1]])
    with pytest.raises(Corrupt, match="truncated"):
        read_hooks(objects, "index/abc")
    body = whole[:16] + struct.pack("<I", 1) + whole[20 : 56 + 36 * 2]
    with pytest.raises(Corrupt, match="truncated"):
        decode_hooks(body + blake3(body).digest())
    monkeypatch.setattr(shard_reader, "HOOKS_SIZE_BYTES_MAX", size_bytes - 1)
    objects.put("index/abc", [whole])
    with pytest.raises(TooLarge, match="hooks"):
        read_hooks(objects, "index/abc")

"""Hostile parents: the cost to a reader that the owner of a pack sends to a bad node."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.protocol import wire
from lodefs.proxy.fetch.known_damage import DamagedChunks
from lodefs.proxy.fetch.pack_source import StorePacks
from lodefs.proxy.metrics.counters import Counts
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.server import PeerServer
from tests.adversary import hostile_peer as hostile
from tests.adversary.hostile_peer import Reply
from tests.support.proxy.cluster import Member, cluster_of
from tests.support.proxy.rig import MIB, Rig, file_of

CONTENT = random.Random(1).randbytes(5 * MIB)
UNIT = 20  # chunks
LIMIT_S = 60.0  # 2 s are asked, of a machine that is idle
PARENTS: dict[str, Callable[[Rig], Reply | None]] = {
    "hangs": lambda _: hostile.hangs,
    "hangs after the head": lambda _: hostile.hangs_after_head,
    "drips": lambda _: hostile.drips_body,
    "dies in the middle": lambda _: hostile.resets_body,
    "is gone": lambda _: hostile.resets,
    "never accepts": lambda _: None,
    "lies": hostile.liar,
    "lacks it": lambda _: hostile.lacks_late,
    "floods": lambda _: hostile.floods_head,
}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, {b"file": CONTENT}, chunk_size_bytes=64 * 1024, pack_chunks=200)


async def read_by_parents(rig: Rig, reader: Member) -> list[float]:
    """Has a node announce the file's pack and read it by units, as it does without a cache. Checks
    the bytes, and returns how long each unit took."""
    pack, first, count = name_rows.segments_of((await file_of(reader.node, b"file")).row)[0][:3]
    return await asyncio.to_thread(_read_units, rig, reader, pack, range(first, first + count))


def _read_units(rig: Rig, reader: Member, pack: PackId, chunks: range) -> list[float]:
    counts = Counts()
    packs = reader.peering.packs(StorePacks(rig.objects, counts, DamagedChunks()), counts)
    loaded = packs.index(pack, chunks)
    content, took = b"", []
    for first in range(chunks.start, chunks.stop, UNIT):
        begin_s = time.monotonic()
        unit = range(first, min(first + UNIT, chunks.stop))
        memory = packs.read(loaded, unit.start, len(unit)).memory
        took.append(time.monotonic() - begin_s)
        content += b"".join(memory[n] for n in unit)
    assert content == CONTENT
    return took


@pytest.mark.parametrize("name", PARENTS)
def test_a_bad_parent_costs_a_moment_once(
    rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner sends a reader of its pack to a member that does harm: what is read is right, and
    that member is asked once."""

    async def run(bad: Peer, asked: Callable[[], int]) -> None:
        named = wire.parents_value([bad.address] * 4)
        monkeypatch.setattr(PeerServer, "_parents", lambda *_: named)
        async with cluster_of(rig, 2, others=[bad]) as members:
            members.sort(key=lambda one: one.peering.context.reads_for_peers(rig_pack(rig)))
            took = await read_by_parents(rig, members[0])
            assert max(took) < LIMIT_S
            # Once more if the connection was an idle one
            assert name == "never accepts" or 0 < asked() <= 2

    with hostile.hostile_peer(PARENTS[name](rig)) as peer:
        asyncio.run(run(Peer(peer.address, weight=1e-9), lambda: peer.requests))


def rig_pack(rig: Rig) -> PackId:
    """The pack of the file, which is the larger one: the other one has the tree."""
    largest = max(rig.objects.list("packs/"), key=lambda info: info.size_bytes)
    return PackId(bytes.fromhex(largest.key.rpartition("/")[2]))


@pytest.mark.parametrize(
    "value",
    ["", "-", ", ".join(["192.0.2.1:7441"] * 4), "\x7f", ",".join("x" * 17), "a:1," * 3000],
    ids=["none", "the owner", "strangers", "garbage", "too many", "longer than a head"],
)
def test_bad_names_of_parents_are_not_asked(
    rig: Rig, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that names strangers, nobody, or far too many: the reader asks the owner."""
    monkeypatch.setattr(PeerServer, "_parents", lambda *_: value)

    async def run() -> None:
        async with cluster_of(rig, 2) as members:
            members.sort(key=lambda one: one.peering.context.reads_for_peers(rig_pack(rig)))
            assert max(await read_by_parents(rig, members[0])) < LIMIT_S

    asyncio.run(run())

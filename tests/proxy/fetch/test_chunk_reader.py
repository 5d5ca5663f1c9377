"""Packs: chunks by number; looking for them holds up nobody else."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from lodefs.chunkstore.objects.interface import Part
from lodefs.proxy.cache.chunk_cache import ChunkLocation
from lodefs.proxy.fetch import chunk_reader
from lodefs.proxy.fetch.flight import Follower
from tests.support.proxy.rig import Rig, until

FILES = {b"%03d" % n: random.Random(n).randbytes(5_000) for n in range(40)}

ASKS = Follower("another", cached=True)


def test_the_index_is_never_asked_on_the_event_loop(tmp_path: Path) -> None:
    """An index that is not in memory waits for the disk: chunks that may be here are looked for in
    other threads."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=1000)
    ((pack, _), *_) = rig.maker._places.values()

    async def run() -> None:
        async with rig.node() as node:
            threads: list[threading.Thread] = []
            find = node._cache.find

            def noted(keys: Sequence[bytes]) -> list[ChunkLocation | None]:
                threads.append(threading.current_thread())
                return find(keys)

            node._cache.find = noted  # type: ignore[method-assign]
            pack_index = await node.packs.index(pack, cached=False, from_origin=True)
            count = len(pack_index.index)
            assert not await node.packs.is_here(pack_index, 0, count, ASKS)
            for _ in range(2):
                pieces = [bytes(piece) async for piece in node.packs.chunks(pack_index, 0, count)]
                assert len(b"".join(pieces)) == pack_index.index.raw_offsets[-1]
                assert await node.packs.is_here(pack_index, 0, count, ASKS)
            assert len(threads) >= 3
            assert threading.current_thread() not in threads

    asyncio.run(run())


def test_chunks_of_which_none_is_here_cost_no_lookup(tmp_path: Path) -> None:
    """Of chunks that are fetched for the first time, memory tells that they are not here."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=1000)
    ((pack, _), *_) = rig.maker._places.values()

    async def run() -> None:
        async with rig.node() as node:
            lookups: list[int] = []
            kv = node._cache.kv
            get_many = kv.get_many

            def counted(keys: Sequence[bytes]) -> list[bytes | None]:
                lookups.append(len(keys))
                return get_many(keys)

            kv.get_many = counted  # type: ignore[method-assign]
            pack_index = await node.packs.index(pack, cached=False, from_origin=True)
            count = len(pack_index.index)
            for read in range(2):
                async for _ in node.packs.chunks(pack_index, 0, count):
                    pass
                if not read:
                    assert lookups == []
            assert await node.packs.is_here(pack_index, 0, count, ASKS)
            assert lookups

    asyncio.run(run())


def test_chunks_that_come_in_a_moment_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until their bytes begin to come, or for a moment; by so many callers, and others are told
    what is there now."""
    monkeypatch.setattr(chunk_reader, "WAITING_MAX", 2)
    monkeypatch.setattr(chunk_reader, "PARENT_WAIT_S", 60.0)
    rig = Rig(tmp_path, FILES, chunk_size_bytes=1000)
    ((pack, _), *_) = rig.maker._places.values()

    async def run() -> None:
        async with rig.node() as node:
            packs = node.packs
            pack_index = await packs.index(pack, cached=False, from_origin=True)
            waits = [
                asyncio.create_task(packs.will_be_here(pack_index, 0, 2, ASKS)) for _ in range(2)
            ]
            await until(lambda: packs._waiting == 2)
            assert not await packs.will_be_here(pack_index, 0, 2, ASKS)
            waits.pop().cancel()
            await until(lambda: packs._waiting == 1)
            pieces = [piece async for piece in packs.chunks(pack_index, 0, 2)]
            assert len(b"".join(pieces)) == pack_index.index.raw_offsets[2]
            assert await waits.pop()
            monkeypatch.setattr(chunk_reader, "PARENT_WAIT_S", 0.001)
            assert not await packs.will_be_here(pack_index, 0, len(pack_index.index), ASKS)
            assert not packs._waiting

    asyncio.run(run())


def test_a_node_that_leaves_is_sent_nothing_more(tmp_path: Path) -> None:
    """So this node may ask it again, although the chunks are still on their way."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=1000)
    ((pack, _), *_) = rig.maker._places.values()

    async def run() -> None:
        async with rig.node() as node:
            pack_index = await node.packs.index(pack, cached=False, from_origin=True)
            opened = threading.Event()

            def held(_key: str, part: Part) -> Part:
                assert opened.wait(60)
                return part

            rig.objects.answer = held
            follower = Follower("another", cached=False)
            pieces = node.packs.chunks(pack_index, 0, 2, follower)
            waiting = asyncio.create_task(anext(pieces))
            flights = node._fetcher._flights
            await until(lambda: pack in flights and flights[pack][0].passes_to("another"))
            (flight,) = flights[pack]
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not flight.passes_to("another")
            opened.set()
            await flight.landed()

    asyncio.run(run())

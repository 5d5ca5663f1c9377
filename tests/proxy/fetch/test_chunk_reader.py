"""Packs: chunks by number; looking for them holds up nobody else."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from pathlib import Path

from lodefs.proxy.cache.chunk_cache import ChunkLocation
from tests.support.proxy.rig import Rig

FILES = {b"%03d" % n: random.Random(n).randbytes(5_000) for n in range(40)}


def test_the_index_is_never_asked_on_the_event_loop(tmp_path: Path) -> None:
    """An index that is not in memory waits for the disk: chunks are looked for in other threads,
    whether they are here, come, or are only asked about."""
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
            assert not await node.packs.is_here(pack_index, 0, count)
            for _ in range(2):
                pieces = [
                    bytes(piece)
                    async for piece in node.packs.chunks(pack_index, 0, count, from_origin=True)
                ]
                assert len(b"".join(pieces)) == pack_index.index.raw_offsets[-1]
                assert await node.packs.is_here(pack_index, 0, count)
            assert len(threads) >= 5
            assert threading.current_thread() not in threads

    asyncio.run(run())

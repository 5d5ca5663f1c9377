"""What was purged from the store goes from a node's cache too."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Purged
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.proxy.fetch.purged_chunks import LOOKS, PurgedChunks, Purging
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, REPO, Rig, chunk_of, read_path, run

FILES = {
    b"large": random.Random(1).randbytes(2 * MIB),
    b"small": random.Random(2).randbytes(900),
    b"other": random.Random(3).randbytes(2 * MIB),
}


def test_the_cache_drops_what_was_purged(tmp_path: Path) -> None:
    """Large and small files, at the first look; readers are told, and all else is read; a node
    that is started again makes the looks that were left, and knows what it must refuse."""
    rig = Rig(tmp_path, FILES)

    async def work(node: StoreNode) -> None:
        cache = node._cache
        for name, content in FILES.items():
            assert await read_path(node, name) == content
        for path in (b"large", b"small"):
            purge(rig.store, plan_path(rig.store, REPO, path))
        assert await read_path(node, b"small") == FILES[b"small"]
        asked: list[int] = []

        def after(number: int):  # type: ignore[no-untyped-def]
            asked.append(number)
            return Purges(rig.objects).after(number)

        refused = PurgedChunks()
        purging = Purging(cache, cache.kv, after, refused)
        purging.look()
        for path in (b"large", b"small"):
            with pytest.raises(Purged):
                await read_path(node, path)
        assert await read_path(node, b"other") == FILES[b"other"]
        purge_of_small = next(iter(Purges(rig.objects).after(1)))
        (chunk,) = purge_of_small.chunks

        key = layout.chunk_key(chunk)
        assert cache.store([chunk_of(FILES[b"small"])], None)
        assert cache.find([key]) != [None]
        purging = Purging(cache, cache.kv, after, refused)
        purging.look()
        assert cache.find([key]) == [None]
        for _ in range(LOOKS):
            purging.look()
        assert asked == [-1, -1, 3, 3, 3]
        again = PurgedChunks()
        Purging(cache, cache.kv, after, again).look()
        of_chunk = PackIndex(chunk, array("I", [900]), array("I", [900]), b"\0")
        assert again.are_in(of_chunk, range(1))

    run(rig, work)
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("cache/*/*/*") if path.is_file())
    assert FILES[b"other"][:1000] in data
    assert FILES[b"small"] not in data
    assert FILES[b"large"][:1000] not in data

"""What was purged from the store goes from a node's cache too."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Purged
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.maintenance.purge import plan_path, purge
from lodefs.proxy.service.purging import LOOKS, Purging
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.rig import MIB, REPO, Rig, read_path, run

FILES = {
    b"large": random.Random(1).randbytes(2 * MIB),
    b"small": random.Random(2).randbytes(900),
    b"other": random.Random(3).randbytes(2 * MIB),
}


def test_the_cache_drops_what_was_purged(tmp_path: Path) -> None:
    """Large and small files, at the first look; readers are told, and all else is read; a node
    that is started later has not forgotten which purges it knows."""
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

        purging = Purging(cache, after)
        purging.look()
        for path in (b"large", b"small"):
            with pytest.raises(Purged):
                await read_path(node, path)
        assert await read_path(node, b"other") == FILES[b"other"]
        for _ in range(LOOKS):
            purging.look()
        Purging(cache, after).look()
        assert asked == [-1, 3, 3, 3, 3]

    run(rig, work)
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("cache/*/*/*") if path.is_file())
    assert FILES[b"other"][:1000] in data
    assert FILES[b"small"] not in data
    assert FILES[b"large"][:1000] not in data

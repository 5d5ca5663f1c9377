"""Warm jobs that are ended, at whatever point: what they have pinned goes, and stays gone."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest
from msgspec import structs

from lodefs.chunkstore.errors import Conflict, NotFound
from lodefs.chunkstore.nodecache.layout import PinRow
from lodefs.chunkstore.protocol.cache_control import (
    RUNNING,
    EvictRequest,
    WarmRequest,
)
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.service.store_node import StoreNode
from tests.support.proxy.pack_gate import Gate
from tests.support.proxy.rig import MIB, REPO, Rig, ended, run, until

pytestmark = pytest.mark.slow
FILES: dict[bytes, bytes | None] = {
    b"big": random.Random(2).randbytes(2 * MIB),
    b"small": b"s",
    b"empty": b"",
}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FILES, chunk_size_bytes=10_000, pack_chunks=50)


def test_a_cancelled_job_ends_and_its_pin_goes(rig: Rig) -> None:
    """Cancelling ends a job at once; a pin that it made goes, one that was there stays."""

    async def work(node: StoreNode) -> None:
        await ended(
            node, await node.cache_control.warm(WarmRequest(REPO, paths=["empty"], pin_s=60))
        )
        before = (await node.cache_control.pins()).pins
        gate = Gate(rig)
        job = await node.cache_control.warm(WarmRequest(REPO, paths=["big"], pin_s=60))
        await until(lambda: gate.held > 0)
        status = await node.cache_control.cancel_warm(job.id)
        assert status.state == "cancelled"
        gate.open()
        assert (await node.cache_control.warm_status(job.id)).state == "cancelled"
        assert (await node.cache_control.pins()).pins == before
        again = await node.cache_control.warm(WarmRequest(REPO))
        assert (await ended(node, again)).state == "done"

    run(rig, work)


def test_a_pin_that_is_evicted_is_not_put_again_by_its_job(rig: Rig) -> None:
    """Evicting a pin ends the jobs of its owner that would put it again; jobs of others go on."""

    async def work(node: StoreNode) -> None:
        gate = Gate(rig)
        pinning = WarmRequest(REPO, paths=["big"], pin_s=60, owner="docker")
        mine = await node.cache_control.warm(pinning)
        others = structs.replace(pinning, owner="csi")
        theirs = await node.cache_control.warm(others)
        await until(lambda: gate.held > 0)
        evict = EvictRequest(REPO, rev="main", path="big", pins_only=True, owner="docker")
        await node.cache_control.evict(structs.replace(evict, path="small"))
        assert (await node.cache_control.warm_status(mine.id)).state in RUNNING
        await node.cache_control.evict(evict)
        assert (await node.cache_control.warm_status(mine.id)).state == "cancelled"
        gate.open()
        await until(lambda: not node._warmer._warmer.job(theirs.id).is_running)
        (pin,) = (await node.cache_control.pins()).pins
        assert (pin.path, pin.owners, pin.is_complete) == ("big", ["csi"], True)

    run(rig, work)


def test_a_pin_is_not_put_after_the_end_of_its_job(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is cancelled while its pin is written ends afterwards, and the pin goes."""

    async def work(node: StoreNode) -> None:
        pins, begun, go = node._cache.pins, threading.Event(), threading.Event()
        put = pins.put

        def slow_put(pin_id: bytes, row: PinRow) -> bool:
            begun.set()
            assert go.wait(60)
            return put(pin_id, row)

        monkeypatch.setattr(pins, "put", slow_put)
        job = await node.cache_control.warm(WarmRequest(REPO, pin_s=60, owner="docker"))
        await until(begun.is_set)
        evict = EvictRequest(REPO, pins_only=True, owner="docker")
        evicting = asyncio.create_task(node.cache_control.evict(evict))
        await until(lambda: not node._warmer._warmer.job(job.id).is_running)
        assert not evicting.done()
        go.set()
        await evicting
        assert (await node.cache_control.pins()).pins == []

    run(rig, work)


@pytest.mark.parametrize("by_owner", [True, False])
def test_a_job_that_is_ended_while_its_snapshot_is_looked_up_does_not_begin(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, by_owner: bool
) -> None:
    """A release of its owner, or a cancellation, that comes before there is a job ends it too."""

    async def work(node: StoreNode) -> None:
        warmer = node._warmer._warmer
        namespace, go = warmer._context.namespace, asyncio.Event()
        snapshot, held = namespace.snapshot, asyncio.Event()

        async def slow_snapshot(repo: str, rev: str) -> Snapshot:
            held.set()
            await go.wait()
            return await snapshot(repo, rev)

        monkeypatch.setattr(namespace, "snapshot", slow_snapshot)
        request = WarmRequest(REPO, pin_s=60, owner="slurm-7")
        beginning = asyncio.create_task(warmer.start(request, "one"))
        await held.wait()
        if by_owner:
            await warmer.release("slurm-7")
        else:
            with pytest.raises(NotFound):
                await warmer.cancel("one")
        go.set()
        with pytest.raises(Conflict, match="ended before it started"):
            await beginning
        assert (warmer.jobs, (await node.cache_control.pins()).pins) == ([], [])
        assert (await warmer.start(request, "one")).is_running

    run(rig, work)

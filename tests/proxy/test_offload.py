"""Offload: thread pools have limits and let nobody wait for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from chunkstore.errors import DeadlineExceeded, Unavailable
from proxy.offload import Pool
from proxy.testing_rig import until


def test_results_and_errors_come_back() -> None:
    """A call's value or exception is the await's."""

    async def run() -> None:
        pool = Pool("test", threads=2)
        assert await pool.run(int, "17") == 17
        with pytest.raises(ValueError):
            await pool.run(int, "x")
        assert pool.calls == 0
        await pool.close()

    asyncio.run(run())


def test_a_full_queue_is_unavailable() -> None:
    """More calls than threads and queue hold are refused at once."""

    async def run() -> None:
        pool = Pool("test", threads=1, queue_calls_max=1)
        go = threading.Event()
        waiting = [asyncio.create_task(pool.run(go.wait)) for _ in range(2)]
        await until(lambda: pool.calls == 2)
        with pytest.raises(Unavailable, match="2 calls wait for the test threads"):
            await pool.run(int)
        go.set()
        assert await asyncio.gather(*waiting) == [True, True]
        await pool.close()

    asyncio.run(run())


def test_a_stuck_call_costs_its_deadline() -> None:
    """The caller goes on with DeadlineExceeded while the thread is still stuck."""

    async def run() -> None:
        pool = Pool("test", threads=1)
        go = threading.Event()
        with pytest.raises(DeadlineExceeded, match=r"chunk 7 did not come within 0\.01 s"):
            await pool.bounded("chunk 7", 0.01, go.wait)
        assert pool.calls == 0
        go.set()
        await pool.close()

    asyncio.run(run())


def test_a_closed_pool_is_unavailable() -> None:
    """After the end nothing runs."""

    async def run() -> None:
        pool = Pool("test", threads=1)
        await pool.close()
        with pytest.raises(Unavailable, match="stopped"):
            await pool.run(int)
        assert pool.calls == 0

    asyncio.run(run())

"""SharedTasks: many callers, one task, cancelled by none."""

from __future__ import annotations

import asyncio

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.runtime.shared_tasks import SharedTasks


def test_callers_share_a_task_that_none_of_them_cancels() -> None:
    """Callers of one key get the result of one task, also after one of them was cancelled; a
    later caller starts it anew."""

    async def run() -> None:
        tasks: SharedTasks[str, int] = SharedTasks()
        gate, starts = asyncio.Event(), 0

        async def work() -> int:
            nonlocal starts
            starts += 1
            mine = starts
            await gate.wait()
            return mine

        callers = [asyncio.create_task(tasks.run("a", work)) for _ in range(3)]
        other = asyncio.create_task(tasks.run("b", work))
        begun = asyncio.Event()
        asyncio.get_running_loop().call_soon(begun.set)
        await begun.wait()  # all of them have begun
        callers[0].cancel()
        gate.set()
        assert await asyncio.gather(*callers[1:]) == [1, 1]
        assert await other == 2
        assert callers[0].cancelled()
        assert await tasks.run("a", work) == 3

    asyncio.run(run())


def test_callers_share_an_error() -> None:
    """Each caller sees the error of the task; the next call starts anew."""

    async def run() -> None:
        tasks: SharedTasks[str, int] = SharedTasks()

        async def fail() -> int:
            raise Unavailable("gone")

        outcomes = await asyncio.gather(
            tasks.run("a", fail), tasks.run("a", fail), return_exceptions=True
        )
        assert [type(one) for one in outcomes] == [Unavailable] * 2
        with pytest.raises(Unavailable):
            await tasks.run("a", fail)

    asyncio.run(run())

"""The bound on what all warm jobs fetch together."""

from __future__ import annotations

import asyncio

from lodefs.proxy.warm.job import ALONE, BESIDE_READERS, MIB, AdmissionWindow


async def settled() -> None:
    """Returns when everybody who could go on has gone on."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


def test_bytes_and_units_are_bounded() -> None:
    """No more than the width is admitted, and each that leaves lets the next in, in order."""

    async def run() -> None:
        window = AdmissionWindow(lambda: False)
        admitted: list[int] = []

        async def one(number: int, size_bytes: int) -> None:
            await window.enter(size_bytes)
            admitted.append(number)

        tasks = [asyncio.create_task(one(n, 8 * MIB)) for n in range(12)]
        await settled()
        assert admitted == list(range(ALONE.size_bytes // (8 * MIB)))
        window.leave(8 * MIB)
        await settled()
        assert admitted == list(range(9))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_small_units_are_bounded_by_number() -> None:
    """Many tiny units do not take all threads."""

    async def run() -> None:
        window = AdmissionWindow(lambda: False)
        tasks = [asyncio.create_task(window.enter(1)) for _ in range(100)]
        await settled()
        assert sum(task.done() for task in tasks) == ALONE.units
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_readers_get_room() -> None:
    """While others are fetched for, less is admitted; one unit always is, whatever its size."""

    async def run() -> None:
        window = AdmissionWindow(lambda: True)
        await window.enter(1 << 40)
        tasks = [asyncio.create_task(window.enter(8 * MIB)) for _ in range(8)]
        await settled()
        assert not any(task.done() for task in tasks)
        window.leave(1 << 40)
        await settled()
        assert sum(task.done() for task in tasks) == BESIDE_READERS.size_bytes // (8 * MIB)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_who_leaves_the_queue_takes_no_room() -> None:
    """A waiter that was cancelled, before or after its turn came, leaves no trace."""

    async def run() -> None:
        window = AdmissionWindow(lambda: False)
        await window.enter(ALONE.size_bytes)
        first, second, third = (asyncio.create_task(window.enter(10)) for _ in range(3))
        await settled()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        window.leave(ALONE.size_bytes)
        second.cancel()  # its turn has come, and it does not know yet
        await asyncio.gather(second, return_exceptions=True)
        await third
        window.leave(10)
        await window.enter(ALONE.size_bytes)

    asyncio.run(run())

"""Room for directories that are being loaded."""

from __future__ import annotations

import asyncio

import pytest

from lodefs.chunkstore.errors import DeadlineExceeded
from lodefs.proxy.read.directories.tree_budget import SMALL_SIZE_BYTES_MAX, TreeRoom

LONG_S = 60.0
LARGE = SMALL_SIZE_BYTES_MAX + 1


class Visitor:
    """Enters a room, and leaves it when told."""

    def __init__(self, room: TreeRoom, size_bytes: int) -> None:
        self.is_in = False
        self._leave = asyncio.Event()
        self.task = asyncio.create_task(self._visit(room, size_bytes))

    async def _visit(self, room: TreeRoom, size_bytes: int) -> None:
        async with room.of(size_bytes, "a directory"):
            self.is_in = True
            await self._leave.wait()
        self.is_in = False

    async def leave(self) -> None:
        self._leave.set()
        await self.task


async def settled() -> None:
    """Everybody who can move on has done so."""
    for _ in range(10):
        await turn()


async def turn() -> None:
    """The event loop has gone round once."""
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    loop.call_soon(gone.set_result, None)
    await gone


def test_no_more_than_the_room_is_in() -> None:
    """Trees enter in the order of asking while there is room; one that is larger than all of the
    room enters alone."""

    async def run() -> None:
        room = TreeRoom(deadline_s=LONG_S, large_size_bytes=2 * LARGE)
        sizes = [LARGE, LARGE, 100 * LARGE, LARGE]
        visitors = [Visitor(room, size) for size in sizes]
        seen = []
        for visitor in visitors:
            await settled()
            seen.append([other.is_in for other in visitors])
            await visitor.leave()
        assert seen == [
            [True, True, False, False],
            [False, True, False, False],
            [False, False, True, False],
            [False, False, False, True],
        ]

    asyncio.run(run())


def test_small_trees_do_not_wait_for_large_ones() -> None:
    """While a huge tree is in, and others wait for it, a small one enters at once."""

    async def run() -> None:
        room = TreeRoom(deadline_s=LONG_S)
        huge, waiting = Visitor(room, 1 << 40), Visitor(room, LARGE)
        await settled()
        small = Visitor(room, SMALL_SIZE_BYTES_MAX)
        await settled()
        assert [huge.is_in, waiting.is_in, small.is_in] == [True, False, True]
        for visitor in (huge, waiting, small):
            await visitor.leave()

    asyncio.run(run())


def test_a_wait_has_a_deadline() -> None:
    """Who waits too long is told why, and takes no room; those behind enter."""

    async def run() -> None:
        room = TreeRoom(deadline_s=0.05, large_size_bytes=2 * LARGE)
        first = Visitor(room, LARGE)
        await settled()
        with pytest.raises(DeadlineExceeded, match="a directory: other large directories"):
            await Visitor(room, 2 * LARGE).task
        behind = Visitor(room, LARGE)
        await settled()
        assert behind.is_in
        await first.leave()
        await behind.leave()

    asyncio.run(run())


def test_cancelled_waiters_leave_no_trace() -> None:
    """Who is cancelled, while waiting or in the moment of entering, takes no room."""

    async def run() -> None:
        room = TreeRoom(deadline_s=LONG_S, large_size_bytes=LARGE)
        first, second, third = (Visitor(room, LARGE) for _ in range(3))
        await settled()
        second.task.cancel()
        await settled()
        first._leave.set()
        for _ in range(10):
            await turn()
            if third.is_in:
                break
        fourth = Visitor(room, LARGE)
        await settled()
        await third.leave()
        await settled()
        assert fourth.is_in
        fourth.task.cancel()
        await settled()
        fifth = Visitor(room, LARGE)
        await settled()
        assert fifth.is_in
        await fifth.leave()

    asyncio.run(run())


def test_room_given_back_as_a_wait_ends_is_not_lost() -> None:
    """A waiter that is cancelled, and room that is given back before it has been told so: the
    holder before ends well, those behind enter, and all of the room is there in the end."""

    async def run() -> None:
        room = TreeRoom(deadline_s=LONG_S, large_size_bytes=LARGE)
        first, second, third = (Visitor(room, LARGE) for _ in range(3))
        await settled()
        first._leave.set()  # it moves on in the next turn, before ...
        second.task.cancel()  # ... this one does
        await settled()
        assert first.task.done()
        assert first.task.exception() is None
        assert second.task.cancelled()
        assert third.is_in
        await third.leave()
        fourth = Visitor(room, LARGE)
        await settled()
        assert fourth.is_in
        await fourth.leave()

    asyncio.run(run())

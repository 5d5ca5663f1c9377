"""Offload: thread pools have limits and let nobody wait for ever."""

from __future__ import annotations

import asyncio
import threading
import weakref
from contextlib import suppress

import pytest

from lodefs.chunkstore.errors import Corrupt, DeadlineExceeded, LodefsError, Unavailable
from lodefs.proxy.runtime.thread_pools import Pool, calls_left, current_owner
from tests.support.proxy.rig import until


class Stuck:
    """A call that says when it has begun, and ends when it may."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> bool:
        self.begun.set()
        return self.go.wait()


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


@pytest.mark.parametrize("full_of", [True, False])
def test_calls_of_one_kind_do_not_fill_the_queue_of_the_other(full_of: bool) -> None:
    """While calls of other machines' clients are refused for a full queue, one of this machine
    is taken on, and the other way round."""

    async def run() -> None:
        pool = Pool("test", threads=1, queue_calls_max=2)
        hangs = Stuck()
        stuck = asyncio.create_task(pool.run(hangs))
        await until(hangs.begun.is_set)
        current_owner.set("5001" if full_of else "remote")
        waiting = [asyncio.create_task(pool.run(int, n)) for n in range(2)]
        await until(lambda: pool.calls == 3)
        with pytest.raises(Unavailable, match="3 calls wait"):
            await pool.run(int)
        current_owner.set("remote" if full_of else "5001")
        other = asyncio.create_task(pool.run(int, "17"))
        await until(lambda: pool.calls == 4 or other.done())
        hangs.go.set()
        assert await other == 17
        assert await asyncio.gather(stuck, *waiting) == [True, 0, 1]
        await pool.close()

    asyncio.run(run())


def test_a_stuck_call_costs_its_deadline() -> None:
    """The caller goes on with DeadlineExceeded while the thread is still stuck, and counts."""

    async def run() -> None:
        pool = Pool("test", threads=1)
        hangs = Stuck()
        with pytest.raises(DeadlineExceeded, match=r"chunk 7 did not arrive within 1 s"):
            await pool.bounded("chunk 7", 1, hangs)
        assert hangs.begun.is_set()
        assert pool.calls == 1
        hangs.go.set()
        await until(lambda: pool.calls == 0)
        await pool.close()

    asyncio.run(run())


def test_callers_that_give_up_leave_no_queue() -> None:
    """While a call hangs, others whose callers have gone are neither kept nor done."""

    async def run() -> None:
        pool = Pool("test", threads=1, queue_calls_max=1)
        hangs, done = Stuck(), threading.Event()
        stuck = asyncio.create_task(pool.run(hangs))
        await until(hangs.begun.is_set)
        for _ in range(100):
            with pytest.raises(DeadlineExceeded):
                await pool.bounded("it", 0.0001, done.set)
        assert pool.calls == 1
        hangs.go.set()
        assert await stuck
        assert await pool.run(int, "17") == 17
        assert not done.is_set()
        await pool.close()

    asyncio.run(run())


def test_calls_of_callers_that_are_gone_are_bounded() -> None:
    """A call that hangs without a caller takes its thread's place: beyond threads and queue
    nothing is taken on."""

    async def run() -> None:
        pool = Pool("test", threads=2, queue_calls_max=0)
        hanging = [Stuck(), Stuck()]
        for hangs in hanging:
            caller = asyncio.create_task(pool.run(hangs))
            await until(hangs.begun.is_set)
            caller.cancel()
            with pytest.raises(asyncio.CancelledError):
                await caller
        with pytest.raises(Unavailable, match="2 calls wait"):
            await pool.run(int)
        for hangs in hanging:
            hangs.go.set()
        await until(lambda: pool.calls == 0)
        await pool.close()

    asyncio.run(run())


def test_local_and_remote_calls_take_turns() -> None:
    """A call for a client of this machine does not wait for all that others asked for before it,
    and these do not wait for ever either."""

    async def run() -> None:
        pool = Pool("test", threads=1)
        hangs = Stuck()
        done: list[str] = []

        async def ask(name: str, *, remote: bool) -> None:
            current_owner.set("remote" if remote else "5001")
            await pool.run(done.append, name)

        stuck = asyncio.create_task(pool.run(hangs))
        await until(hangs.begun.is_set)
        calls = [asyncio.create_task(ask(f"remote {n}", remote=True)) for n in range(20)]
        await until(lambda: pool.calls == 21)
        calls += [asyncio.create_task(ask(f"local {n}", remote=False)) for n in range(5)]
        await until(lambda: pool.calls == 26)
        hangs.go.set()
        await asyncio.gather(stuck, *calls)
        turns = [name.partition(" ")[0] for name in done]
        assert turns[:10] in (["remote", "local"] * 5, ["local", "remote"] * 5)
        assert [name for name in done if name.startswith("local")] == [
            f"local {n}" for n in range(5)
        ]
        assert len(done) == 25
        await pool.close()

    asyncio.run(run())


def test_closing_waits_for_no_call_that_hangs() -> None:
    """A closed pool tells how many calls it left, and their end is known."""

    async def run() -> None:
        pool = Pool("test", threads=2)
        hangs = Stuck()
        waiting = asyncio.create_task(pool.run(hangs))
        await until(hangs.begun.is_set)
        assert await pool.close(0.01) == 1
        assert calls_left()
        hangs.go.set()
        assert await waiting
        await until(lambda: not calls_left())

    asyncio.run(run())


def test_closing_drops_what_waits() -> None:
    """Calls that have not begun are cancelled, and closing waits for the one that runs."""

    async def run() -> None:
        pool = Pool("test", threads=1)
        hangs = Stuck()
        calls = [asyncio.create_task(pool.run(hangs)) for _ in range(3)]
        await until(lambda: pool.calls == 3 and hangs.begun.is_set())
        closing = asyncio.create_task(pool.close(None))
        await until(lambda: pool.calls == 1)
        hangs.go.set()
        assert await closing == 0
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in results] == [
            bool,
            asyncio.CancelledError,
            asyncio.CancelledError,
        ]

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


def test_an_error_keeps_nothing_of_its_call() -> None:
    """An error that somebody keeps does not keep what the frames held that it came through, also
    those of its cause; coroutines that it came through before go on."""

    class Held:
        pass

    kept: list[weakref.ref[Held]] = []
    shared = Unavailable("again")

    def fail() -> None:
        held = Held()
        kept.append(weakref.ref(held))
        try:
            raise shared
        except Unavailable as error:
            raise Corrupt("broken") from error

    async def run() -> list[LodefsError]:
        pool = Pool("test", threads=1)
        found: list[LodefsError] = []
        for _ in range(2):
            with suppress(Unavailable):
                raise shared  # so that its traceback has this coroutine
            try:
                await pool.run(fail)
            except Corrupt as error:
                found.append(error)
        await pool.close()
        return found

    found = asyncio.run(run())
    assert len(found) == 2
    assert [ref() for ref in kept] == [None, None]


def test_an_error_that_is_its_own_cause_comes_back() -> None:
    """Causes and contexts that form a cycle hold no thread up."""

    def fail() -> None:
        error, other = Corrupt("one"), Corrupt("other")
        error.__cause__, other.__context__ = other, error
        raise error

    async def run() -> None:
        pool = Pool("test", threads=1)
        with pytest.raises(Corrupt, match="one"):
            await pool.bounded("it", 20, fail)
        await pool.close()

    asyncio.run(run())

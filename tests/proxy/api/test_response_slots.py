"""Places of answers: the event loop's side of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from lodefs.proxy.api.response_slots import SMALL_SIZE_BYTES, AnswerPlace, ResponseSlots
from lodefs.proxy.runtime.thread_pools import NOBODY
from tests.support.proxy.rig import until

LONG_S = 3600.0
LARGE_SIZE_BYTES = SMALL_SIZE_BYTES + 1


class Answers:
    """Answers that go on when they are told to, and what became of them, in order."""

    def __init__(self, places: ResponseSlots) -> None:
        self.places = places
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def start(
        self, owner: str, name: str, size_bytes: int = LARGE_SIZE_BYTES
    ) -> asyncio.Task[None]:
        """An answer that has a place from when it has begun until its gate is opened."""
        self.gates[name] = asyncio.Event()
        return asyncio.create_task(self._made(owner, name, size_bytes))

    async def _made(self, owner: str, name: str, size_bytes: int) -> None:
        self.places.see(owner)
        place = AnswerPlace(self.places, owner, size_bytes)
        try:
            await place.enter()
            self.begun.append(name)
            await self.gates[name].wait()
        finally:
            place.leave()


async def nothing() -> None:
    """Ends with the next turn of the loop, in which tasks that were made before have begun."""


def run(test: Coroutine[object, object, None]) -> None:
    """Runs a test within a time that is enough for any machine."""
    asyncio.run(asyncio.wait_for(test, 60))


def test_alone_nobody_waits() -> None:
    """Of an owner who is alone any number of answers is under way."""

    async def test() -> None:
        answers = Answers(ResponseSlots(1, held_s_max=LONG_S))
        tasks = [answers.start("5001", str(n)) for n in range(20)]
        await until(lambda: len(answers.begun) == 20)
        for gate in answers.gates.values():
            gate.set()
        await asyncio.gather(*tasks)

    run(test())


def test_beside_another_owner_answers_go_one_after_the_other() -> None:
    """Where two read, one's answers take turns in the order in which they came; the other's first
    does not wait for them."""

    async def test() -> None:
        answers = Answers(ResponseSlots(1, held_s_max=LONG_S))
        answers.places.see("5002")
        tasks = [answers.start("5001", f"a{n}") for n in range(3)]
        await until(lambda: answers.begun == ["a0"])
        tasks.append(answers.start("5002", "b0"))
        await until(lambda: answers.begun == ["a0", "b0"])
        for number, name in enumerate(["a0", "a1", "a2"], 1):
            answers.gates[name].set()
            await tasks[number - 1]
            await until(lambda number=number: len(answers.begun) == min(2 + number, 4))
        assert answers.begun == ["a0", "b0", "a1", "a2"]
        answers.gates["b0"].set()
        await asyncio.gather(*tasks)

    run(test())


def test_a_place_that_is_held_for_long_is_given_on() -> None:
    """An answer that waits for a store or a slow client keeps no other one waiting, and takes a
    place again for its next piece."""

    async def test() -> None:
        places = ResponseSlots(1, held_s_max=0.001)
        answers = Answers(places)
        places.see("5002")
        tasks = [answers.start("5001", f"a{n}") for n in range(3)]
        await until(lambda: answers.begun == ["a0", "a1", "a2"])
        place = AnswerPlace(places, "5001", LARGE_SIZE_BYTES)
        await place.enter()
        places.held_s_max = LONG_S
        await until(lambda: places.owners.enter("5001"))  # the place that was just held
        piece = asyncio.create_task(place.enter())
        await asyncio.wait({asyncio.create_task(nothing())})  # a turn of the loop
        assert not piece.done()
        places.give_back("5001")
        await piece
        place.leave()
        for gate in answers.gates.values():
            gate.set()
        await asyncio.gather(*tasks)

    run(test())


def test_a_client_that_goes_while_it_waits_gives_its_place_on() -> None:
    """An answer that is cancelled before its turn, or just as it comes, takes no place with it."""

    async def test() -> None:
        answers = Answers(ResponseSlots(1, held_s_max=LONG_S))
        answers.places.see("5002")
        tasks = [answers.start("5001", f"a{n}") for n in range(4)]
        await until(lambda: answers.begun == ["a0"])
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        tasks[0].add_done_callback(lambda _: tasks[2].cancel())  # whose turn came a moment before
        answers.gates["a0"].set()
        await until(lambda: "a3" in answers.begun)
        assert answers.begun == ["a0", "a3"]
        answers.gates["a3"].set()
        await asyncio.gather(tasks[0], tasks[3])

    run(test())


def test_small_answers_wait_for_nobody() -> None:
    """Beside another owner's reads, and behind any number of large ones of its own."""

    async def test() -> None:
        answers = Answers(ResponseSlots(1, held_s_max=LONG_S))
        answers.places.see("5002")
        tasks = [answers.start("5001", name) for name in ("large", "waits")]
        tasks += [answers.start("5001", f"s{n}", SMALL_SIZE_BYTES) for n in range(3)]
        await until(lambda: len(answers.begun) == 4)
        assert answers.begun == ["large", "s0", "s1", "s2"]
        for gate in answers.gates.values():
            gate.set()
        await asyncio.gather(*tasks)

    run(test())


def test_the_node_itself_is_no_other_reader() -> None:
    """A user beside what root's programs and mounts read for nobody in particular is alone."""
    places = ResponseSlots(1)
    for owner in ("5001", NOBODY, "5001"):
        assert places.passes(owner, LARGE_SIZE_BYTES)
    assert not places.is_shared
    places.see("5002")
    assert places.is_shared


def test_a_hit_of_any_size_passes_where_its_owner_has_none_under_way() -> None:
    """Of a large one the owner has one at a time, made in one turn or in many; small ones pass."""
    places = ResponseSlots(1)
    places.see("5002")
    assert places.passes("5001", LARGE_SIZE_BYTES)
    assert places.owners.enter("5001")
    assert not places.passes("5001", LARGE_SIZE_BYTES)
    assert places.passes("5001", SMALL_SIZE_BYTES)
    assert places.passes("5002", LARGE_SIZE_BYTES)
    places.give_back("5001")
    assert places.passes("5001", LARGE_SIZE_BYTES)

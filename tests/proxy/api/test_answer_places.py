"""Places of answers: the event loop's side of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from lodefs.proxy.api.answer_places import AnswerPlaces, enter_place, leave_place
from lodefs.proxy.runtime.thread_pools import current_owner
from tests.support.proxy.rig import until

LONG_S = 3600.0


class Answers:
    """Answers that go on when they are told to, and what became of them, in order."""

    def __init__(self, places: AnswerPlaces) -> None:
        self.places = places
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def start(self, owner: str, name: str) -> asyncio.Task[None]:
        """An answer that has a place from when it has begun until its gate is opened."""
        self.gates[name] = asyncio.Event()
        return asyncio.create_task(self._made(owner, name))

    async def _made(self, owner: str, name: str) -> None:
        current_owner.set(owner)
        try:
            await self.places.take()
            self.begun.append(name)
            await self.gates[name].wait()
        finally:
            leave_place()


async def nothing() -> None:
    """Ends with the next turn of the loop, in which tasks that were made before have begun."""


def run(test: Coroutine[object, object, None]) -> None:
    """Runs a test within a time that is enough for any machine."""
    asyncio.run(asyncio.wait_for(test, 60))


def test_alone_nobody_waits() -> None:
    """Of an owner who is alone any number of answers is under way."""

    async def test() -> None:
        answers = Answers(AnswerPlaces(1, held_s_max=LONG_S))
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
        answers = Answers(AnswerPlaces(1, held_s_max=LONG_S))
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
        places = AnswerPlaces(1, held_s_max=0.001)
        answers = Answers(places)
        places.see("5002")
        tasks = [answers.start("5001", f"a{n}") for n in range(3)]
        await until(lambda: answers.begun == ["a0", "a1", "a2"])
        current_owner.set("5001")
        await places.take()
        places.held_s_max = LONG_S
        await until(lambda: places.owners.enter("5001"))  # the place that was just held
        piece = asyncio.create_task(enter_place())
        await asyncio.wait({asyncio.create_task(nothing())})  # a turn of the loop
        assert not piece.done()
        places.give_back("5001")
        await piece
        leave_place()
        for gate in answers.gates.values():
            gate.set()
        await asyncio.gather(*tasks)

    run(test())


def test_a_client_that_goes_while_it_waits_gives_its_place_on() -> None:
    """An answer that is cancelled before its turn, or just as it comes, takes no place with it."""

    async def test() -> None:
        answers = Answers(AnswerPlaces(1, held_s_max=LONG_S))
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

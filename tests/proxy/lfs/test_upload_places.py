"""Places for uploads are shared by tokens."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from hypothesis import given
from hypothesis import strategies as st

from lodefs.proxy.lfs.upload_places import UploadPlaces

PLACES = 16


def held_at_once(tokens: list[str]) -> list[str]:
    """Who has a place, if each of these asks for one in turn, and none gives it back."""

    async def ask() -> list[str]:
        places, held = UploadPlaces(PLACES), list[str]()  # cancelled ones make room for others

        async def hold(token: str) -> None:
            async with places.place(token):
                held.append(token)
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(hold(token)) for token in tokens]
        await asyncio.wait(tasks, timeout=0)
        found = list(held)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return found

    return asyncio.run(ask())


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_no_token_takes_all_places(greedy: list[str]) -> None:
    """Whatever three tokens hold for ever, another one gets a place; and no token leaves half of
    the places unused by itself."""
    assert held_at_once([*greedy, "late"])[-1] == "late"
    assert len(held_at_once(["alone"] * 60)) == PLACES // 2


def test_who_waits_gets_the_place_that_is_given_back() -> None:
    """Those who wait get places in the order in which they came, except those who have gone."""

    async def ask() -> list[int]:
        places, order = UploadPlaces(2), list[int]()

        async def hold(number: int) -> None:
            async with places.place("one"):
                order.append(number)

        async with AsyncExitStack() as first:
            await first.enter_async_context(places.place("one"))
            tasks = [asyncio.create_task(hold(number)) for number in range(4)]
            await asyncio.wait(tasks, timeout=0)
            assert order == []
            tasks[1].cancel()
        await asyncio.wait(tasks)
        return order

    assert asyncio.run(ask()) == [0, 2, 3]

"""Repeating what fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lodefs.chunkstore.errors import Corrupt, Unavailable
from lodefs.proxy.runtime.backoff import POLICY, Backoff


class Outage:
    """A service that is away until a time, and the clock that says so."""

    def __init__(self, until_s: float = float("inf")) -> None:
        self.now_s = 0.0
        self.calls = 0
        self.pauses: list[float] = []
        self._until_s = until_s

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    async def call(self) -> str:
        self.calls += 1
        if self.now_s < self._until_s:
            raise Unavailable("away")
        return "here"

    def patience(self, patience_s: float = 300.0) -> Backoff:
        return Backoff(
            policy=replace(POLICY, time_s_max=patience_s),
            clock_s=lambda: self.now_s,
            sleep=self.sleep,
            jitter=lambda: 0.5,
        )


def test_an_outage_of_a_minute_is_sat_out() -> None:
    """The pauses double up to their bound, and the call succeeds when the service is back."""
    outage = Outage(until_s=60)
    assert asyncio.run(outage.patience()(outage.call)) == "here"
    assert outage.pauses == sorted(outage.pauses)
    assert outage.pauses[-1] <= POLICY.pause_s_max
    assert outage.calls < 12


def test_it_ends_without_progress() -> None:
    """After so long without any success the error goes through."""
    outage = Outage()
    with pytest.raises(Unavailable):
        asyncio.run(outage.patience(100)(outage.call))
    assert 100 - 2 * POLICY.pause_s_max < outage.now_s <= 100


def test_one_call_is_not_repeated_forever() -> None:
    """A call that always fails ends also while others get on."""
    outage = Outage()
    patience = outage.patience(100)

    async def run() -> None:
        async def good() -> None:
            """It comes."""

        async def failing() -> str:
            await patience(good)
            return await outage.call()

        await patience(failing)

    with pytest.raises(Unavailable):
        asyncio.run(run())
    assert outage.calls == POLICY.attempts_max


def test_other_errors_are_not_repeated() -> None:
    """What will not get better by waiting goes through at once."""
    outage = Outage()

    async def corrupt() -> None:
        outage.calls += 1
        raise Corrupt("bad")

    with pytest.raises(Corrupt):
        asyncio.run(outage.patience()(corrupt))
    assert (outage.calls, outage.pauses) == (1, [])

"""Probing: whom, how often, and what Health is told."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from proxy.peers.addresses import Addresses
from proxy.peers.peer import Peer
from proxy.peers.probing import CONCURRENCY, PROBES_PER_S_MAX, Prober, ProbeSchedule
from proxy.peers.readiness import is_ready


class FakeHealth:
    """Members that are down, and what probes found."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.told: list[tuple[str, bool]] = []

    def usable(self, address: str, now_s: float) -> bool:
        return address not in self.down

    def probed(self, address: str, ok: bool, now_s: float) -> None:
        self.told.append((address, ok))
        if ok:
            self.down.discard(address)


def probes(nodes: int, seconds: int, *, down: Callable[[int, int], bool]) -> list[list[int]]:
    """Whom the schedule probes in each second; ``down(node, second)``."""
    schedule = ProbeSchedule(random.Random(7).random)
    names = [str(number) for number in range(nodes)]
    return [
        [int(one) for one in schedule.due(names, lambda name: not down(int(name), now), float(now))]  # noqa: B023
        for now in range(seconds)
    ]


@pytest.mark.parametrize(
    ("nodes", "per_s_max"),
    [(8, 0.3), (1000, 7.0), pytest.param(10_000, 7.0, marks=pytest.mark.slow)],
)
def test_well_members_need_few_probes(nodes: int, per_s_max: float) -> None:
    """However many they are, a node sends few probes a second, never many at once."""
    found = probes(nodes, 300, down=lambda _node, _second: False)
    assert sum(map(len, found)) / 300 <= per_s_max
    assert max(map(len, found)) <= PROBES_PER_S_MAX


def test_every_well_member_is_probed_now_and_then() -> None:
    """Nobody is forgotten."""
    found = Counter(one for some in probes(100, 400, down=lambda *_: False) for one in some)
    assert set(found) == set(range(100))
    assert max(found.values()) <= 14


def test_a_member_that_fails_is_probed_soon_and_then_more_seldom() -> None:
    """Within seconds of its failure; then with pauses that double, up to a minute or so."""
    found = probes(10, 600, down=lambda node, second: node == 3 and second >= 100)
    times = [second for second, some in enumerate(found) if 3 in some and second >= 100]
    assert times[0] <= 104
    pauses = [after - before for before, after in pairwise(times)]
    assert len([second for second in times if second < 130]) >= 3
    assert max(pauses) <= 91
    assert sum(pauses[:3]) < sum(pauses[-3:])


def test_members_that_all_fail_share_the_rate() -> None:
    """A thousand dead members cost no more than the limit, and each gets its turn."""
    found = probes(1000, 120, down=lambda *_: True)
    assert max(map(len, found)) <= PROBES_PER_S_MAX
    assert len({one for some in found for one in some}) == 1000


def test_members_that_left_are_forgotten() -> None:
    """One that joins again is met as a new one."""
    schedule = ProbeSchedule(lambda: 0.0)
    assert schedule.due(["a"], lambda _: True, 0.0) == ["a"]
    assert schedule.due([], lambda _: True, 1.0) == []
    assert schedule.due(["a"], lambda _: True, 2.0) == ["a"]


def prober(health: FakeHealth, probe: Callable[[str], Awaitable[bool]], *addresses: str) -> Prober:
    peers = [Peer(address) for address in addresses]
    return Prober(
        lambda: peers, lambda: ("me:1",), health, probe, clock_s=lambda: 0.0, jitter=lambda: 0.0
    )


def test_health_is_told() -> None:
    """What each probe found; this node itself is never asked."""
    health = FakeHealth()
    health.down = {"a:1", "b:1"}

    async def probe(address: str) -> bool:
        return address == "a:1"

    async def scenario() -> None:
        await prober(health, probe, "a:1", "b:1", "me:1").refresh()

    asyncio.run(scenario())
    assert sorted(health.told) == [("a:1", True), ("b:1", False)]
    assert health.down == {"b:1"}


def test_probes_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends at its time limit as a failure, and only a few run at a time."""
    monkeypatch.setattr("proxy.peers.probing.TIMEOUT_S", 0.01)
    health, running, most = FakeHealth(), 0, 0

    async def probe(_address: str) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.Event().wait()
        finally:
            running -= 1
        return True

    async def scenario() -> None:
        await prober(health, probe, *(f"n{number}:1" for number in range(40))).refresh()

    asyncio.run(scenario())
    assert len(health.told) == PROBES_PER_S_MAX
    assert not any(ok for _, ok in health.told)
    assert most == CONCURRENCY


@contextmanager
def answering(answer: bytes) -> Iterator[Callable[[Callable[[str], Awaitable[bool]]], bool]]:
    """Runs a probe against a server that answers every request so."""

    def ask(probe: Callable[[str], Awaitable[bool]]) -> bool:
        async def scenario() -> bool:
            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:")
                writer.write(answer)
                writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            async with server:
                return await probe(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

        return asyncio.run(scenario())

    yield ask


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"", False),
        (b"HTTP/1.1\r\n", False),
        (b"x" * 100_000, False),
    ],
)
def test_readiness(answer: bytes, ready: bool) -> None:
    """Only a 200 is ready; whatever else comes is no error."""
    addresses = Addresses(lambda: 0.0)
    with answering(answer) as ask:
        assert ask(lambda address: is_ready(address, addresses.of)) is ready


def test_nobody_there() -> None:
    """A member without an address, or without a listener, is not ready."""
    addresses = Addresses(lambda: 0.0)
    assert not asyncio.run(is_ready("nowhere:1", addresses.of))
    assert not asyncio.run(is_ready("127.0.0.1:1", addresses.of))

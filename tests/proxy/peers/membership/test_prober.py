"""Probing: whom, how often, and what Health is told."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from lodefs.proxy.peers.membership.addresses import Addresses
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.peers.membership.prober import (
    CONCURRENCY,
    LOOK_MAX,
    PROBES_PER_S_MAX,
    Prober,
    ProbeSchedule,
)
from lodefs.proxy.peers.membership.readiness import ProbeResult, probe
from lodefs.proxy.peers.security.request_signing import HmacAuthenticator


class FakeHealth:
    """Members that are down, and what probes found."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.told: list[tuple[str, bool]] = []
        self.seen: dict[str, float] = {}

    def usable(self, address: str, now_s: float) -> bool:
        return address not in self.down

    def seen_s(self, address: str) -> float:
        return self.seen.get(address, float("-inf"))

    def probed(
        self,
        address: str,
        ok: bool,
        now_s: float,
        fault: Fault = Fault.UNREACHABLE,
        why: str = "",
    ) -> None:
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


def prober(
    health: FakeHealth, probe: Callable[[str], Awaitable[bool]], *addresses: str, now_s: float = 0.0
) -> Prober:
    others = [address for address in addresses if address != "me:1"]

    async def found(address: str) -> ProbeResult:
        return ProbeResult(None if await probe(address) else Fault.UNREACHABLE)

    return Prober(lambda: others, health, found, clock_s=lambda: now_s, jitter=lambda: 0.0)  # type: ignore[arg-type]


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
    monkeypatch.setattr("lodefs.proxy.peers.membership.prober.TIMEOUT_S", 0.01)
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


def test_a_look_probes_those_not_heard_of() -> None:
    """Who was heard of a moment ago is not asked; who fails at once is asked again, and so known
    as down; who asks meanwhile shares the look, and the next one comes a second later."""
    health, asked = FakeHealth(), []
    health.seen = {"a:1": 99.5, "b:1": 90.0}

    async def probe(address: str) -> bool:
        asked.append(address)
        return address == "b:1"

    async def scenario() -> None:
        looking = prober(health, probe, "a:1", "b:1", "c:1", "me:1", now_s=100.0)
        await asyncio.gather(*(looking.look() for _ in range(5)))
        await looking.look()
        await looking.close()

    asyncio.run(scenario())
    assert sorted(asked) == ["b:1", "c:1", "c:1"]
    assert health.told.count(("c:1", False)) == 2


def test_a_look_does_not_wait_for_those_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """All members hang: they are asked together, once, and those not heard of for longest if they
    are many."""
    monkeypatch.setattr("lodefs.proxy.peers.membership.prober.LOOK_TIMEOUT_S", 0.05)
    health, asked = FakeHealth(), []
    health.seen = {f"n{n}:1": float(-n) for n in range(1000)}

    async def probe(address: str) -> bool:
        asked.append(address)
        await asyncio.Event().wait()
        return True

    asyncio.run(prober(health, probe, *health.seen, now_s=10.0).look())
    assert sorted(asked) == sorted(f"n{n}:1" for n in range(1000 - LOOK_MAX, 1000))
    assert len(health.told) == LOOK_MAX


def test_few_descriptors_mean_few_probes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prober that may have three sockets for what is due, and five for a look, has no more."""
    monkeypatch.setattr("lodefs.proxy.peers.membership.prober.TIMEOUT_S", 0.01)
    monkeypatch.setattr("lodefs.proxy.peers.membership.prober.LOOK_TIMEOUT_S", 0.05)
    most = [0, 0]

    async def work(turn: int) -> None:
        running = 0

        async def probe(_address: str) -> ProbeResult:
            nonlocal running
            running += 1
            most[turn] = max(most[turn], running)
            try:
                await asyncio.Event().wait()
            finally:
                running -= 1
            return ProbeResult(None)

        others = [f"n{n}:1" for n in range(40)]
        limited = Prober(
            lambda: others,
            FakeHealth(),  # type: ignore[arg-type]
            probe,
            jitter=lambda: 0.0,
            probes_max=3,
            looks_max=5,
        )
        await (limited.look() if turn else limited.refresh())

    for turn in (0, 1):
        asyncio.run(work(turn))
    assert most == [3, 5]


class NoSignature(Exception):
    """The secret cannot be read."""


def test_a_probe_that_fails_inside_leaves_the_others_attended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error of this node in one probe, as in signing it, is in the log; all other members are
    probed, and their probes waited for, when due as well as in a look."""
    caplog.set_level(logging.ERROR, "lodefs.peers")

    async def work(look: bool) -> list[tuple[str, bool]]:
        health = FakeHealth()
        failed = asyncio.Event()

        async def probe(address: str) -> bool:
            if address == "a:1":
                failed.set()
                raise NoSignature("no secret")
            return await failed.wait()

        probing = prober(health, probe, "a:1", "b:1", "c:1", now_s=10.0)
        await (probing.look() if look else probing.refresh())
        return sorted(health.told)

    for look in (False, True):
        caplog.clear()
        assert asyncio.run(work(look)) == [("b:1", True), ("c:1", True)]
        (told,) = caplog.records
        assert "a:1" in told.getMessage()
        assert told.exc_info is not None and told.exc_info[0] is NoSignature


READYZ, HELLO = b"GET /readyz HTTP/1.1\r\n", b"GET /peers/hello HTTP/1.1\r\n"
OK, REFUSAL = b"HTTP/1.1 200 OK\r\n\r\n", b'{"error":"Denied","message":"another secret"}'


def probed(readyz: bytes, hello: bytes = OK) -> ProbeResult:
    """What a probe finds of a server that answers so."""

    async def scenario() -> ProbeResult:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"\r\nHost: 127.0.0.1:" in head
            assert head.startswith((READYZ, HELLO))
            assert (b"Authorization: " in head) == head.startswith(HELLO)
            writer.write(readyz if head.startswith(READYZ) else hello)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await probe(address, Addresses(lambda: 0.0).of, SIGNING)

    return asyncio.run(scenario())


SIGNING = HmacAuthenticator(lambda: [b"secret"], lambda: ["me:1"])


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (OK, None),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Fault.FAILING),
        (b"", Fault.UNREACHABLE),
        (b"HTTP/1.1\r\n", Fault.FAILING),
        (b"x" * 100_000, Fault.FAILING),
    ],
)
def test_readiness(answer: bytes, fault: Fault | None) -> None:
    """Only a 200 is ready; whatever else comes is no error."""
    assert probed(answer).fault == fault


@pytest.mark.parametrize(
    ("hello", "fault"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", Fault.FAILING),
        (b"HTTP/1.1 403 Forbidden\r\nX: y\r\n\r\n" + REFUSAL, Fault.REFUSING),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", Fault.REFUSING),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Fault.FAILING),
    ],
)
def test_trust(hello: bytes, fault: Fault | None) -> None:
    """A member that is ready may still refuse this node, and says why."""
    found = probed(OK, hello)
    assert found.fault == fault
    if REFUSAL in hello:
        assert found.why == "another secret"


def test_nobody_there() -> None:
    """A member without an address, or without a listener, is not ready, and the reason is told."""
    addresses = Addresses(lambda: 0.0)
    nowhere = asyncio.run(probe("nowhere:1", addresses.of, SIGNING))
    assert nowhere == ProbeResult(Fault.UNREACHABLE, "its name has no address")
    refused = asyncio.run(probe("127.0.0.1:1", addresses.of, SIGNING))
    assert refused.fault is Fault.UNREACHABLE
    assert refused.why == "Connection refused"

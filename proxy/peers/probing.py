"""Probing: asks ``/readyz`` of members now and then, so that those who failed are found again.

Health by use comes first: a member that serves needs few probes. The schedule decides when whom,
without clock or input/output.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from proxy.peers.peer import Peer

log = logging.getLogger("lodefs.peers")

TICK_S = 1.0
TIMEOUT_S = 2.0
CONCURRENCY = 16
PROBES_PER_S_MAX = 20
CALM_S = 60.0  # between probes of a member that is usable
CALM_PROBES_PER_S = 5  # of all usable members together: 1,000 nodes are probed every 200 s
ANXIOUS_S, ANXIOUS_S_MAX = 3.0, 60.0  # between probes of one that is not; doubles


class HealthBook(Protocol):
    """What probing needs of Health."""

    def usable(self, address: str, now_s: float) -> bool:
        """Whether this member may be asked for bytes."""
        ...

    def probed(self, address: str, ok: bool, now_s: float) -> None:  # noqa: FBT001
        """A probe was answered well, or not."""
        ...


class ProbeSchedule:
    """When whom to probe. Pure: the time is passed in; ``jitter`` gives numbers in [0, 1)."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._next_s: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}  # of those that are not usable

    def due(
        self, addresses: Iterable[str], usable: Callable[[str], bool], now_s: float
    ) -> list[str]:
        """Whom to probe now, the longest overdue first; each of them counts as probed.

        New members are met within a minute or so, in no order.
        """
        known = list(addresses)
        self._forget(set(known))
        calm_s = max(CALM_S, len(known) / CALM_PROBES_PER_S)
        found = []
        for address in known:
            if usable(address):
                self._wait_s.pop(address, None)
                self._next_s.setdefault(address, now_s + self._jitter() * calm_s)
            elif address not in self._wait_s:  # it failed since we looked last
                self._wait_s[address] = ANXIOUS_S
                soon_s = now_s + self._jitter() * ANXIOUS_S
                self._next_s[address] = min(self._next_s.get(address, soon_s), soon_s)
            if self._next_s[address] <= now_s:
                found.append(address)
        found.sort(key=self._next_s.__getitem__)
        for address in found[:PROBES_PER_S_MAX]:
            wait_s = self._wait_s.get(address)
            if wait_s is not None:
                self._wait_s[address] = min(2 * wait_s, ANXIOUS_S_MAX)
            spread = 0.5 + self._jitter()
            self._next_s[address] = now_s + (calm_s if wait_s is None else wait_s) * spread
        return found[:PROBES_PER_S_MAX]

    def _forget(self, known: Collection[str]) -> None:
        for gone in self._next_s.keys() - known:
            del self._next_s[gone]
            self._wait_s.pop(gone, None)


class Prober:
    """Probes members as the schedule says, and tells Health."""

    def __init__(
        self,
        members: Callable[[], Iterable[Peer]],
        own_addresses: Callable[[], Collection[str]],
        health: HealthBook,
        probe: Callable[[str], Awaitable[bool]],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``probe``: whether the member at an address is ready; it may take its time.
        ``clock_s``: the clock that Health is told, too."""
        self._members = members
        self._own_addresses = own_addresses
        self._health = health
        self._probe = probe
        self._clock_s = clock_s
        self._schedule = ProbeSchedule(jitter)
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def refresh(self) -> float:
        """Probe whoever is due; when to look next, in seconds. For ``membership.follow``."""
        now_s = self._clock_s()
        own = self._own_addresses()
        others = [peer.address for peer in self._members() if peer.address not in own]
        due = self._schedule.due(others, lambda one: self._health.usable(one, now_s), now_s)
        await asyncio.gather(*map(self._one, due))
        return TICK_S

    async def _one(self, address: str) -> None:
        async with self._slots:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    ok = await self._probe(address)
            except TimeoutError:
                ok = False
        self._health.probed(address, ok, self._clock_s())

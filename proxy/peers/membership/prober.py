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

from lodefs.proxy.peers.membership.peer_health import PeerHealth
from lodefs.proxy.peers.membership.peer_standing import Fault
from lodefs.proxy.peers.membership.readiness import ProbeResult

log = logging.getLogger("lodefs.peers")

TICK_S = 1.0
TIMEOUT_S = 2.0
CONCURRENCY = 16
PROBES_PER_S_MAX = 20
CALM_S = 60.0  # between probes of a member that is usable
CALM_PROBES_PER_S = 5  # of all usable members together: 1,000 nodes are probed every 200 s
LOOK_AFTER_S = 1.0  # somebody asks for /status: those without news for so long are probed
LOOK_TIMEOUT_S = 1.0
LOOK_MAX = 128  # members at once; of more, those without news for longest
ANXIOUS_S, ANXIOUS_S_MAX = 3.0, 60.0  # between probes of one that is not; doubles


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
    """Probes members as the schedule says, and reports to PeerHealth."""

    def __init__(
        self,
        others: Callable[[], Collection[str]],
        health: PeerHealth,
        probe: Callable[[str], Awaitable[ProbeResult]],
        *,
        clock_s: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        probes_max: int = CONCURRENCY,
        looks_max: int = LOOK_MAX,
    ) -> None:
        """``others``: the addresses of all members but this node. ``probe``: how the member at an
        address is; it may take its time. ``clock_s``: the clock of ``health``. ``probes_max``: at
        once, of those that are due; ``looks_max``: of a look besides."""
        self._others = others
        self._health = health
        self._probe = probe
        self._clock_s = clock_s
        self._schedule = ProbeSchedule(jitter)
        self._slots = asyncio.Semaphore(probes_max)
        self._looks_max = looks_max
        self._looking: asyncio.Task[None] | None = None
        self._looked_s = float("-inf")

    async def refresh(self) -> float:
        """Probe the members that are due; when to look next, in seconds. For
        ``membership.follow``."""
        now_s = self._clock_s()
        others = self._others()
        due = self._schedule.due(others, lambda one: self._health.usable(one, now_s), now_s)
        await asyncio.gather(*map(self._one, due))
        return TICK_S

    async def look(self) -> None:
        """Probe members without news for a while, because somebody asks for /status.

        Returns within about LOOK_TIMEOUT_S; those who ask at the same time share one look.
        """
        if self._looking is None:
            if self._clock_s() - self._looked_s < LOOK_TIMEOUT_S:
                return
            self._looking = asyncio.create_task(self._look())
        await asyncio.wait([self._looking])

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        try:
            seen_s = {one: self._health.seen_s(one) for one in self._others()}
            since_s = self._clock_s() - LOOK_AFTER_S
            unheard = sorted(one for one in seen_s if seen_s[one] < since_s)
            unheard.sort(key=seen_s.__getitem__)
            await asyncio.gather(*(self._twice(one) for one in unheard[: self._looks_max]))
        finally:
            self._looking, self._looked_s = None, self._clock_s()

    async def _twice(self, address: str) -> None:
        """A member that fails at once is asked again, so that one that is gone counts as down. One
        that is slow may only be busy."""
        begin_s = time.monotonic()
        ok = await self._probed(address, LOOK_TIMEOUT_S)
        if not ok and time.monotonic() - begin_s < LOOK_TIMEOUT_S / 2:
            await self._probed(address, LOOK_TIMEOUT_S / 2)

    async def _one(self, address: str) -> None:
        async with self._slots:
            await self._probed(address, TIMEOUT_S)

    async def _probed(self, address: str, timeout_s: float) -> bool:
        """Whether nothing speaks against the member."""
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._probe(address)
        except TimeoutError:
            found = ProbeResult(Fault.UNREACHABLE, f"no answer to a probe within {timeout_s:g} s")
        except Exception:  # this node's own: nothing is known of the member
            log.exception("probing peer %s failed", address)
            return True
        ok, now_s = found.fault is None, self._clock_s()
        self._health.probed(address, ok, now_s, found.fault or Fault.UNREACHABLE, found.why)
        return ok

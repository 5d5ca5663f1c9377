"""Probing: asks members for ``/readyz`` from time to time, so that recovered ones are found.

Requests show health, too: a member that serves needs few probes. The schedule decides when to probe
which member, without a clock or I/O.
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
CALM_PROBES_PER_S = 5  # for all usable members together: each of 1,000 nodes every 200 s
LOOK_AFTER_S = 1.0  # for /status, members without news for this long are probed
LOOK_TIMEOUT_S = 1.0
LOOK_MAX = 128  # members at once; of more, those without news for longest
ANXIOUS_S, ANXIOUS_S_MAX = 3.0, 60.0  # between probes of one that is not usable; doubles


class ProbeSchedule:
    """The times at which to probe each member. Pure: callers pass the time; ``jitter`` returns
    numbers in [0, 1)."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._next_s: dict[str, float] = {}
        self._wait_s: dict[str, float] = {}  # for members that are not usable

    def due(
        self, addresses: Iterable[str], usable: Callable[[str], bool], now_s: float
    ) -> list[str]:
        """Returns the members to probe now, the longest overdue first; each counts as probed.

        New members are probed within about a minute, in no particular order.
        """
        known = list(addresses)
        self._forget(set(known))
        calm_s = max(CALM_S, len(known) / CALM_PROBES_PER_S)
        found = []
        for address in known:
            if usable(address):
                self._wait_s.pop(address, None)
                self._next_s.setdefault(address, now_s + self._jitter() * calm_s)
            elif address not in self._wait_s:  # it has failed since the last call
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
    """Probes members by the schedule, and reports the results to PeerHealth."""

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
        """``others`` returns the addresses of all members except this node. ``probe`` returns the
        state of the member at an address; it may take its time. ``clock_s`` is the clock of
        ``health``. ``probes_max`` limits concurrent probes of due members; ``looks_max`` those for
        /status."""
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
        """Probes the members that are due. Returns the seconds until the next time, for
        ``membership.follow``."""
        now_s = self._clock_s()
        others = self._others()
        due = self._schedule.due(others, lambda one: self._health.usable(one, now_s), now_s)
        await asyncio.gather(*map(self._one, due))
        return TICK_S

    async def look(self) -> None:
        """Probes members without recent news, for /status.

        Returns within about LOOK_TIMEOUT_S; concurrent callers share one round.
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
        """Probes twice if the first probe fails at once, so that a member that is gone counts as
        down. A slow one may only be busy."""
        begin_s = time.monotonic()
        ok = await self._probed(address, LOOK_TIMEOUT_S)
        if not ok and time.monotonic() - begin_s < LOOK_TIMEOUT_S / 2:
            await self._probed(address, LOOK_TIMEOUT_S / 2)

    async def _one(self, address: str) -> None:
        async with self._slots:
            await self._probed(address, TIMEOUT_S)

    async def _probed(self, address: str, timeout_s: float) -> bool:
        """Probes a member. Returns whether nothing is wrong."""
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._probe(address)
        except TimeoutError:
            found = ProbeResult(Fault.UNREACHABLE, f"no answer to a probe within {timeout_s:g} s")
        except Exception:  # a fault of this node: nothing is known about the member
            log.exception("probing peer %s failed", address)
            return True
        ok, now_s = found.fault is None, self._clock_s()
        self._health.probed(address, ok, now_s, found.fault or Fault.UNREACHABLE, found.why)
        return ok

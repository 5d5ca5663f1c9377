"""S3 as a cluster sees it: a latency, a speed for each connection, a speed for all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from loadtests.simulation.clock import Clock
from loadtests.simulation.network import Flow, Network, Port


class Get:
    """One read of a unit: waiting for its turn, or flowing."""

    __slots__ = ("began_s", "down", "ended", "flow", "on_began", "on_end", "size_bytes")

    def __init__(
        self,
        down: Port,
        size_bytes: float,
        on_began: Callable[[], None],
        on_end: Callable[[], None],
    ) -> None:
        self.down = down
        self.size_bytes = size_bytes
        self.on_began = on_began
        self.on_end = on_end
        self.flow: Flow | None = None
        self.began_s = 0.0
        self.ended = False


class Store:
    """Serves as many reads at once as its speed allows; the others wait in order."""

    def __init__(
        self,
        clock: Clock,
        network: Network,
        *,
        bytes_per_s: float,
        connection_bytes_per_s: float,
        latency_s: float,
    ) -> None:
        self._clock = clock
        self._network = network
        self._gets_max = max(1, int(bytes_per_s / connection_bytes_per_s))
        self._connection_bytes_per_s = connection_bytes_per_s
        self._latency_s = latency_s
        self._running = 0
        self._waiting: deque[Get] = deque()
        self.egress_bytes = 0.0

    def get(
        self,
        down: Port,
        size_bytes: float,
        on_began: Callable[[], None],
        on_end: Callable[[], None],
    ) -> Get:
        """Reads so many bytes through a node's port."""
        get = Get(down, size_bytes, on_began, on_end)
        self._waiting.append(get)
        self._start_waiting()
        return get

    def cancel(self, get: Get) -> None:
        """Breaks the read off; what was sent was sent."""
        if get.ended:
            return
        get.ended = True
        if get.flow is not None:
            self._network.stop(get.flow)
            self._count(get)

    def _start_waiting(self) -> None:
        while self._waiting and self._running < self._gets_max:
            get = self._waiting.popleft()
            if not get.ended:
                self._running += 1
                self._clock.after(self._latency_s, self._begin, get)

    def _begin(self, get: Get) -> None:
        if get.ended:
            self._running -= 1
            self._start_waiting()
            return
        get.flow = self._network.start(
            None,
            get.down,
            get.size_bytes,
            lambda: self._end(get),
            limit=self._connection_bytes_per_s,
        )
        get.on_began()

    def _end(self, get: Get) -> None:
        get.ended = True
        self._count(get)
        get.on_end()

    def _count(self, get: Get) -> None:
        assert get.flow is not None
        self.egress_bytes += get.size_bytes - get.flow.rest_bytes
        self._running -= 1
        self._start_waiting()

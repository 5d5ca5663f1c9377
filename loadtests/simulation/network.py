"""Bytes in motion: each direction of a node is a port that its flows share evenly.

A flow runs at the lesser of its shares at both ends and its own limit. What a flow cannot use is
not given to others (max-min fairness would give it): the model is slower than the real network,
never faster. Ports are full duplex; the fabric between them has no limit.
"""

from __future__ import annotations

from collections.abc import Callable

from loadtests.simulation.clock import Clock

REST_BYTES = 1.0  # less than this is nothing: times are floats


class Port:
    """One direction of one node."""

    __slots__ = ("bytes_per_s", "flows", "sent_bytes", "share")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.flows: dict[Flow, None] = {}
        self.share = bytes_per_s
        self.sent_bytes = 0.0


class Flow:
    """Bytes on their way from a port (None: from S3) to another."""

    __slots__ = (
        "down", "due_s", "ended", "limit", "on_end", "rate", "rest_bytes", "settled_s",
        "size_bytes", "up",
    )  # fmt: skip

    def __init__(
        self,
        up: Port | None,
        down: Port,
        size_bytes: float,
        on_end: Callable[[], None],
        limit: float,
    ) -> None:
        self.up = up
        self.down = down
        self.size_bytes = size_bytes
        self.rest_bytes = size_bytes
        self.limit = limit
        self.on_end = on_end
        self.rate = 0.0
        self.settled_s = 0.0
        self.due_s = float("inf")
        self.ended = False


class Network:
    """Moves flows on a clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def start(
        self,
        up: Port | None,
        down: Port,
        size_bytes: float,
        on_end: Callable[[], None],
        *,
        limit: float = float("inf"),
    ) -> Flow:
        """Starts a flow; ``on_end`` is called when its last byte is there."""
        flow = Flow(up, down, size_bytes, on_end, limit)
        flow.settled_s = self._clock.now_s
        down.flows[flow] = None
        if up is not None:
            up.flows[flow] = None
            self._share(up)
        self._share(down)
        return flow

    def rest_bytes(self, flow: Flow) -> float:
        """What of it is still to come."""
        return flow.rest_bytes - flow.rate * (self._clock.now_s - flow.settled_s)

    def came_bytes(self, flow: Flow) -> int:
        """What of it has come."""
        return int(flow.size_bytes - self.rest_bytes(flow))

    def stop(self, flow: Flow) -> None:
        """Takes the flow out; ``on_end`` is not called."""
        if flow.ended:
            return
        flow.ended = True
        flow.rest_bytes = self.rest_bytes(flow)
        flow.rate = 0.0
        flow.settled_s = self._clock.now_s
        del flow.down.flows[flow]
        self._share(flow.down)
        if flow.up is not None:
            flow.up.sent_bytes += flow.size_bytes - flow.rest_bytes
            del flow.up.flows[flow]
            self._share(flow.up)

    def _share(self, port: Port) -> None:
        """The number of the port's flows has changed."""
        flows = port.flows
        share = port.share = port.bytes_per_s / (len(flows) or 1)
        now_s = self._clock.now_s
        for flow in flows:
            rate = min(flow.limit, share)
            other = flow.down if flow.up is port else flow.up
            if other is not None and other.share < rate:
                rate = other.share
            if rate == flow.rate:
                continue
            rest = flow.rest_bytes - flow.rate * (now_s - flow.settled_s)
            flow.rest_bytes = rest
            flow.settled_s = now_s
            flow.rate = rate
            due_s = now_s + rest / rate
            if due_s < flow.due_s:  # a later end is noticed at the earlier one
                flow.due_s = due_s
                self._clock.at(due_s, self._due, flow, due_s)

    def _due(self, flow: Flow, due_s: float) -> None:
        if flow.ended or flow.due_s != due_s:
            return
        rest = self.rest_bytes(flow)
        if rest > REST_BYTES:
            flow.due_s = self._clock.now_s + rest / flow.rate
            self._clock.at(flow.due_s, self._due, flow, flow.due_s)
            return
        self.stop(flow)
        flow.on_end()

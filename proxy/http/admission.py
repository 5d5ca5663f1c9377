"""Admission of clients to an endpoint: how many may be connected, and which to cut when it is full.

Each endpoint has its own limit, so that the clients of one never displace those of another. A
client without any authorized request is the first to be cut. If all are busy, a few more are
accepted as spares, so that diagnostics still get through and others are told that there is no room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

SPARES_MAX = 4  # for each endpoint


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits for the clients of each endpoint. ``first_timeout_s`` is how long a client on another
    machine may be idle before its first authorized request. ``sockets_max`` limits the descriptors
    for connections of all endpoints together; None is no limit."""

    connections_max: int = 4096
    streams_max: int = 512
    first_timeout_s: float = 10.0
    idle_timeout_s: float = 120.0
    write_timeout_s: float = 60.0
    sockets_max: int | None = None


class Client(Protocol):
    """One connection."""

    @property
    def may_go(self) -> bool:
        """Whether none of its requests is in progress."""

    def give_way(self) -> None:
        """Ends the connection now."""


C = TypeVar("C", bound=Client)


class Admission(Generic[C]):
    """The connections of one endpoint, each group ordered by last use."""

    def __init__(self, connections_max: int, spares_max: int = 0) -> None:
        self.connections_max = connections_max
        self.spares_max = spares_max
        self._unauthorized: OrderedDict[C, None] = OrderedDict()
        # Clients that had an authorized request
        self._authorized: OrderedDict[C, None] = OrderedDict()
        self._spares: OrderedDict[C, None] = OrderedDict()

    def __len__(self) -> int:
        return self._room_taken + len(self._spares)

    @property
    def _room_taken(self) -> int:
        return len(self._unauthorized) + len(self._authorized)

    def __contains__(self, client: object) -> bool:
        return any(client in group for group in self._groups)

    @property
    def _groups(self) -> tuple[OrderedDict[C, None], ...]:
        return self._unauthorized, self._authorized, self._spares

    def __iter__(self) -> Iterator[C]:
        return iter([client for group in self._groups for client in group])

    def make_room(self) -> bool:
        """Returns whether one more may connect, perhaps as a spare. If not, it cuts the client that
        was idle for longest: unauthorized clients first, spares last."""
        if self._room_taken < self.connections_max:
            return True
        if _cut_idle(self._unauthorized) or _cut_idle(self._authorized):
            return True
        return len(self._spares) < self.spares_max or _cut_idle(self._spares)

    def add(self, client: C) -> bool:
        """Adds a connection for which there is room. Returns whether it is a spare."""
        is_spare = self._room_taken >= self.connections_max
        (self._spares if is_spare else self._unauthorized)[client] = None
        return is_spare

    def authorize(self, client: C) -> None:
        if client in self._unauthorized:
            del self._unauthorized[client]
            self._authorized[client] = None

    def is_authorized(self, client: C) -> bool:
        return client in self._authorized

    def used(self, client: C) -> None:
        for group in self._groups:
            if client in group:
                group.move_to_end(client)

    def forget(self, client: C) -> None:
        for group in self._groups:
            group.pop(client, None)


def _cut_idle(group: OrderedDict[C, None]) -> bool:
    """Cuts the client in a group that was idle for longest. Returns whether there was one."""
    for client in group:
        if client.may_go:
            del group[client]
            client.give_way()
            return True
    return False


def connections_by_endpoint(
    connections_max: int, are_local: list[bool], sockets_max: int | None
) -> list[int]:
    """Returns how many connections each endpoint may have, at most ``sockets_max`` together (None
    is no limit). If these are few, local endpoints get half of them."""
    if sockets_max is None:
        return [connections_max] * len(are_local)
    room = sockets_max
    local = sum(are_local)
    others = len(are_local) - local
    of_local = of_other = connections_max
    if connections_max * len(are_local) > room:
        of_local = min(connections_max, room // (2 if others else 1) // max(1, local))
        of_other = min(connections_max, (room - of_local * local) // max(1, others))
    return [max(1, of_local if is_local else of_other) for is_local in are_local]

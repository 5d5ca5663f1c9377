"""Who may stay connected at a door: how many clients, and which of them goes when all is taken.

Each door has room of its own, so that what comes through one never takes it from another. A client
that showed no right yet to anything is the first to go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Limits:
    """What the clients of each door may take. ``first_timeout_s``: how long a client that is not
    on this machine may be idle before its first request that is allowed. ``sockets_max``: how many
    descriptors the connections of all doors may take together; None is no limit."""

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
        """Whether nothing that it asked for is under way."""
        ...

    def give_way(self) -> None:
        """End it now."""
        ...


C = TypeVar("C", bound=Client)


class Admission(Generic[C]):
    """The connections of one door, each group in the order in which they were used last."""

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self._strangers: OrderedDict[C, None] = OrderedDict()
        self._known: OrderedDict[C, None] = OrderedDict()  # had a request that was allowed

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def __contains__(self, client: object) -> bool:
        return client in self._known or client in self._strangers

    def __iter__(self) -> Iterator[C]:
        """All of them, as they are now."""
        return iter([*self._strangers, *self._known])

    def make_room(self) -> bool:
        """Whether one more may come. Where all is taken, the one that is idle for longest is cut:
        one that is not known where there is one."""
        if len(self) < self.connections_max:
            return True
        for group in (self._strangers, self._known):
            for client in group:
                if client.may_go:
                    del group[client]
                    client.give_way()
                    return True
        return False

    def add(self, client: C) -> None:
        """A new connection."""
        self._strangers[client] = None

    def know(self, client: C) -> None:
        """It asked for something that it may have."""
        if client in self._strangers:
            del self._strangers[client]
            self._known[client] = None

    def is_known(self, client: C) -> bool:
        """Whether ``know`` was called for it."""
        return client in self._known

    def used(self, client: C) -> None:
        """A request of it was answered."""
        group = self._known if client in self._known else self._strangers
        if client in group:
            group.move_to_end(client)

    def forget(self, client: C) -> None:
        """It has ended."""
        self._strangers.pop(client, None)
        self._known.pop(client, None)


def connections_by_door(
    connections_max: int, are_local: list[bool], sockets_max: int | None
) -> list[int]:
    """How many connections each door may have, at most ``sockets_max`` in all (None is no limit);
    if these are few, half of them are for local doors."""
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

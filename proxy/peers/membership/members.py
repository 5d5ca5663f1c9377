"""Membership: which nodes the cluster has, from what a site has already.

Implementations: a fixed list (here), a watched file (file_members.py), DNS (dns_members.py). All
pass tests/proxy/peers/membership/test_members.py. Who is a member says nothing of who is well: that
is Health.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.proxy.peers.membership.peer import Peer

log = logging.getLogger("lodefs.peers")

MEMBERS_MAX = 20_000  # more is a mistake in the list, not a cluster
RETRY_S = 10.0
_NAMED_MAX = 5  # in one line of the log


class Membership(Protocol):
    """The nodes that are known."""

    def members(self) -> tuple[Peer, ...]:
        """All nodes known now, this one included, in the order of their addresses, each once.

        For any thread; never blocks, never raises. The same tuple until something changes.
        """
        ...

    async def refresh(self) -> float:
        """Look again; the seconds after which to look next (infinite: never). On the event loop.

        Never raises for what a site can get wrong: the last good members stay, and a line in the
        log says why, once until it is good again.
        """
        ...


class StaticMembers:
    """A fixed list."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self._members = distinct(peers)

    def members(self) -> tuple[Peer, ...]:
        """As of Membership."""
        return self._members

    async def refresh(self) -> float:
        """As of Membership."""
        return math.inf


def distinct(peers: Iterable[Peer]) -> tuple[Peer, ...]:
    """Members in the order of their addresses; of one that is named twice, the heaviest.

    Raises: InvalidInput if they are too many.
    """
    found = {peer.address: peer for peer in sorted(peers)}
    if len(found) > MEMBERS_MAX:
        raise InvalidInput(f"{len(found)} members are more than {MEMBERS_MAX}")
    return tuple(found.values())


def log_change(before: tuple[Peer, ...], after: tuple[Peer, ...]) -> None:
    """One line on who joined and who left."""
    joined = sorted({peer.address for peer in after} - {peer.address for peer in before})
    left = sorted({peer.address for peer in before} - {peer.address for peer in after})
    parts = [f"{len(after)} nodes in the cluster"]
    parts += [
        f"{word}: {named(some)}" for word, some in (("joined", joined), ("left", left)) if some
    ]
    log.info("%s", "; ".join(parts))


def named(addresses: list[str]) -> str:
    """A few addresses by name, and how many more there are."""
    rest = len(addresses) - _NAMED_MAX
    return ", ".join(addresses[:_NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


async def look(refresh: Callable[[], Awaitable[float]]) -> float:
    """What ``refresh`` says; a short while if it fails, which is logged. For whatever must go
    on being looked at."""
    try:
        return await refresh()
    except LodefsError as error:
        log.warning("not looked at for now: %s", error)
    except Exception:
        log.exception("looking failed")
    return RETRY_S


async def follow(refresh: Callable[[], Awaitable[float]]) -> None:
    """Calls ``refresh`` for as long as the task lives, whenever its last result (seconds) is over.

    A little unevenly, so that not all nodes do so at once. Returns when that is infinite.
    """
    while True:
        wait_s = await look(refresh)
        if math.isinf(wait_s):
            return
        await asyncio.sleep(wait_s * random.uniform(0.9, 1.1))

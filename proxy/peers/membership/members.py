"""Membership: which nodes the cluster has, from what a site has already.

Implementations: a fixed list and a watched file (here), DNS (dns_members.py). All pass
tests/proxy/peers/membership/test_members.py. Who is a member says nothing of who is well: that is
Health.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.system.watched_files import WatchedFiles
from lodefs.proxy.peers.membership.peer import Peer, parse_peer, parse_weight
from lodefs.proxy.runtime.thread_pools import Pool

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

    async def refresh(self) -> float:
        """Look again; the seconds after which to look next (infinite: never). On the event loop.

        Never raises for what a site can get wrong: the last good members stay, and a line in the
        log says why, once until it is good again.
        """


class StaticMembers:
    """A fixed list."""

    def __init__(self, peers: Iterable[Peer]) -> None:
        self._members = distinct(peers)

    def members(self) -> tuple[Peer, ...]:
        return self._members

    async def refresh(self) -> float:
        return math.inf


def distinct(peers: Iterable[Peer]) -> tuple[Peer, ...]:
    """Members in the order of their addresses; of one that is named twice, the heaviest. Raises:
    InvalidInput if they are too many."""
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


REFRESH_S = 2.0
FILE_BYTES_MAX = 16 << 20


class _TargetGroup(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


class FileMembers:
    """The members in a file, which is looked at every two seconds. It has the shape of Prometheus'
    file_sd, as JSON: ``[{"targets": ["10.0.0.1:7441", "node2"], "labels": {"weight": "2"}}, ...]``
    (https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config).
    Other labels are left alone."""

    def __init__(self, path: Path, disk: Pool) -> None:
        """Reads nothing yet: the first refresh does. ``disk`` runs what blocks."""
        none: tuple[Peer, ...] = ()
        self._file = WatchedFiles([path], lambda: read_members(path), log, initial=none)
        self._disk = disk

    def members(self) -> tuple[Peer, ...]:
        return self._file.value

    async def refresh(self) -> float:
        before = self._file.value
        if await self._disk.run(self._file.refresh) and self._file.value != before:
            log_change(before, self._file.value)
        return REFRESH_S


def read_members(path: Path) -> tuple[Peer, ...]:
    """The members that a file lists. InvalidInput, which names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"peers_file {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidInput(f"peers_file {path}: is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return distinct(_peers(from_json(data, list[_TargetGroup])))
    except InvalidInput as error:
        raise InvalidInput(f"peers_file {path}: {error}") from error


def _peers(groups: list[_TargetGroup]) -> Iterator[Peer]:
    for group in groups:
        label = group.labels.get("weight")
        for target in group.targets:
            peer = parse_peer(target)
            yield peer if label is None else Peer(peer.address, parse_weight(label, target))

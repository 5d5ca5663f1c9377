"""Membership: the nodes of the cluster, from sources that a site has already.

Implementations: a fixed list and a watched file (here), DNS (dns_members.py). All pass
tests/proxy/peers/membership/test_members.py. Membership says nothing about the health of nodes:
PeerHealth does.
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

MEMBERS_MAX = 20_000  # a longer list is a mistake
RETRY_S = 10.0
_NAMED_MAX = 5  # in one line of the log


class Membership(Protocol):
    """The known nodes."""

    def members(self) -> tuple[Peer, ...]:
        """Returns all known nodes with this one, ordered by address, each once.

        For any thread; never blocks, never raises. It returns the same tuple until something
        changes.
        """

    async def refresh(self) -> float:
        """Updates the members. Returns the seconds until the next update (infinite: never). On the
        event loop.

        Errors of the site's configuration are not raised: the last good members stay, and the log
        says why, once until it is good again.
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
    """Returns members ordered by address; of duplicates the heaviest. Raises: InvalidInput if there
    are too many."""
    found = {peer.address: peer for peer in sorted(peers)}
    if len(found) > MEMBERS_MAX:
        raise InvalidInput(f"{len(found)} members exceed the limit of {MEMBERS_MAX}")
    return tuple(found.values())


def log_change(before: tuple[Peer, ...], after: tuple[Peer, ...]) -> None:
    """Logs one line about the nodes that joined and left."""
    joined = sorted({peer.address for peer in after} - {peer.address for peer in before})
    left = sorted({peer.address for peer in before} - {peer.address for peer in after})
    parts = [f"{len(after)} nodes in the cluster"]
    parts += [
        f"{word}: {named(some)}" for word, some in (("joined", joined), ("left", left)) if some
    ]
    log.info("%s", "; ".join(parts))


def named(addresses: list[str]) -> str:
    """Returns a few addresses by name, and how many more there are."""
    rest = len(addresses) - _NAMED_MAX
    return ", ".join(addresses[:_NAMED_MAX]) + (f" and {rest} more" if rest > 0 else "")


async def look(refresh: Callable[[], Awaitable[float]]) -> float:
    """Returns the result of ``refresh``; a short time if it fails, which is logged. For anything
    that must keep being refreshed."""
    try:
        return await refresh()
    except LodefsError as error:
        log.warning("a refresh failed for now: %s", error)
    except Exception:
        log.exception("a refresh failed")
    return RETRY_S


async def follow(refresh: Callable[[], Awaitable[float]]) -> None:
    """Calls ``refresh`` again and again during the life of the task, after the seconds that it
    returned.

    The times vary a little, so that not all nodes do so at once. Returns when the time is infinite.
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
    """The members in a file, which is checked every two seconds. It has the format of Prometheus'
    file_sd, as JSON: ``[{"targets": ["10.0.0.1:7441", "node2"], "labels": {"weight": "2"}}, ...]``
    (https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config).
    Other labels are ignored."""

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
    """Returns the members in a file. Raises: InvalidInput, which names the file and the problem."""
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

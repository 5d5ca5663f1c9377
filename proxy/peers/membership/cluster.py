"""Cluster: the members, where they are, and which of them this node is, kept up to date."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from lodefs.proxy.peers.membership.addresses import Addresses, SocketAddress
from lodefs.proxy.peers.membership.dns_members import DnsMembers
from lodefs.proxy.peers.membership.dns_name import DnsName
from lodefs.proxy.peers.membership.file_members import FileMembers
from lodefs.proxy.peers.membership.members import Membership, StaticMembers, follow, look
from lodefs.proxy.peers.membership.peer import Peer
from lodefs.proxy.peers.membership.self_detection import SelfDetector
from lodefs.proxy.runtime.thread_pools import Pool

log = logging.getLogger("lodefs.peers")

LOOK_EVERY_S = 2.0
LOOK_AGAIN_S = 30.0  # for this node itself, if the members did not change
START_TIMEOUT_S = 10.0


def membership(
    disk: Pool,
    *,
    peers: Sequence[Peer] = (),
    peers_file: Path | None = None,
    peers_dns: DnsName | None = None,
) -> Membership:
    """The membership that the settings ask for; an empty one if they ask for none."""
    if peers_file is not None:
        return FileMembers(peers_file, disk)
    if peers_dns is not None:
        return DnsMembers(peers_dns, disk)
    return StaticMembers(peers)


class Cluster:
    """What is known of the members. Methods are for any thread and never block, but for the
    awaitable ones, which belong to the event loop."""

    def __init__(
        self, membership: Membership, addresses: Addresses, oneself: SelfDetector, disk: Pool
    ) -> None:
        """Takes ``addresses`` over, and closes them. ``disk`` runs what blocks a little."""
        self._membership = membership
        self._addresses = addresses
        self._oneself = oneself
        self._disk = disk
        self._looked_at: tuple[Peer, ...] = ()
        self._looked_s = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def members(self) -> tuple[Peer, ...]:
        """As of Membership."""
        return self._membership.members()

    def endpoints(self, address: str) -> tuple[SocketAddress, ...]:
        """Where the member at ``address`` is; () while its name has no address. InvalidInput for
        what is no address of a node."""
        return self._addresses.of(address)

    def own_addresses(self) -> tuple[str, ...]:
        """The members that this node is: what it calls itself, then other names that lead here."""
        return self._oneself.addresses()

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Look once, then go on looking until ``close``.

        Returns after ``timeout_s`` at the latest: a node without members serves too.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await look(self._membership.refresh)
                await look(self.refresh)
        except TimeoutError:
            log.warning("the members are not known after %g s; going on without", timeout_s)
        both = (self._membership.refresh, self.refresh)
        self._tasks = [asyncio.create_task(follow(refresh)) for refresh in both]

    async def refresh(self) -> float:
        """Look up names of members, and look for oneself; when to look next, in seconds."""
        members = self.members()
        await self._addresses.refresh(members)
        now_s = time.monotonic()
        if members is not self._looked_at or now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_at, self._looked_s = members, now_s
            await self._disk.run(self._oneself.look, members, self._addresses.of)
        return LOOK_EVERY_S

    async def close(self) -> None:
        """Ends looking."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._addresses.close()

"""Cluster: the members, their addresses, and which of them this node is, kept up to date."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path

from lodefs.proxy.peers.membership.addresses import Addresses, SocketAddress, is_ip, is_local
from lodefs.proxy.peers.membership.members import (
    FileMembers,
    Membership,
    StaticMembers,
    follow,
    look,
    named,
)
from lodefs.proxy.peers.membership.peer import DnsName, Peer
from lodefs.proxy.runtime.thread_pools import Pool

log = logging.getLogger("lodefs.peers")

LOOK_EVERY_S = 2.0
LOOK_AGAIN_S = 30.0  # for this node's own address, if the members did not change
START_TIMEOUT_S = 10.0


def membership(
    disk: Pool,
    *,
    peers: Sequence[Peer] = (),
    peers_file: Path | None = None,
    peers_dns: DnsName | None = None,
) -> Membership:
    """Returns the membership that the settings define; an empty one if they define none."""
    if peers_file is not None:
        return FileMembers(peers_file, disk)
    if peers_dns is not None:
        # here, since dnspython takes a tenth of a proxy's start, and few clusters ask DNS
        from lodefs.proxy.peers.membership.dns_members import DnsMembers

        return DnsMembers(peers_dns, disk)
    return StaticMembers(peers)


class Cluster:
    """The known members. Methods are for any thread and never block, except awaitable ones, which
    belong to the event loop."""

    def __init__(
        self, membership: Membership, addresses: Addresses, oneself: SelfDetector, disk: Pool
    ) -> None:
        """Takes ownership of ``addresses`` and closes it. ``disk`` runs what blocks briefly."""
        self._membership = membership
        self._addresses = addresses
        self._oneself = oneself
        self._disk = disk
        self._looked_at: tuple[Peer, ...] = ()
        self._looked_s = float("-inf")
        self._tasks: list[asyncio.Task[None]] = []

    def members(self) -> tuple[Peer, ...]:
        return self._membership.members()

    def endpoints(self, address: str) -> tuple[SocketAddress, ...]:
        """Returns the addresses of the member at ``address``; () while its name has none. Raises:
        InvalidInput for an invalid address of a node."""
        return self._addresses.of(address)

    def own_addresses(self) -> tuple[str, ...]:
        """Returns the members that this node is: its own name first, then other names that lead
        here."""
        return self._oneself.addresses()

    async def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Looks up the members once, then keeps doing so until ``close``.

        Returns after ``timeout_s`` at the latest: a node without members serves, too.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await look(self._membership.refresh)
                await look(self.refresh)
        except TimeoutError:
            log.warning("the members are unknown after %g s; starting without them", timeout_s)
        both = (self._membership.refresh, self.refresh)
        self._tasks = [asyncio.create_task(follow(refresh)) for refresh in both]

    async def refresh(self) -> float:
        """Looks up names of members, and finds this node. Returns the seconds until the next
        time."""
        members = self.members()
        await self._addresses.refresh(members)
        now_s = time.monotonic()
        if members is not self._looked_at or now_s - self._looked_s >= LOOK_AGAIN_S:
            self._looked_at, self._looked_s = members, now_s
            await self._disk.run(self._oneself.look, members, self._addresses.of)
        return LOOK_EVERY_S

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._addresses.close()


def _is_everywhere(host: str) -> bool:
    return not host or not is_ip(host) or ip_address(host.partition("%")[0]).is_unspecified


def _is_loopback(host: str) -> bool:
    return ip_address(host.partition("%")[0]).is_loopback


class SelfDetector:
    """This node's addresses among the members, as last found."""

    def __init__(
        self,
        port: int | None,
        address: str | None,
        *,
        host: str = "",
        is_local: Callable[[SocketAddress], bool] = is_local,
    ) -> None:
        """``port`` is that of the peer endpoint; None if there is none, and then this node is not a
        member. ``host`` is where the endpoint listens. ``address`` is the setting peer_address."""
        self._port = port
        self._host = host
        self._setting = address
        self._is_local = is_local
        self._logged = ""
        self._addresses: tuple[str, ...] = (address,) if address else ()

    def addresses(self) -> tuple[str, ...]:
        """Returns the address that this node uses as its name, then others that lead here, too:
        none of them must be asked. () if unknown. For any thread; never blocks."""
        return self._addresses

    def look(
        self, members: Sequence[Peer], endpoints: Callable[[str], Sequence[SocketAddress]]
    ) -> None:
        """Finds this node among the members. ``endpoints`` returns their addresses. Blocks briefly
        (a socket for each member).

        Problems are logged once.
        """
        if self._port is None:
            return
        places = {peer.address: set(endpoints(peer.address)) for peer in members}
        found = sorted(one for one in places if any(map(self._leads_here, places[one])))
        first = [self._setting] if self._setting else found[:1]
        self._addresses = tuple(dict.fromkeys(first + found))
        self._log_once(self._complaint([peer.address for peer in members]))

    def _leads_here(self, endpoint: SocketAddress) -> bool:
        """Whether it is this endpoint, or this node listens on all addresses of the machine and it
        is one of them. Two nodes of one machine may have the same port on different addresses; only
        the loopback address that /etc/hosts may give a machine's own name belongs to nobody
        else."""
        if endpoint.port != self._port:
            return False
        if _is_everywhere(self._host):
            return self._is_local(endpoint)
        is_own_name = _is_loopback(endpoint.host) and not _is_loopback(self._host)
        return endpoint.host == self._host or is_own_name

    def _complaint(self, members: Sequence[str]) -> str:
        if not members:
            return ""
        if not self._addresses:
            return (
                "this node is not among the members, so it owns nothing and only asks the others: "
                f"list its address with port {self._port}, or set peer_address to its address there"
            )
        if self._addresses[0] not in members:
            return (
                f"peer_address {self._addresses[0]} is not among the members, so this node owns "
                f"nothing and only asks the others; members: {named(sorted(members))}"
            )
        if len(self._addresses) > 1:
            return (
                f"members {named(list(self._addresses))} are all this node, which uses the first "
                "name: list every node once, or its share is too large"
            )
        return ""

    def _log_once(self, complaint: str) -> None:
        if complaint and complaint != self._logged:
            log.warning("%s", complaint)
        self._logged = complaint

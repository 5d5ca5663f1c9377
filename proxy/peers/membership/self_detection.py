"""Oneself: which of the members this node is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from ipaddress import ip_address

from lodefs.proxy.peers.membership.addresses import SocketAddress, is_ip, is_local
from lodefs.proxy.peers.membership.members import named
from lodefs.proxy.peers.membership.peer import Peer

log = logging.getLogger("lodefs.peers")


def _is_everywhere(host: str) -> bool:
    return not host or not is_ip(host) or ip_address(host.partition("%")[0]).is_unspecified


def _is_loopback(host: str) -> bool:
    return ip_address(host.partition("%")[0]).is_loopback


class SelfDetector:
    """This node's addresses among the members, as found last."""

    def __init__(
        self,
        port: int | None,
        address: str | None,
        *,
        host: str = "",
        is_local: Callable[[SocketAddress], bool] = is_local,
    ) -> None:
        """``port``: of the peer door; None if there is none, and then this node is no member.
        ``host``: where the door listens. ``address``: what the setting peer_address says."""
        self._port = port
        self._host = host
        self._setting = address
        self._is_local = is_local
        self._logged = ""
        self._addresses: tuple[str, ...] = (address,) if address else ()

    def addresses(self) -> tuple[str, ...]:
        """The address that this node calls itself by, then others that lead here too: none of
        them is to be asked. () where it is not known. For any thread; never blocks."""
        return self._addresses

    def look(
        self, members: Sequence[Peer], endpoints: Callable[[str], Sequence[SocketAddress]]
    ) -> None:
        """Look for this node among the members; ``endpoints`` says where each of them is. Blocks a
        little (a socket for each member).

        What is not as it should be is logged once.
        """
        if self._port is None:
            return
        places = {peer.address: set(endpoints(peer.address)) for peer in members}
        found = sorted(one for one in places if any(map(self._leads_here, places[one])))
        first = [self._setting] if self._setting else found[:1]
        self._addresses = tuple(dict.fromkeys(first + found))
        self._log_once(self._complaint([peer.address for peer in members]))

    def _leads_here(self, endpoint: SocketAddress) -> bool:
        """Whether it is the door, or the door of a machine is at all of its addresses. Two nodes of
        one machine may have one port, each at an address of its own; only the loopback address
        that /etc/hosts may give a machine's own name is nobody else's there."""
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
                "this node is none of the members, so it owns nothing and only asks the others: "
                f"list its address with port {self._port}, or set peer_address to what it is there"
            )
        if self._addresses[0] not in members:
            return (
                f"peer_address {self._addresses[0]} is none of the members, so this node owns "
                f"nothing and only asks the others; members: {named(sorted(members))}"
            )
        if len(self._addresses) > 1:
            return (
                f"members {named(list(self._addresses))} are all this node, which goes by the "
                "first: list every node once, or its share is too large"
            )
        return ""

    def _log_once(self, complaint: str) -> None:
        if complaint and complaint != self._logged:
            log.warning("%s", complaint)
        self._logged = complaint

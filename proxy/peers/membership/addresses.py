"""The addresses of members' peer endpoints, for connecting without waiting for names."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError, Unavailable
from lodefs.proxy.peers.membership.members import named
from lodefs.proxy.peers.membership.peer import Peer, join_address, split_address
from lodefs.proxy.runtime.thread_pools import Pool

log = logging.getLogger("lodefs.peers")

LOOKUP_THREADS = 4
LIFETIME_S = 60.0
LOOKUPS_PER_S_MAX = 20  # once all names are known: 10,000 nodes must not overload a name server
TICK_S = 5.0


class SocketAddress(NamedTuple):
    """An address to connect to: for ``socket.socket(family)`` and ``connect((host, port))``."""

    family: socket.AddressFamily
    host: str
    port: int


def look_up(host: str) -> list[str]:
    """Returns the IP addresses of a name, by the system's resolver. Blocks. Raises: Unavailable."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(f"{host}: {getattr(error, 'strerror', None) or error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Addresses:
    """The IP addresses of members. Its own threads look up names, since they may hang."""

    def __init__(
        self,
        clock_s: Callable[[], float],
        *,
        look_up: Callable[[str], Sequence[str]] = look_up,
    ) -> None:
        self._clock_s = clock_s
        self._look_up = look_up
        self._pool = Pool("names", threads=LOOKUP_THREADS)
        self._known: dict[str, tuple[str, ...]] = {}  # by host name
        self._asked_s: dict[str, float] = {}
        self._lacking: frozenset[str] = frozenset()

    def of(self, address: str) -> tuple[SocketAddress, ...]:
        """Returns the addresses of the member at ``address`` (HOST:PORT); () while its name has
        none.

        For any thread; never blocks. Raises: InvalidInput for an invalid address of a node.
        """
        host, port = split_address(address)
        return tuple(_endpoint(ip, port) for ip in self._ips(host))

    def _ips(self, host: str) -> tuple[str, ...]:
        return (host,) if is_ip(host) else self._known.get(host, ())

    async def refresh(self, members: Iterable[Peer]) -> float:
        """Looks up names of members that are new or were looked up long ago. Returns when to do so
        next.

        A name that fails keeps its last addresses, and is logged once.
        """
        hosts = {host for host, _ in (split_address(peer.address) for peer in members)}
        names = {host for host in hosts if not is_ip(host)}
        for gone in self._asked_s.keys() - names:
            self._known.pop(gone, None)
            del self._asked_s[gone]
        now_s = self._clock_s()
        lifetime_s = max(LIFETIME_S, len(names) / LOOKUPS_PER_S_MAX)
        due = [name for name in names if now_s - self._asked_s.get(name, -1e9) >= lifetime_s]
        share = max(1, int(LOOKUPS_PER_S_MAX * TICK_S))
        again = sorted(
            (name for name in due if name in self._asked_s), key=self._asked_s.__getitem__
        )
        await self._ask([name for name in due if name not in self._asked_s] + again[:share])
        self._complain(frozenset(name for name in names if name not in self._known))
        return TICK_S

    async def _ask(self, names: Sequence[str]) -> None:
        for begin in range(0, len(names), LOOKUP_THREADS):
            some = names[begin : begin + LOOKUP_THREADS]
            await asyncio.gather(*map(self._ask_one, some))

    async def _ask_one(self, name: str) -> None:
        self._asked_s[name] = self._clock_s()
        try:
            self._known[name] = tuple(await self._pool.run(self._look_up, name))
        except LodefsError as error:
            log.debug("%s", error)

    def _complain(self, lacking: frozenset[str]) -> None:
        if lacking - self._lacking:
            log.warning("members without an address: %s", named(sorted(lacking)))
        self._lacking = lacking

    async def close(self) -> None:
        """Returns when the last lookup has ended."""
        await self._pool.close()


def is_ip(host: str) -> bool:
    """Whether a host of ``split_address`` is an IP address and not a name."""
    return ":" in host or host.replace(".", "").isdigit()


def _endpoint(ip: str, port: int) -> SocketAddress:
    return SocketAddress(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip, port)


def place_of(host: str, port: int) -> str:
    """Returns the IP address and port of one end of a connection, spelled alike at both ends."""
    ip = ipaddress.ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return join_address(str(mapped or ip), port)


def is_local(endpoint: SocketAddress) -> bool:
    """Whether an IP address belongs to this machine, so that a socket can be bound to it."""
    if ipaddress.ip_address(endpoint.host.partition("%")[0]).is_unspecified:
        return False
    try:
        with socket.socket(endpoint.family, socket.SOCK_DGRAM) as probe:
            probe.bind((endpoint.host, 0))
    except OSError:
        return False
    return True

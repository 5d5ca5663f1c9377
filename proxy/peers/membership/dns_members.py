"""DnsMembers: the members that DNS lists, for example from a headless Service of Kubernetes or
Consul.

The only file that imports dnspython, whose errors become Unavailable. It ignores /etc/hosts.
"""

from __future__ import annotations

import dns.asyncresolver
import dns.exception
import dns.name
import dns.resolver
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.proxy.peers.membership.members import distinct, log, log_change
from lodefs.proxy.peers.membership.peer import DnsName, Peer, join_address, split_address
from lodefs.proxy.runtime.thread_pools import Pool

REFRESH_S_MIN, REFRESH_S_MAX = 10.0, 30.0
TIMEOUT_S = 5.0


class DnsMembers:
    """The members of a name: its SRV records, or its addresses with one port.

    A name without records counts as a failure: the last good members stay. Use shows which members
    are really gone.
    """

    def __init__(
        self,
        name: DnsName,
        disk: Pool,
        *,
        nameserver: tuple[str, int] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Sends no query yet: the first refresh does. ``disk`` runs what blocks. ``nameserver`` is
        an address and port; None: those of /etc/resolv.conf, which is read every time."""
        self._name = name
        self._disk = disk
        self._nameserver = nameserver
        self._timeout_s = timeout_s
        self._members: tuple[Peer, ...] = ()
        self._failing = False

    def members(self) -> tuple[Peer, ...]:
        return self._members

    async def refresh(self) -> float:
        try:
            found, ttl_s = await self._ask()
        except LodefsError as error:
            if not self._failing:
                log.warning("the %d known members stay: %s", len(self._members), error)
            self._failing = True
            return REFRESH_S_MIN
        self._failing = False
        if found != self._members:
            log_change(self._members, found)
            self._members = found
        return min(max(ttl_s, REFRESH_S_MIN), REFRESH_S_MAX)

    async def _ask(self) -> tuple[tuple[Peer, ...], float]:
        """Returns the current members, and for how many seconds the records are valid."""
        resolver = await self._disk.run(self._resolver)
        if self._name.port is None:
            answer = await self._resolve(resolver, "SRV")
        else:
            try:
                answer = await self._resolve(resolver, "A")
            except _NoRecordsError:  # a node with both kinds of addresses must not count twice
                answer = await self._resolve(resolver, "AAAA")
        peers = [_peer(record, self._name.port) for record in answer]
        return distinct(peers), answer.chaining_result.minimum_ttl

    async def _resolve(
        self, resolver: dns.asyncresolver.Resolver, kind: str
    ) -> dns.resolver.Answer:
        what = f"peers_dns {self._name} ({kind})"
        try:
            return await resolver.resolve(
                self._name.name, kind, lifetime=self._timeout_s, search=True
            )
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
            raise _NoRecordsError(f"{what}: {error}") from error
        except (dns.exception.DNSException, OSError) as error:
            raise Unavailable(f"{what}: {error}") from error

    def _resolver(self) -> dns.asyncresolver.Resolver:
        try:
            made = dns.asyncresolver.Resolver(configure=self._nameserver is None)
        except (dns.exception.DNSException, OSError) as error:
            raise Unavailable(f"peers_dns {self._name}: {error}") from error
        if self._nameserver is not None:
            made.nameservers, made.port = [self._nameserver[0]], self._nameserver[1]
        return made


class _NoRecordsError(Unavailable):
    """The name does not exist, or has no records of this kind."""


def _peer(record: object, port: int | None) -> Peer:
    """Returns the member in a record. Priorities of SRV records are ignored: all are members."""
    match record:
        case SRV():
            target = f"{record.target.to_text()}:{record.port}"
            return Peer(join_address(*split_address(target)), float(max(1, record.weight)))
        case A():
            return Peer(join_address(record.address, port or 0))
        case AAAA():
            host, _ = split_address(f"[{record.address}]")
            return Peer(join_address(host, port or 0))
    raise InvalidInput(f"{record} does not name a node")

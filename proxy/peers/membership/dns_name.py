"""DnsName: which DNS records list the members."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.peers.membership.peer import split_address

_SERVICE = re.compile(r"_[A-Za-z0-9-]+\._(tcp|udp)\..")


@dataclass(frozen=True, slots=True)
class DnsName:
    """A name to resolve. ``port`` None: its SRV records have the ports and weights (RFC 2782);
    else its addresses (A, or AAAA if there are none of these) with this port."""

    name: str
    port: int | None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


def parse_dns_name(text: str) -> DnsName:
    """``_service._proto.NAME`` for SRV records, else ``HOST[:PORT]``. Raises: InvalidInput."""
    if text.startswith("_"):
        if not _SERVICE.match(text) or ":" in text:
            raise InvalidInput(f"{text!r} must be _SERVICE._tcp.NAME, without a port")
        host, _ = split_address(text)
        return DnsName(host + _dot(text), None)
    host, port = split_address(text)
    if re.fullmatch(r"[0-9.]+", host) or ":" in host:
        raise InvalidInput(f"{text!r} is an address: list addresses under peers")
    return DnsName(host + _dot(text.partition(":")[0]), port)


def _dot(name: str) -> str:
    """A dot at the end says that the name is whole: no search domain is tried with it."""
    return "." if name.endswith(".") else ""

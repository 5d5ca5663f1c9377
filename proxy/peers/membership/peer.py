"""Peer: one node of the cluster, and its textual form."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from lodefs.chunkstore.errors import InvalidInput

PORT_DEFAULT = 7441
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1_000_000.0
_ADDRESS = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?\Z")
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\Z")


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """One node of the cluster."""

    address: str  # "HOST:PORT" of its peer endpoint; its identity in the hashing
    weight: float = 1.0  # its share of the packs, relative to the others'


def parse_peer(text: str) -> Peer:
    """Parses ``HOST[:PORT][;weight=W]``; an IPv6 address is in brackets.

    Each node has one spelling: names in lower case without a dot at the end, addresses in their
    short form, always with the port. Raises: InvalidInput.
    """
    address, semicolon, label = text.strip().partition(";")
    host, port = split_address(address)
    weight = 1.0
    if semicolon:
        name, _, value = label.partition("=")
        if name.strip() != "weight":
            raise InvalidInput(f"{text!r}: only weight=NUMBER may follow ';'")
        weight = parse_weight(value, text)
    return Peer(join_address(host, port), weight)


def parse_weight(value: str, of: str) -> float:
    """Parses a weight; ``of`` names its owner in the error. Raises: InvalidInput."""
    try:
        weight = float(value)
    except ValueError:
        weight = 0.0
    if not WEIGHT_MIN <= weight <= WEIGHT_MAX:  # false for NaN, too
        raise InvalidInput(
            f"{of!r}: the weight must be a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:.0f}"
        )
    return weight


def split_address(text: str) -> tuple[str, int]:
    """Splits ``HOST[:PORT]`` into the host without brackets and the port (7441 by default). Raises:
    InvalidInput, which names the text."""
    match = _ADDRESS.match(text.strip())
    port = int(match[2]) if match is not None and match[2] else PORT_DEFAULT
    if match is None or not 0 < port < 65536:
        raise InvalidInput(f"{text!r} is not the address of a node: write HOST:PORT or [IPV6]:PORT")
    return _canonical(match[1], text), port


def join_address(host: str, port: int) -> str:
    """Returns ``HOST:PORT``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _canonical(host: str, text: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise InvalidInput(f"{text!r}: {host[1:-1]!r} is not an IPv6 address") from None
    name = host.lower().removesuffix(".")
    if re.fullmatch(r"[0-9.]+", name):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise InvalidInput(f"{text!r}: {host!r} is not an IPv4 address") from None
    if not _NAME.match(name):
        raise InvalidInput(f"{text!r}: {host!r} is not the name of a host")
    return name


_SERVICE = re.compile(r"_[A-Za-z0-9-]+\._(tcp|udp)\..")


@dataclass(frozen=True, slots=True)
class DnsName:
    """A name to resolve. ``port`` None: its SRV records have ports and weights (RFC 2782).
    Otherwise its addresses (A, or AAAA if there are none) get this port."""

    name: str
    port: int | None

    def __str__(self) -> str:
        return self.name if self.port is None else f"{self.name}:{self.port}"


def parse_dns_name(text: str) -> DnsName:
    """Parses ``_service._proto.NAME`` for SRV records, or ``HOST[:PORT]``. Raises: InvalidInput."""
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
    """Adds a dot, which marks the name as complete, so that no search domain is tried."""
    return "." if name.endswith(".") else ""

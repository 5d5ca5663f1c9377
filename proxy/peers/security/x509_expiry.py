"""When certificates end: just enough of X.509 for that, as the standard library has no reader.

Source: RFC 5280, 4.1 (Certificate, TBSCertificate, Validity); X.690 for DER.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION = 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_PIVOT = 2050  # two digits of UTCTime mean 1950 to 2049 (RFC 5280, 4.1.2.5.1)


class _Element(NamedTuple):
    tag: int
    content: bytes
    rest: bytes  # what follows it


def expiries_s(pem: str) -> list[float]:
    """When each certificate of a PEM text ends (Unix seconds), in its order. InvalidInput if there
    is none, or one cannot be read."""
    found = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(pem)]
    if not found:
        raise InvalidInput("holds no certificate in PEM")
    return [_expiry_s(der) for der in found]


def _expiry_s(der: bytes) -> float:
    try:
        fields = _expect(_expect(der, _SEQUENCE).content, _SEQUENCE).content
        if fields and fields[0] == _VERSION:
            fields = _element(fields).rest
        for _ in ("serialNumber", "signature", "issuer"):
            fields = _element(fields).rest
        validity = _expect(fields, _SEQUENCE).content
        end = _element(_element(validity).rest)
        return _time_s(end.tag, end.content.decode("ascii"))
    except (IndexError, KeyError, ValueError) as error:
        raise InvalidInput("holds a certificate that cannot be read") from error


def _time_s(tag: int, text: str) -> float:
    at = datetime.strptime(text, _FORMATS[tag]).replace(tzinfo=UTC)
    if tag == _UTC_TIME and at.year >= _PIVOT:
        at = at.replace(year=at.year - 100)
    return at.timestamp()


def _expect(data: bytes, tag: int) -> _Element:
    found = _element(data)
    if found.tag != tag:
        raise ValueError("another element")
    return found


def _element(data: bytes) -> _Element:
    """The first element of DER bytes. Raises: IndexError, ValueError."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        count = size & 0x7F
        size, begin = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    end = begin + size
    if end > len(data):
        raise ValueError("cut short")
    return _Element(tag, data[begin:end], data[end:])

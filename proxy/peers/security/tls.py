"""Mutual TLS between nodes: contexts for both sides, renewed when their files change.

A client whose certificate was signed by the cluster's CA is a node of the cluster. Names in
certificates are not compared: nodes come and go by address, and bytes from every sender are
verified by their BLAKE3. Only TLS 1.3; no session is resumed, since that would skip the
certificate.
"""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.system.private_file import check_private
from lodefs.chunkstore.system.watched_files import WatchedFiles

log = logging.getLogger("lodefs.peers")

_HANDSHAKE_ROUNDS_MAX = 20


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this node's certificate (with intermediates up to the CA), its private key, and
    the CA's certificates."""

    cert: Path
    key: Path
    ca: Path


class Contexts(NamedTuple):
    """The contexts for one state of the files."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class PeerTls:
    """TLS for answers and requests of a node. For any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Reads the files. If others will refuse the certificate (expired, another CA), only a
        warning is logged, since a node can read without peers. Raises: InvalidInput if the files
        are unusable."""
        self._files = files
        self._is_renewal = False
        self._watched = WatchedFiles([files.cert, files.key, files.ca], self._load, log)
        self._is_renewal = True
        self._door = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self._door.sni_callback = self._switch

    def server(self) -> ssl.SSLContext:
        """Returns the context for listening sockets, always the same; new connections use the
        newest files."""
        return self._door

    def client(self) -> ssl.SSLContext:
        """Returns the context for one new connection to another node."""
        return self._watched.value.client

    def refresh(self) -> bool:
        """Checks the files again. Returns whether new ones are in use now. Blocks for the disk.

        Files that are unusable, or that other nodes would refuse, are logged once; the previous
        ones stay.
        """
        return self._watched.refresh()

    def _switch(self, connection: ssl.SSLObject, name: str | None, door: ssl.SSLContext) -> None:  # noqa: ARG002
        """Called by OpenSSL at the beginning of each handshake, with or without a name."""
        connection.context = self._watched.value.server

    def _load(self) -> Contexts:
        contexts = load(self._files)
        try:
            check(contexts)
        except Denied as error:
            what = f"peer_tls_cert_file {self._files.cert}: other nodes would refuse it: {error}"
            if self._is_renewal:
                raise Denied(what) from error
            log.warning("%s", what)
        return contexts


def load(files: TlsFiles) -> Contexts:
    """Returns contexts for these files. Raises: InvalidInput, which names the file."""
    check_private(files.key, f"peer_tls_key_file {files.key}")
    return Contexts(
        _context(ssl.PROTOCOL_TLS_SERVER, files), _context(ssl.PROTOCOL_TLS_CLIENT, files)
    )


def _context(protocol: ssl._SSLMethod, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0
    load_certificate(context, files.cert, files.key, prefix="peer_")
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"peer_tls_ca_file {files.ca} must hold PEM certificates: {_reason(error)}"
        ) from error
    return context


def load_certificate(context: ssl.SSLContext, cert: Path, key: Path, *, prefix: str = "") -> None:
    """Loads a certificate into a context. ``prefix`` is that of the settings' names. Raises:
    InvalidInput."""
    what = f"{prefix}tls_cert_file {cert} and {prefix}tls_key_file {key}"
    try:
        with cert.open("rb"):
            pass
    except OSError as error:
        raise InvalidInput(f"{prefix}tls_cert_file {cert}: {error.strerror}") from error
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{what} must be a PEM certificate and its key, without a password: {_reason(error)}"
        ) from error


def _no_password() -> str:
    """Returns no password; otherwise OpenSSL would ask at the terminal."""
    return ""


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


def check(contexts: Contexts) -> dict[str, Any]:
    """Runs a handshake between a server and a client with these contexts, in memory. Returns the
    server's certificate as SSLSocket.getpeercert does. Raises: Denied, with the objection of one
    side: expired, signed by another CA, not for this purpose."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = contexts.client.wrap_bio(to_client, to_server)
    server = contexts.server.wrap_bio(to_server, to_client, server_side=True)
    unfinished = [client, server]
    for _ in range(_HANDSHAKE_ROUNDS_MAX):
        for side in tuple(unfinished):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise Denied(error.verify_message) from error
            except ssl.SSLError as error:
                raise Denied(_reason(error)) from error
            unfinished.remove(side)
        if not unfinished:
            return client.getpeercert() or {}
    raise Denied("the handshake does not end")


_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION = 0x30, 0xA0
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_FORMATS = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_PIVOT = 2050  # two digits of UTCTime mean 1950 to 2049 (RFC 5280, 4.1.2.5.1)


class _Element(NamedTuple):
    tag: int
    content: bytes
    rest: bytes  # the bytes after it


def expiries_s(pem: str) -> list[float]:
    """Returns when each certificate of a PEM text expires (Unix seconds), in order. It parses just
    enough of X.509 (RFC 5280, 4.1, in DER, X.690), since the standard library has no reader.
    Raises: InvalidInput if there is none, or one cannot be read."""
    found = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(pem)]
    if not found:
        raise InvalidInput("has no certificate in PEM")
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
        raise InvalidInput("has a certificate that cannot be read") from error


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
    """Returns the first element of DER bytes. Raises: IndexError, ValueError."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        count = size & 0x7F
        size, begin = int.from_bytes(data[2 : 2 + count], "big"), 2 + count
    end = begin + size
    if end > len(data):
        raise ValueError("cut short")
    return _Element(tag, data[begin:end], data[end:])

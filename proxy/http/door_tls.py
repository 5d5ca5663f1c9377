"""TLS for clients: a certificate and its key, which are reloaded when their files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from time import time
from typing import NamedTuple

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.system.private_file import check_private
from lodefs.chunkstore.system.watched_files import WatchedFiles
from lodefs.proxy.peers.security.tls import Contexts, check, load_certificate

SOON_S = 14 * 86400.0  # warn if a certificate expires within this time
_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME, which the ssl module does not define
_log = logging.getLogger("lodefs.proxy")


class ServerCertificate(NamedTuple):
    """The certificate for clients, and when it expires (Unix time)."""

    context: ssl.SSLContext
    expires_s: float


class DoorTls:
    """The certificate that is shown to clients. Any thread may call ``refresh``."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Reads the files. Raises: InvalidInput, which names the file, if they cannot be read, do
        not belong together, or clients would refuse the certificate (expired, not yet valid, for
        another purpose)."""
        self._watched = WatchedFiles([cert, key], lambda: server_certificate(cert, key), _log)
        self.context = self._watched.value.context
        self.context.sni_callback = self._switch

    @property
    def expires_s(self) -> float:
        return self._watched.value.expires_s

    def refresh(self) -> bool:
        """Checks the files again. Returns whether new connections get another certificate now.
        Unusable files are logged, and the previous certificate stays. Blocks for the disk."""
        return self._watched.refresh()

    def _switch(self, connection: ssl.SSLObject, name: str | None, door: ssl.SSLContext) -> None:  # noqa: ARG002
        """Called by OpenSSL at the beginning of each handshake, with or without a name."""
        connection.context = self._watched.value.context


def server_certificate(cert: Path, key: Path) -> ServerCertificate:
    """Returns a server's context with this certificate. Logs a warning if it expires soon. Raises:
    InvalidInput."""
    check_private(key, f"tls_key_file {key}")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(server, cert, key)
    try:
        found = check(Contexts(server, _trusting(cert)))
    except Denied as error:
        why = f"clients would refuse it: {error}{_validity(server, cert)}"
        raise InvalidInput(f"tls_cert_file {cert}: {why}") from error
    expires_s = float(ssl.cert_time_to_seconds(found["notAfter"]))
    if expires_s - time() < SOON_S:
        _log.warning("tls_cert_file %s expires on %s: renew it", cert, found["notAfter"])
    return ServerCertificate(server, expires_s)


def _validity(server: ssl.SSLContext, cert: Path) -> str:
    """Returns the dates of a refused certificate, if only its dates are the reason."""
    client = _trusting(cert)
    client.verify_flags |= _NO_CHECK_TIME
    try:
        found = check(Contexts(server, client))
    except Denied:
        return ""
    return f" (valid from {found['notBefore']} to {found['notAfter']})"


def _trusting(cert: Path) -> ssl.SSLContext:
    """Returns a client context that trusts any issuer, and checks only dates and purpose."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cert)
    except (OSError, ValueError) as error:  # it was readable before, so it is being written
        raise InvalidInput(f"tls_cert_file {cert} cannot be read completely: {error}") from error
    return client

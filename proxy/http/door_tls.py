"""TLS of the doors for clients: a certificate and its key, followed when their files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.system.private_file import check_private
from lodefs.chunkstore.system.watched_files import WatchedFiles
from lodefs.proxy.peers.security.tls import Contexts, check, load_certificate

_log = logging.getLogger("lodefs.proxy")


class DoorTls:
    """The certificate that clients are shown. ``refresh`` for any thread."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Reads the files. InvalidInput, which names the file: they cannot be read, do not belong
        together, or clients would refuse the certificate (expired, not yet valid, for another
        use)."""
        self._watched = WatchedFiles([cert, key], lambda: server_context(cert, key), _log)
        self.context = server_context(cert, key)
        self.context.sni_callback = self._switch

    def refresh(self) -> bool:
        """Look at the files again; whether new connections have another certificate now. Files
        that cannot be used are logged, and the certificate before stays. Blocks for the disk."""
        return self._watched.refresh()

    def _switch(self, connection: ssl.SSLObject, name: str | None, door: ssl.SSLContext) -> None:  # noqa: ARG002
        """OpenSSL calls this at the beginning of each handshake, with or without a name."""
        connection.context = self._watched.value


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """A context of a server with this certificate. Raises: InvalidInput."""
    check_private(key, f"tls_key_file {key}")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(server, cert, key)
    try:
        check(Contexts(server, _trusting(cert)))
    except Denied as error:
        raise InvalidInput(f"tls_cert_file {cert}: clients would refuse it: {error}") from error
    return server


def _trusting(cert: Path) -> ssl.SSLContext:
    """A client that trusts whoever made the certificate, and looks at its dates and its use."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        client.load_verify_locations(cert)
    except (OSError, ValueError) as error:  # it was read before: it is being written
        raise InvalidInput(f"tls_cert_file {cert} cannot be read whole: {error}") from error
    return client

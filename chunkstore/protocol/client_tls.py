"""TLS for connections to a proxy. The ssl module takes milliseconds to load: only users of TLS
do."""

from __future__ import annotations

import socket
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.system.watched_files import Stamp, stamp_of

if TYPE_CHECKING:
    import ssl


def wrap(connected: socket.socket, host: str, ca_file: str) -> socket.socket:
    """Returns the connection over TLS, after its handshake. Raises: InvalidInput for an unusable CA
    file; OSError."""
    stamp = stamp_of(Path(ca_file)) if ca_file else None
    return _context(ca_file, stamp).wrap_socket(connected, server_hostname=host)


@lru_cache(maxsize=8)
def _context(ca_file: str, stamp: Stamp | None) -> ssl.SSLContext:  # noqa: ARG001 - a changed file
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInput(f"the CA file {ca_file} must hold PEM certificates: {reason}") from error


def is_waiting(error: OSError) -> bool:
    """Whether an error says that no byte has come yet."""
    ssl = sys.modules.get("ssl")
    return ssl is not None and isinstance(error, ssl.SSLWantReadError)


def refusal(host: str, error: OSError) -> LodefsError | None:
    """Returns the error of lodefs for an error of TLS; None for another one."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return Denied(
            f"the certificate of the proxy at {host} is not trusted: {error.verify_message}; name "
            "its CA, as in https://HOST:PORT?ca=FILE"
        )
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return Unavailable(
            f"the proxy at {host} does not use TLS: write http:// if that is what you want"
        )
    return None

"""The credentials by which nodes trust each other, as the settings define them, kept up to date.
The shared secret is a file of one line, or of two while it is being changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.system.private_file import check_private
from lodefs.chunkstore.system.watched_files import WatchedFiles
from lodefs.proxy.peers.security.request_signing import (
    Authenticator,
    HmacAuthenticator,
    NoAuthenticator,
)
from lodefs.proxy.peers.security.tls import PeerTls, TlsFiles
from lodefs.proxy.runtime.thread_pools import Pool

REFRESH_S = 2.0


class Credentials:
    """A shared secret, certificates, or both; neither only if the settings allow that."""

    def __init__(
        self,
        own_addresses: Callable[[], Sequence[str]],
        disk: Pool,
        *,
        secret_file: Path | None = None,
        tls_files: TlsFiles | None = None,
        allow_anonymous: bool = False,
        reached_at: str = "",
    ) -> None:
        """Reads the files. ``own_addresses`` is that of Cluster. ``disk`` runs what blocks.
        ``reached_at`` is that of HmacAuthenticator. Raises: InvalidInput if a file is unusable, or
        there is none and the settings do not allow that."""
        if secret_file is None and tls_files is None and not allow_anonymous:
            raise InvalidInput(
                "nodes need peer_secret_file or TLS to trust each other, or peer_allow_anonymous"
            )
        self._disk = disk
        self._secrets = None if secret_file is None else watched_secrets(secret_file)
        self.tls = None if tls_files is None else PeerTls(tls_files)
        self.authenticator: Authenticator = NoAuthenticator(own_addresses)
        if self._secrets is not None:
            secrets = self._secrets
            self.authenticator = HmacAuthenticator(
                lambda: secrets.value, own_addresses, reached_at=reached_at
            )

    async def refresh(self) -> float:
        """Checks the files again. Returns the seconds until the next time, for
        ``membership.follow``."""
        for part in (self._secrets, self.tls):
            if part is not None:
                await self._disk.run(part.refresh)
        return REFRESH_S


SECRET_BYTES_MIN = 16
SECRET_BYTES_MAX = 1024

log = logging.getLogger("lodefs.peers")


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Returns the secrets in a file: the first one signs, each of them is accepted. Raises:
    InvalidInput, which never shows the content, if the file cannot be read, others may read it or
    its group may change it, or it has more than two lines or a secret that is too short or too
    long."""
    what = f"peer_secret_file {path}"
    check_private(path, what)
    try:
        with path.open("rb") as file:
            data = file.read(4 * SECRET_BYTES_MAX)
    except OSError as error:
        raise InvalidInput(f"{what}: {error.strerror}") from error
    secrets = tuple(line.strip() for line in data.splitlines() if line.strip())
    if not 1 <= len(secrets) <= 2:
        raise InvalidInput(f"{what}: must have one secret, or two on two lines during a change")
    if not all(SECRET_BYTES_MIN <= len(one) <= SECRET_BYTES_MAX for one in secrets):
        raise InvalidInput(
            f"{what}: a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes; "
            "`openssl rand -hex 32` makes one"
        )
    return secrets


def watched_secrets(path: Path) -> WatchedFiles[tuple[bytes, ...]]:
    """Watches the secrets in a file. Raises: InvalidInput if it is unusable now."""
    return WatchedFiles([path], lambda: read_secrets(path), log)

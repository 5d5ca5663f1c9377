"""Trust: how this node and the others know each other, as the settings say, kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.peers.security.request_signing import (
    Authenticator,
    HmacAuthenticator,
    NoAuthenticator,
)
from lodefs.proxy.peers.security.shared_secret import watched_secrets
from lodefs.proxy.peers.security.tls import PeerTls, TlsFiles
from lodefs.proxy.runtime.thread_pools import Pool

REFRESH_S = 2.0


class Credentials:
    """A shared secret, certificates, or both; neither only if that is asked for."""

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
        """Reads the files. ``own_addresses``: as of Cluster. ``disk`` runs what blocks.
        ``reached_at``: as of HmacAuthenticator.

        InvalidInput: a file cannot be used, or there is none and nobody allowed that.
        """
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
        """Look at the files again; when to look next, in seconds. For ``membership.follow``."""
        for part in (self._secrets, self.tls):
            if part is not None:
                await self._disk.run(part.refresh)
        return REFRESH_S

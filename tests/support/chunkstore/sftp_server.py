"""An SFTP server in a thread: asyncssh, which knows nothing of the client's library."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncssh


@dataclass(frozen=True, slots=True)
class SftpServer:
    """A running server, whose one user may be any."""

    port: int
    password: str
    known_hosts: str


class _Login(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == "let me in"


@contextmanager
def sftp_server(home: Path) -> Iterator[SftpServer]:
    """Serves the files of this machine on loopback. ``home`` is where it may write."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1", 0, server_factory=_Login, server_host_keys=[key], sftp_factory=True
        )

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result(20)
    port = server.get_port()
    public = key.export_public_key().decode()
    try:
        yield SftpServer(port, "let me in", f"[127.0.0.1]:{port} {public}")
    finally:
        server.close()
        asyncio.run_coroutine_threadsafe(server.wait_closed(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

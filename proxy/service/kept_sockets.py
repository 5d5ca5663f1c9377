"""Listening sockets that outlive this process: systemd opened them, or keeps them for the next one.

systemd.socket(5), sd_pid_notify_with_fds(3): the Unix socket comes from a unit of its own. The TCP
sockets are this proxy's; systemd keeps copies, so that clients are not refused while it restarts.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from lodefs.chunkstore.system import sockets
from lodefs.chunkstore.system.systemd_notify import SystemdNotifier
from lodefs.proxy.service.failed_starts import FAILED

Address = tuple[str, int]
# Names in systemd's store of descriptors.
CLIENTS, PEERS, S3 = "lodefs-clients", "lodefs-peers", "lodefs-s3"


class Listeners:
    """``given``: what units of systemd listen on. The rest is opened when it is asked for.

    ``wanted``: where the settings say that each name listens. Of what was kept, sockets that are
    elsewhere, or not wanted any more, are closed, and systemd forgets them.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        systemd: SystemdNotifier,
        wanted: Mapping[str, Address | None],
    ) -> None:
        self._systemd = systemd
        self._kept: dict[str, socket.socket] = {}
        self.given: list[socket.socket] = []
        for name, listener in sockets.inherited_by_name(environ):
            if name == FAILED:  # no listener: see failed_starts
                listener.close()
                continue
            if name not in (CLIENTS, PEERS, S3):
                self.given.append(listener)
                continue
            where = wanted.get(name)
            if where is not None and name not in self._kept and sockets.is_at(listener, *where):
                self._kept[name] = listener
            else:
                sockets.stop_listening(listener)
                self._systemd.forget(name)

    def tcp(self, name: str, where: Address) -> socket.socket:
        """The socket of this name: the one that was kept, else a new one, which systemd keeps from
        now on. Raises what ``listen_tcp`` raises."""
        listener = self._kept.pop(name, None)
        if listener is None:
            listener = sockets.listen_tcp(*where)
            self._systemd.store(name, [listener.fileno()])
        return listener

    def close(self) -> None:
        """Close what nobody asked for."""
        for listener in self._kept.values():
            listener.close()
        self._kept.clear()

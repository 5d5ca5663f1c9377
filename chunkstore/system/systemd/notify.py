"""Messages to systemd, if it started this process (sd_notify(3)); otherwise they do nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"
SEND_TIMEOUT_S = 5.0  # for messages that must not be lost
_OF_ONE_PROCESS = frozenset(
    {
        *("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"),
        *("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"),
    }
)


def inheritable(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment for a child, without the variables that systemd set for this
    process."""
    return {name: value for name, value in environ.items() if name not in _OF_ONE_PROCESS}


class SystemdNotifier:
    """Sends messages to the socket in NOTIFY_SOCKET. Losing one does no harm."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watched = watched and "WATCHDOG_USEC" in environ

    def send(self, message: str) -> None:
        """Sends READY or STOPPING."""
        if self._address:
            self._send(message, (), 0)

    def set_status(self, text: str) -> None:
        """Shows a line of text in ``systemctl status`` (STATUS=)."""
        self.send(f"STATUS={text}")

    def store(self, name: str, fds: Sequence[int]) -> bool:
        """Keeps descriptors over a restart of the service, under a name (FDSTORE=1).

        Returns False if systemd did not take them.
        """
        if not self._address:
            return False
        return self._send(f"FDSTORE=1\nFDNAME={name}", fds, SEND_TIMEOUT_S)

    def forget(self, name: str) -> None:
        """Closes what was kept under a name (FDSTOREREMOVE=1)."""
        if self._address:
            self._send(f"FDSTOREREMOVE=1\nFDNAME={name}", (), SEND_TIMEOUT_S)

    def alive(self) -> None:
        """Pings the watchdog, if there is one, to show that the event loop runs."""
        if self._watched:
            self.send(ALIVE)

    def _send(self, message: str, fds: Sequence[int], timeout_s: float) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(timeout_s)
            try:
                sender.connect(self._address)
                if fds:
                    socket.send_fds(sender, [message.encode()], list(fds))
                else:
                    sender.send(message.encode())
            except OSError:
                return False
        return True

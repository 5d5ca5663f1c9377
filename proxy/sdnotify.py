"""Messages to systemd, where it started this process (sd_notify(3)); nothing happens otherwise."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


class SystemdNotifier:
    """Sends messages to the socket that NOTIFY_SOCKET names; losing one harms nobody."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watched = watched and "WATCHDOG_USEC" in environ

    def send(self, message: str) -> None:
        """Send READY or STOPPING."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            try:
                sender.connect(self._address)
                sender.send(message.encode())
            except OSError:
                return

    def alive(self) -> None:
        """Tell the watchdog, if there is one, that the event loop runs."""
        if self._watched:
            self.send(ALIVE)

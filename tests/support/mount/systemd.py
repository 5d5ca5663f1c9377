"""What systemd does for a service that keeps descriptors, for tests without it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType

MESSAGE_BYTES_MAX = 65536
FDS_MAX = 253
_STOP = b"stop"

# The descriptors get the numbers from 3 on, and the process its own number into LISTEN_PID.
_START = """
import fcntl, os, sys
count = int(sys.argv[1])
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 500) for fd in sys.argv[3:3 + count]]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(count), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.executable, [sys.executable, *sys.argv[3 + count:]])
"""


class FakeSystemd:
    """Starts Python programs as services with one store of descriptors; a context."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "notify.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        self._lock = Lock()
        self._thread = Thread(target=self._receive)
        self.stored: list[tuple[str, int]] = []
        self.ready = 0
        self.services: list[subprocess.Popen[str]] = []

    def __enter__(self) -> FakeSystemd:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for service in self.services:
            service.kill()
            service.wait()
            if service.stdout is not None:
                service.stdout.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(_STOP, str(self._path))
        self._thread.join()
        self._socket.close()
        for _, fd in self.stored:
            os.close(fd)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start ``python WORDS`` with all descriptors that are stored."""
        with self._lock:
            stored = list(self.stored)
        names = ":".join(name for name, _ in stored)
        fds = [str(fd) for _, fd in stored]
        service = subprocess.Popen(
            [sys.executable, "-c", _START, str(len(fds)), names, *fds, *words],
            env=os.environ | {"NOTIFY_SOCKET": str(self._path)},
            pass_fds=[fd for _, fd in stored],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.services.append(service)
        return service

    def names(self) -> list[str]:
        """Of what is stored."""
        with self._lock:
            return [name for name, _ in self.stored]

    def _receive(self) -> None:
        while True:
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES_MAX, FDS_MAX)
            if data == _STOP:
                return
            message = dict(line.partition("=")[::2] for line in data.decode().splitlines())
            with self._lock:
                if message.get("READY") == "1":
                    self.ready += 1
                if message.get("FDSTORE") == "1":
                    self.stored += [(message["FDNAME"], fd) for fd in fds]
                if message.get("FDSTOREREMOVE") == "1":
                    for _, fd in (one for one in self.stored if one[0] == message["FDNAME"]):
                        os.close(fd)
                    self.stored = [one for one in self.stored if one[0] != message["FDNAME"]]

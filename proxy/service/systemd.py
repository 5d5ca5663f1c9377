"""The proxy as a systemd service: repeated failures to start, and listening sockets that outlive
this process.

The unit restarts a proxy one second after its end, whatever the reason. A proxy that cannot start
(no such store, wrong settings) shows the reason in ``systemctl status`` and waits before it ends,
longer each time. systemd counts: its store of descriptors gets one more with a name at each such
end, and drops them when the proxy is ready, or when the service is stopped.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.system import sockets
from lodefs.chunkstore.system.systemd.notify import SystemdNotifier

FAILED = "lodefs-failed"  # the name in systemd's store of descriptors
PREFIX = "cannot start: "  # prefix of the status in systemd
# Wait before the end of the first such start, of the next ones, and of all that follow. The first
# failure is reported at once, to whoever waits in `systemctl start`.
PAUSES_S = (0.0, 1.0, 3.0, 8.0, 15.0, 30.0)


@contextmanager
def told_to_systemd(
    environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Reports an error of lodefs that ends the block and waits, if systemd started this process;
    then raises it again."""
    try:
        yield
    except LodefsError as error:
        if "NOTIFY_SOCKET" in environ:
            before = _count(environ)
            _tell(SystemdNotifier(environ), error, is_counted=before < len(PAUSES_S) - 1)
            sleep(PAUSES_S[min(before, len(PAUSES_S) - 1)])
        raise


def failures_are_over(environ: Mapping[str, str], systemd: SystemdNotifier) -> None:
    """Resets the count of failures, since store and cache are open."""
    if _count(environ):
        systemd.forget(FAILED)


def _count(environ: Mapping[str, str]) -> int:
    return environ.get("LISTEN_FDNAMES", "").split(":").count(FAILED)


def _tell(systemd: SystemdNotifier, error: LodefsError, *, is_counted: bool) -> None:
    systemd.set_status(PREFIX + " ".join(str(error).split()))
    if is_counted:
        # datagram sockets, since systemd drops descriptors that hang up, like a stream without a
        # peer
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
            systemd.store(FAILED, [mark.fileno()])


Address = tuple[str, int]
# Names in systemd's store of descriptors.
CLIENTS, PEERS, S3 = "lodefs-clients", "lodefs-peers", "lodefs-s3"


class Listeners:
    """Listening sockets that systemd opened, or keeps for the next process (systemd.socket(5),
    sd_pid_notify_with_fds(3)). The Unix socket comes from its own unit. The TCP sockets belong to
    this proxy, and systemd keeps copies, so that clients are not refused during a restart.

    ``given`` are sockets of systemd units. The rest is opened on demand.

    ``wanted`` says where the settings want each name to listen. Kept sockets that listen elsewhere,
    or are no longer wanted, are closed, and systemd drops them.
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
            if name == FAILED:  # not a listener, but a count
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
        """Returns the socket with this name: the kept one, or a new one, which systemd keeps from
        now on. Raises what ``listen_tcp`` raises."""
        listener = self._kept.pop(name, None)
        if listener is None:
            listener = sockets.listen_tcp(*where)
            self._systemd.store(name, [listener.fileno()])
        return listener

    def close(self) -> None:
        """Closes unused sockets."""
        for listener in self._kept.values():
            listener.close()
        self._kept.clear()

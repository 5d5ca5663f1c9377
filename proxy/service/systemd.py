"""The proxy as a service of systemd: starts that fail one after the other, and listening sockets
that outlive this process.

The unit starts a proxy again one second after its end, whatever the reason. One that cannot start
(no such store, wrong settings) says why in ``systemctl status`` and waits before it ends, longer
each time. systemd counts: its store of descriptors gets one more of a name at each such end, and
loses them when the proxy is ready, or when the service is stopped.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.system import sockets
from lodefs.chunkstore.system.systemd_notify import SystemdNotifier

FAILED = "lodefs-failed"  # the name in systemd's store of descriptors
PREFIX = "cannot start: "  # of what systemd shows
# Before the end of the first such start, of the next ones, and of all that follow. The first one is
# told at once, to whoever waits in `systemctl start`.
PAUSES_S = (0.0, 1.0, 3.0, 8.0, 15.0, 30.0)


@contextmanager
def told_to_systemd(
    environ: Mapping[str, str], sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Whatever of lodefs' errors ends the block is told and waits, if systemd started this process;
    then it goes on."""
    try:
        yield
    except LodefsError as error:
        if "NOTIFY_SOCKET" in environ:
            before = _count(environ)
            _tell(SystemdNotifier(environ), error, is_counted=before < len(PAUSES_S) - 1)
            sleep(PAUSES_S[min(before, len(PAUSES_S) - 1)])
        raise


def failures_are_over(environ: Mapping[str, str], systemd: SystemdNotifier) -> None:
    """Store and cache are open: the next failure counts as the first one."""
    if _count(environ):
        systemd.forget(FAILED)


def _count(environ: Mapping[str, str]) -> int:
    return environ.get("LISTEN_FDNAMES", "").split(":").count(FAILED)


def _tell(systemd: SystemdNotifier, error: LodefsError, *, is_counted: bool) -> None:
    systemd.set_status(PREFIX + " ".join(str(error).split()))
    if is_counted:
        # of datagrams: systemd drops descriptors that hang up, as a stream without a peer does
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mark:
            systemd.store(FAILED, [mark.fileno()])


Address = tuple[str, int]
# Names in systemd's store of descriptors.
CLIENTS, PEERS, S3 = "lodefs-clients", "lodefs-peers", "lodefs-s3"


class Listeners:
    """Listening sockets that systemd opened, or keeps for the next process (systemd.socket(5),
    sd_pid_notify_with_fds(3)): the Unix socket comes from a unit of its own; of the TCP sockets,
    which are this proxy's, systemd keeps copies, so that clients are not refused while it restarts.

    ``given``: what units of systemd listen on. The rest is opened when it is asked for.

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
            if name == FAILED:  # no listener, but a count
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

"""Starts of the proxy's service that fail one after the other: told to systemd, and ever longer
apart.

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


def are_over(environ: Mapping[str, str], systemd: SystemdNotifier) -> None:
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

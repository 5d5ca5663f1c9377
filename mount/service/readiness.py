"""Whether the mount service that answers is the one of this container.

The socket lies on the host: while an upgrade goes on, the old pod's service answers there first.
unix(7), SO_PEERCRED: the process that listens has no number (0) in another process namespace.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.service.client import RemoteMounts

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def check_own_service(path: Path, timeout_s: float) -> None:
    """Returns when a service of this process namespace answers at ``path``, and so has taken over
    whatever mounts there were. Raises: Unavailable."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(path))
            raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror or error}") from error
    pid, _, _ = _CREDENTIALS.unpack(raw)
    if not pid:
        raise Unavailable(f"{path}: the mounter of another container answers still")
    RemoteMounts(path).ping(timeout_s)

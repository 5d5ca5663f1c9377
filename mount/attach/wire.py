"""Messages on the attach socket: a packet asks, and one answers it (unix(7), MessagePack).

A successful answer carries a descriptor of the mount (SCM_RIGHTS). Any user may connect: every call
is checked, and the kernel says who calls (SO_PEERCRED).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lodefs.chunkstore.protocol.wire import Failure

VERSION = 1
SOCKET_DEFAULT = Path("/run/lodefs/attach.sock")
CALL_BYTES_MAX = 16384  # from any user


class AttachCall(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for a mount of a snapshot's directory. ``proxy`` and ``store``: as in the caller's own
    settings, "" for none: only a mount of exactly these is handed out."""

    version: int = VERSION
    repo: str
    rev: str
    path: bytes = b""
    proxy: str = ""
    store: str = ""
    timeout_s: float


class AttachAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call. ``declined``: why the caller should mount by itself, "" if a mount
    comes with this; ``failure``: an error that mounting by itself would raise, too."""

    version: int = VERSION
    failure: Failure | None = None
    declined: str = ""
    is_other_store: bool = False
    commit: str = ""

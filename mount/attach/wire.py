"""What goes over the attach socket: packets ask, one answers each (unix(7), MessagePack).

The answer to a call that went well carries a descriptor of the mount (SCM_RIGHTS). Anybody may
connect: whatever a call says is checked, and who calls is what the kernel says (SO_PEERCRED).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from lodefs.chunkstore.protocol.wire import Failure

VERSION = 1
SOCKET_DEFAULT = Path("/run/lodefs/attach.sock")
CALL_BYTES_MAX = 16384  # of anybody


class AttachCall(msgspec.Struct, frozen=True, kw_only=True):
    """Hand out a mount of a snapshot's directory. ``proxy`` and ``store``: what the caller's own
    settings name, "" for nothing: the answer is for the very same alone."""

    version: int = VERSION
    repo: str
    rev: str
    path: bytes = b""
    proxy: str = ""
    store: str = ""
    timeout_s: float


class AttachAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How a call went. ``declined``: why the caller should mount by itself, "" where the mount
    comes with this; ``failure``: what would fail there, too."""

    version: int = VERSION
    failure: Failure | None = None
    declined: str = ""
    is_other_store: bool = False
    commit: str = ""

"""Both ends of the attach socket, which hands the node's mounts to users without privilege."""

from __future__ import annotations

import grp
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lodefs.chunkstore.errors import InvalidInput, Unsupported
from lodefs.mount.attach import wire
from lodefs.mount.attach.client import AttachClient
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.mount.attach.server import AttachServer
    from lodefs.mount.service.process import OpenDoor
    from lodefs.mount.service.shared_mounts import SharedMounts

VARIABLE = "LODEFS_ATTACH_SOCKET"
NONE = "none"
STATUS_TIMEOUT_S = 2.0
FOR_ALL, FOR_GROUP = 0o666, 0o660


def attach_door(
    session: Session, path: Path, group: str | None, references_max: int, say: Callable[[str], None]
) -> OpenDoor:
    """Hands out the mounts of a mount service at ``path``, to all users or those of a group, if the
    rules of the settings let them. ``say`` is called with oddities in these rules.

    Raises: InvalidInput (no such group), Unsupported (some processes cannot be seen).
    """
    # Imported here so that a job that asks for a mount does not import the server.
    from lodefs.chunkstore.protocol import rpc
    from lodefs.mount.attach.attachments import Attachments
    from lodefs.mount.attach.server import AttachServer
    from lodefs.mount.process import process_scan
    from lodefs.proxies.own_proxy import node_proxy, serves
    from lodefs.settings.access_rules import current_rules

    gid = _gid(group) if group is not None else None
    mode = FOR_ALL if group is None else FOR_GROUP
    node = node_proxy(session)
    rules = current_rules(session, say)
    if not process_scan.sees_all():
        raise Unsupported(
            "--attach-socket needs the machine's process namespace, to see who holds a mount"
        )

    def is_ours(proxy: str, store: str) -> bool:
        if proxy and proxy != node:
            return False
        return not store or serves(node, store, STATUS_TIMEOUT_S)

    def door(mounts: SharedMounts, replace: bool) -> AttachServer:
        listener = rpc.listen(path, replace=replace, mode=mode, gid=gid)
        attachments = Attachments(mounts, references_max=references_max)
        return AttachServer(listener, attachments, is_ours, rules=rules)

    return door


def attach_client(session: Session, say: Callable[[str], None]) -> AttachClient | None:
    """Returns a connection to the node's mount service, as the settings name it. None if the
    environment says not to use it."""
    path = session.environment.get(VARIABLE, str(wire.SOCKET_DEFAULT))
    if path in ("", NONE):
        return None
    store = session.store_url if session.has_store else ""
    return AttachClient(Path(path), proxy=session.proxy_url or "", store=store, say=say)


def _gid(group: str) -> int:
    try:
        return int(group) if group.isdecimal() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidInput(f"--attach-group: there is no group {group}") from None

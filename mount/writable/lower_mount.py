"""The snapshot below a writable mount. The node's mount service mounts it for all users; otherwise
separate processes do, in the upper place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.mount.helper.interface import Source
from lodefs.mount.kernel import mount_syscalls, mount_table
from lodefs.mount.options import MountOptions
from lodefs.mount.service.client import RemoteMounts
from lodefs.mount.service.interface import WRITABLE, MountClaim, User
from lodefs.mount.writable import upper_place
from lodefs.mount.writable.upper_place import Record, UpperPlace

SERVICE_TIMEOUT_S = 30.0

Mounter = Callable[[MountOptions], object]
"""Mounts a snapshot by separate processes, as ``mounter.mount`` does."""


def bring_up(place: UpperPlace, record: Record, token: str | None, mount: Mounter) -> Path:
    """Returns the path at which the snapshot of a record is mounted and readable now. Does without
    the service whatever the service cannot do. Raises what ``mounter.mount`` raises."""
    if record.service:
        claim = MountClaim(source=source_of(record.options), rev=record.commit)
        with suppress(
            LodefsError
        ):  # the service may not run, or not know the store of this mount's proxy
            service = RemoteMounts(Path(record.service))
            held = service.acquire(_user(record), claim, token, SERVICE_TIMEOUT_S)
            if mount_table.on_top(held.place) is not None:  # it is mounted in this mount namespace
                return Path(held.place)
    lower = place.lower(record.generation)
    found = mount_table.on_top(str(lower))
    if found is not None and mount_table.is_dead(str(lower)):
        mount_syscalls.detach(str(lower), lazy=True)
        found = None
    if found is None:
        mount(
            msgspec.structs.replace(
                record.options, rev=record.commit, mountpoint=str(lower), token=token
            )
        )
    return lower


def let_go(place: UpperPlace, record: Record, *, insists: bool = False) -> None:
    """Lets go of the snapshot of a record, below a writable mount. A snapshot that is still used
    ends with its last user. ``insists``: raises if the mount service does not do so, since it
    holds the snapshot for this user until the machine is rebooted. Raises: Denied, Unavailable."""
    if record.service:
        try:
            RemoteMounts(Path(record.service)).release(_user(record), SERVICE_TIMEOUT_S)
        except LodefsError:
            if insists:
                raise
    lower = str(place.lower(record.generation))
    while mount_table.on_top(lower) is not None:
        with suppress(InvalidInput):  # it was unmounted meanwhile
            mount_syscalls.detach(lower, lazy=True)


def lives(device: str) -> bool:
    """Whether a snapshot, by its device, is still mounted anywhere and readable."""
    found = mount_table.of_device(device)
    return found is not None and not mount_table.is_dead(found.mountpoint)


def device_of(lower: Path) -> str:
    """Returns the device of the mount there, from the mount table. Raises: OSError."""
    found = os.stat(lower).st_dev
    return f"{os.major(found)}:{os.minor(found)}"


def _user(record: Record) -> User:
    volume = f"writable-{upper_place.id_of(record.mountpoint)}-{record.generation}"
    return User(volume, record.mountpoint, driver=WRITABLE)


def source_of(options: MountOptions) -> Source:
    """Returns the claim to the mount service for a snapshot below a writable mount with these
    options."""
    return Source(
        repo=options.repo, path=options.path, uid=options.uid, gid=options.gid, mode=options.mode
    )

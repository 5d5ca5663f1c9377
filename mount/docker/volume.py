"""A volume: its record, and changes of the record. Pure.

The mount service knows who has it mounted. Only records from before 0.2 have references: Mounts
that dockerd has not taken back, with a count for each mount ID, of one boot of the machine.
"""

from __future__ import annotations

import re

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.docker.options import Options
from lodefs.mount.helper.interface import ResolvedCommit
from lodefs.mount.volumes.changes import key_of

NAME_BYTES_MAX = 255
FOLLOW_RETRY_S = 60.0
_MOUNT_ID = re.compile(r"[\x21-\x7e]{1,256}\Z")


class Reference(msgspec.Struct, frozen=True):
    """Mounts under one ID. ``uptime_s``: the machine's uptime at the last one."""

    count: int
    uptime_s: float


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a volume in the state directory. Times are Unix times.

    ``commit``: what every mount shows; ``files`` and ``size_bytes``: of that commit.
    ``looked_at_s``: when the branch was last resolved; ``follow_error``: why that failed.
    ``references``, of the boot ``boot``, and the pin's fields are from before the mount service.
    ``mount_ids``: of containers that may have written to it, until that is committed or kept.
    """

    name: str
    options: Options
    commit: str
    files: int
    size_bytes: int
    created_at_s: float
    looked_at_s: float
    boot: str = ""
    references: dict[str, Reference] = {}
    follow_error: str = ""
    pinned_until_s: float = 0.0
    pin_tried_at_s: float = 0.0
    pin_error: str = ""
    mount_ids: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> str:
        """The name of its files."""
        return key_of(self.name)


def check_name(name: str) -> str:
    """Checks a volume's name: 1 to 255 bytes of printable characters. Raises: InvalidInput."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{name!r} is not a volume name: it is not UTF-8") from None
    if not 1 <= size_bytes <= NAME_BYTES_MAX:
        raise InvalidInput(
            f"a volume's name must have 1 to {NAME_BYTES_MAX} bytes, and this one has {size_bytes}"
        )
    if not name.isprintable():
        raise InvalidInput(
            f"{name!r} is not a volume name: it has characters that cannot be printed"
        )
    return name


def check_mount_id(mount_id: str) -> str:
    """Checks the ID of a Mount: dockerd uses 64 hex digits, or another word. Raises:
    InvalidInput."""
    if not _MOUNT_ID.match(mount_id):
        raise InvalidInput("ID must be a word of 1 to 256 printable ASCII characters")
    return mount_id


def about(name: str) -> dict[str, str]:
    """Returns the ``extra`` of a log line about a volume, by which a journal can be searched."""
    return {"volume": name}


def created(name: str, options: Options, found: ResolvedCommit, now_s: float) -> Volume:
    """Returns a new volume at a commit."""
    return Volume(
        name=name,
        options=options,
        commit=found.commit,
        files=found.files,
        size_bytes=found.size_bytes,
        created_at_s=now_s,
        looked_at_s=now_s,
    )


def looked(volume: Volume, found: ResolvedCommit, now_s: float) -> Volume:
    """Returns the volume after its branch was resolved again."""
    return msgspec.structs.replace(
        volume,
        commit=found.commit,
        files=found.files,
        size_bytes=found.size_bytes,
        looked_at_s=now_s,
        follow_error="",
    )


def look_failed(volume: Volume, why: str, now_s: float) -> Volume:
    """Returns the volume after its branch could not be resolved."""
    return msgspec.structs.replace(volume, looked_at_s=now_s, follow_error=why)


def follow_due(volume: Volume, now_s: float) -> bool:
    """Whether to resolve its branch again; also if the clock was set back."""
    follow_s = volume.options.follow_s
    if follow_s is None:
        return False
    wait_s = min(follow_s, FOLLOW_RETRY_S) if volume.follow_error else follow_s
    return not 0 <= now_s - volume.looked_at_s < wait_s


def pin_s(volume: Volume, now_s: float) -> int | None:
    """Returns the seconds from now for which its data is kept; 0: while it exists; None: not at
    all."""
    pin = volume.options.pin
    if pin is None or pin.pin_s is None:
        return None if pin is None else 0
    return max(round(volume.created_at_s + pin.pin_s - now_s), 0) or None

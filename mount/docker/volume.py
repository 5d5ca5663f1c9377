"""A volume: what is written down of it, and how that changes. Pure.

A reference is a Mount that dockerd has not taken back. dockerd mounts under one mount ID more than
once at a time (a running container, and `docker cp` into it), so each ID has a count. References
are of one boot of the machine: after the next, no container of before is left.
"""

from __future__ import annotations

import re
import string

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.docker.options import Options
from lodefs.mount.node.interface import ResolvedCommit

NAME_BYTES_MAX = 255
KEY_NAME_CHARS_MAX = 64
KEY_DIGEST_BYTES = 8
STALE_S = 60.0  # a container that starts does not hold its mounts at once
REMOVE_STALE_S = 5.0  # the same where dockerd wants to remove, because no container has the volume
PIN_S = 86400  # of a pin that upkeep renews
PIN_RETRY_S = 60.0
FOLLOW_RETRY_S = 60.0
_SAFE = frozenset(string.ascii_letters + string.digits + "._-")
_MOUNT_ID = re.compile(r"[\x21-\x7e]{1,256}\Z")


class Reference(msgspec.Struct, frozen=True):
    """Mounts under one ID. ``uptime_s``: when the last one was, since the machine started."""

    count: int
    uptime_s: float


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """What the state directory has of a volume. Times are Unix times.

    ``commit`` is what every mount shows; ``files`` and ``size_bytes`` are its. ``references`` are
    of the boot ``boot``. ``looked_at_s``: when the branch was resolved last, ``follow_error``: why
    that failed. ``pinned_until_s`` 0: not yet; ``pin_tried_at_s``, ``pin_error``: the last try.
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

    @property
    def key(self) -> str:
        """The name of its files."""
        return key_of(self.name)

    def count(self, boot: str) -> int:
        """How many mounts dockerd has not taken back."""
        if boot != self.boot:
            return 0
        return sum(reference.count for reference in self.references.values())


def check_name(name: str) -> str:
    """The name of a volume: 1 to 255 bytes of printable characters. InvalidInput."""
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{name!r} is no volume name: it is no UTF-8") from None
    if not 1 <= size_bytes <= NAME_BYTES_MAX:
        raise InvalidInput(
            f"a volume's name has 1 to {NAME_BYTES_MAX} bytes, and this one has {size_bytes}"
        )
    if not name.isprintable():
        raise InvalidInput(f"{name!r} is no volume name: it has characters that cannot be printed")
    return name


def check_mount_id(mount_id: str) -> str:
    """The ID of a Mount, as dockerd makes them (64 hex digits) or another word. InvalidInput."""
    if not _MOUNT_ID.match(mount_id):
        raise InvalidInput("ID must be a word of 1 to 256 printable ASCII characters")
    return mount_id


def key_of(name: str) -> str:
    """What the files of a volume are called: up to 64 safe characters of its name, and 16 hex
    digits of the name's BLAKE3."""
    safe = "".join(c if c in _SAFE else "_" for c in name[:KEY_NAME_CHARS_MAX]).lstrip(".")
    return f"{safe}-{blake3(name.encode()).hexdigest(length=KEY_DIGEST_BYTES)}"


def about(name: str) -> dict[str, str]:
    """The ``extra`` of a log line about a volume, by which a journal finds it."""
    return {"volume": name}


def is_same_data(one: Volume, other: Volume) -> bool:
    """Whether two volumes show the same directory of the same commit; whose it is and which token
    reads it does not count."""
    mine, others = one.options.source, other.options.source
    same = (mine.store, mine.repo, mine.path) == (others.store, others.repo, others.path)
    return same and one.commit == other.commit


def holds_pin(one: Volume, other: Volume) -> bool:
    """Whether a volume has a pin that letting go of the other's would take away: a node lets go of
    a directory with all below it. Stores do not count: one has several names."""
    mine, others = one.options.source, other.options.source
    same = (mine.repo, one.commit) == (others.repo, other.commit)
    return one.options.pin is not None and same and is_below(mine.path, others.path)


def is_below(path: bytes, top: bytes) -> bool:
    """Whether a directory of a commit is another one, or lies in it. b"" is the root."""
    return not top or path == top or path.startswith(top + b"/")


def created(name: str, options: Options, found: ResolvedCommit, now_s: float) -> Volume:
    """A new volume at a commit."""
    return Volume(
        name=name,
        options=options,
        commit=found.commit,
        files=found.files,
        size_bytes=found.size_bytes,
        created_at_s=now_s,
        looked_at_s=now_s,
    )


def referenced(volume: Volume, mount_id: str, boot: str, uptime_s: float) -> Volume:
    """With one mount more under an ID."""
    references = volume.references if volume.boot == boot else {}
    count = references[mount_id].count if mount_id in references else 0
    reference = Reference(count + 1, uptime_s)
    return _replace(volume, boot=boot, references=references | {mount_id: reference})


def released(volume: Volume, mount_id: str, boot: str) -> Volume:
    """With one mount less under an ID; unchanged where there is none."""
    if volume.boot != boot or mount_id not in volume.references:
        return volume
    old = volume.references[mount_id]
    left = {other: one for other, one in volume.references.items() if other != mount_id}
    if old.count > 1:
        left[mount_id] = Reference(old.count - 1, old.uptime_s)
    return _replace(volume, references=left)


def forgotten(volume: Volume, mount_ids: list[str]) -> Volume:
    """Without some references, however many mounts each stands for."""
    left = {other: one for other, one in volume.references.items() if other not in mount_ids}
    return _replace(volume, references=left)


def doubtful(volume: Volume, boot: str, uptime_s: float, stale_s: float = STALE_S) -> list[str]:
    """Mount IDs that are old enough for their containers to hold the mount: where nobody does,
    their Unmount was lost. A dockerd that was killed with its containers never sends it."""
    if volume.boot != boot:
        return []
    return [
        mount_id
        for mount_id, reference in volume.references.items()
        if uptime_s - reference.uptime_s > stale_s
    ]


def looked(volume: Volume, found: ResolvedCommit, now_s: float) -> Volume:
    """After its branch was resolved again; at a new commit, its data is to be pinned anew."""
    volume = _replace(volume, looked_at_s=now_s, follow_error="")
    if found.commit == volume.commit:
        return volume
    return _replace(
        volume,
        commit=found.commit,
        files=found.files,
        size_bytes=found.size_bytes,
        pinned_until_s=0.0,
        pin_tried_at_s=0.0,
    )


def look_failed(volume: Volume, why: str, now_s: float) -> Volume:
    """After its branch could not be resolved."""
    return _replace(volume, looked_at_s=now_s, follow_error=why)


def pinned(volume: Volume, pin_s: int, now_s: float) -> Volume:
    """After its data was pinned."""
    return _replace(volume, pinned_until_s=now_s + pin_s, pin_tried_at_s=now_s, pin_error="")


def pin_failed(volume: Volume, why: str, now_s: float) -> Volume:
    """After its data could not be pinned."""
    return _replace(volume, pin_tried_at_s=now_s, pin_error=why)


def follow_due(volume: Volume, now_s: float) -> bool:
    """Whether its branch is to be looked at. A clock that was set back makes it so."""
    follow_s = volume.options.follow_s
    if follow_s is None:
        return False
    wait_s = min(follow_s, FOLLOW_RETRY_S) if volume.follow_error else follow_s
    return not 0 <= now_s - volume.looked_at_s < wait_s


def pin_due_s(volume: Volume, now_s: float) -> int:
    """For how many seconds its data is to be pinned now; 0: it need not be."""
    pin = volume.options.pin
    if pin is None:
        return 0
    if volume.pin_error and 0 <= now_s - volume.pin_tried_at_s < PIN_RETRY_S:
        return 0
    left_s = volume.pinned_until_s - now_s
    if pin.pin_s is None:
        return 0 if PIN_S / 2 < left_s <= PIN_S else PIN_S
    if volume.pinned_until_s:
        return 0
    return max(0, round(volume.created_at_s + pin.pin_s - now_s))


def _replace(volume: Volume, **changes: object) -> Volume:
    return msgspec.structs.replace(volume, **changes)

"""Follows symlinks within a snapshot, for clients of protocols that have none: S3, and the hub."""

from __future__ import annotations

from collections import deque

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.node import Names, SnapshotFile

LINKS_MAX = 40  # on the way to one file, as in Linux


async def linked_file(
    names: Names, snapshot: Snapshot, directory: bytes, target: bytes
) -> SnapshotFile:
    """Returns the file to which a symlink in a directory leads. Raises: NotFound if it leads out of
    the snapshot, to nothing, to something else than a file, or in a circle."""
    done = [part for part in directory.split(b"/") if part]
    left = deque(_parts(target))
    links = 1
    while left:
        part = left.popleft()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not done:
                raise NotFound("the symlink leads out of the snapshot")
            done.pop()
            continue
        entry = await names.entry(snapshot, b"/".join([*done, part]))
        if entry.kind == Kind.SYMLINK:
            links += 1
            if links > LINKS_MAX:
                raise NotFound(f"there are more than {LINKS_MAX} symlinks in a row")
            left.extendleft(reversed(_parts(entry.target)))
        else:
            done.append(part)
    found = await names.file(snapshot, b"/".join(done))
    if not isinstance(found, SnapshotFile):
        raise NotFound("the symlink does not lead to a file")
    return found


async def linked_file_or_none(
    names: Names, snapshot: Snapshot, directory: bytes, target: bytes
) -> SnapshotFile | None:
    """Returns the same; None if there is no such file."""
    try:
        return await linked_file(names, snapshot, directory, target)
    except (NotFound, InvalidInput):  # also for an invalid name
        return None


def _parts(target: bytes) -> list[bytes]:
    if target.startswith(b"/"):
        raise NotFound("the symlink leads out of the snapshot")
    return target.split(b"/")

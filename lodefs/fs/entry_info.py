"""What fsspec says of an entry of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodeapi.wire import Node
from lodefs.reading.snapshot import Snapshot
from lodefs.reading.urls import decoded_path

_DIRECTORY, _SYMLINK = int(Kind.DIRECTORY), int(Kind.SYMLINK)

Info = dict[str, Any]


def walked(
    snapshot: Snapshot, inner: bytes, maxdepth: int | None
) -> Iterator[tuple[bytes, list[Node]]]:
    """The directories at and below a path, at most so deep."""
    if maxdepth is None:
        yield from snapshot.entries.walk(inner)
        return
    level = [inner]
    for _ in range(maxdepth):
        below: list[bytes] = []
        for directory in level:
            nodes = snapshot.entries.children(directory)
            yield directory, nodes
            prefix = directory + b"/" if directory else b""
            below += [prefix + node.name for node in nodes if node.kind == _DIRECTORY]
        level = below


def infos_of(snapshot: Snapshot, path: str, inner: bytes, nodes: list[Node]) -> Iterator[Info]:
    """Of the entries of a directory."""
    prefix = inner + b"/" if inner else b""
    for node in nodes:
        name = f"{path}/{node.name.decode('utf-8', 'surrogateescape')}"
        if node.kind == _SYMLINK:
            yield info_of(snapshot, name, prefix + node.name, node)
        else:
            yield _plain_info(snapshot, name, node)


def info_of(snapshot: Snapshot, name: str, inner: bytes, node: Node) -> Info:
    """Of any entry. A symlink looks like what it leads to; one that leads out of the snapshot is
    of the type "other"."""
    if node.kind != _SYMLINK:
        return _plain_info(snapshot, name, node)
    target = snapshot.entries.target(inner, node)
    info = _plain_info(snapshot, name, node if target is None else target)
    info["islink"] = True
    info["destination"] = decoded_path(node.target)
    if target is None:
        info["type"] = "other"
    return info


def _plain_info(snapshot: Snapshot, name: str, node: Node) -> Info:
    return {
        "name": name,
        "size": node.size_bytes,
        "type": "directory" if node.kind == _DIRECTORY else "file",
        "ETag": node.digest.hex(),
        "executable": node.executable,
        "islink": False,
        "commit": snapshot.commit,
        "mtime": snapshot.time_s,
    }

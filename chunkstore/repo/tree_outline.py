"""The parts of a stored directory that say where bytes lie: its packs and its subdirectories.

It does not decode files one by one, so it takes a fraction of the time of ``decode_tree``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.decoding import msgpack_decoder
from lodefs.chunkstore.format.names import ID_BYTES, PackId
from lodefs.chunkstore.format.tree import Kind, TreeEntry, group_entries, groups_of
from lodefs.chunkstore.types import Buffer

_NO_DIRECTORIES = bytes(tag for tag in range(256) if tag & 3 != Kind.DIRECTORY)


class Outline(NamedTuple):
    """``packs`` are those that the directory names by id; ``directories`` are its entries of kind
    directory. All other bytes are in a pack that holds the directory itself."""

    packs: set[PackId]
    directories: list[TreeEntry]


class _GroupOutline(msgspec.Struct, array_like=True):
    """The first columns of a group; the others are ignored."""

    names: msgspec.Raw
    tags: bytes
    sizes: msgspec.Raw = msgspec.Raw()
    digests: msgspec.Raw = msgspec.Raw()
    packs: bytes = b""


_decode = msgpack_decoder(_GroupOutline).decode


def outline(data: Buffer, own_pack: PackId | None) -> Outline:
    """Returns the outline of a stored form that lies in ``own_pack`` (None: in several packs). It
    checks less than ``decode_tree``. Raises: Corrupt, UnknownFormat, TooLarge."""
    found = Outline(set(), [])
    for group in groups_of(data):
        try:
            columns = _decode(group)
        except msgspec.DecodeError as error:
            raise Corrupt(f"a tree has an invalid group: {error}") from error
        found.packs.update(_ids(columns.packs))
        if columns.tags.translate(None, _NO_DIRECTORIES):
            entries = group_entries(group, own_pack)
            found.directories.extend(e for e in entries if e.kind is Kind.DIRECTORY)
    return found


def _ids(joined: bytes) -> Iterator[PackId]:
    if len(joined) % ID_BYTES:
        raise Corrupt("a tree's table of packs is truncated")
    return (PackId(joined[cut : cut + ID_BYTES]) for cut in range(0, len(joined), ID_BYTES))

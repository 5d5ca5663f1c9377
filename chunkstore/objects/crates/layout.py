"""Crates: objects that hold many small packs, one after the other, and the table of which pack lies
in which crate (docs/decisions/0051). docs/format.md has the layouts.

A pack in a crate is what it is outside, byte for byte, under its own id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ID_BYTES, CrateName, PackId
from lodefs.chunkstore.types import Buffer

VERSION = 1
TABLE_SIZE_BYTES_MAX = 64 * 1024 * 1024
TABLE_PACKS_MAX = 1_000_000  # what a writer puts into one table: 53 MB
TAIL_PACKS_MAX = 262_144  # of one crate
TAIL_HEAD_SIZE_BYTES = 64  # the end of a crate, which tells how long its list is
_TABLE_MAGIC = b"LODECRTB"
_CRATE_MAGIC = b"LODECRAT"
_FLAG_SUPERSEDED = 1
_TABLE_HEAD = struct.Struct("<8sHHQII")  # magic, version, flags, number, crates, packs
_TABLE_CRATE = struct.Struct("<Q8s")  # number, token
_TABLE_PACK = struct.Struct("<32sIQQ")  # id, crate in this table, offset, size
_TAIL_PACK = struct.Struct("<32sQQ")  # id, offset, size
_TAIL = struct.Struct("<8sHHIQQ")  # magic, version, flags, packs, crate's number, offset


class CratePlace(NamedTuple):
    """Where a pack lies in a crate."""

    crate: CrateName
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CrateTable:
    """Where all packs are that lie in crates. Numbers count from 0; the highest one counts."""

    number: int
    places: Mapping[PackId, CratePlace] = field(default_factory=dict)
    is_superseded: bool = False  # there is a newer one, and this one says nothing any more


def encode_table(table: CrateTable) -> bytes:
    """The bytes of a table. Raises: Corrupt for a pack without bytes."""
    _check_sizes(table.places.values(), "a table of crates")
    names = sorted({place.crate for place in table.places.values()})
    serials = {name: n for n, name in enumerate(names)}
    flags = _FLAG_SUPERSEDED if table.is_superseded else 0
    head = _TABLE_HEAD.pack(
        _TABLE_MAGIC, VERSION, flags, table.number, len(names), len(table.places)
    )
    parts = [head]
    parts += [_TABLE_CRATE.pack(name.number, bytes.fromhex(name.token)) for name in names]
    for pack, (crate, offset, size_bytes) in sorted(table.places.items()):
        parts.append(_TABLE_PACK.pack(pack, serials[crate], offset, size_bytes))
    body = b"".join(parts)
    return body + blake3(body).digest()


def decode_table(data: Buffer, number: int, what: str = "a table of crates") -> CrateTable:
    """The table of that number. Raises: Corrupt, UnknownFormat."""
    body = _checked(data, _TABLE_MAGIC, _TABLE_HEAD.size, what)
    _, version, flags, own, crates, packs = _TABLE_HEAD.unpack_from(body)
    _check_version(version, flags & ~_FLAG_SUPERSEDED, what)
    packs_at = _TABLE_HEAD.size + crates * _TABLE_CRATE.size
    if own != number or packs_at + packs * _TABLE_PACK.size != len(body):
        raise Corrupt(f"{what} is not the table {number}, or not as long as it says")
    rows = _TABLE_CRATE.iter_unpack(body[_TABLE_HEAD.size : packs_at])
    names = [CrateName(first, token.hex()) for first, token in rows]
    places: dict[PackId, CratePlace] = {}
    for pack, serial, offset, size_bytes in _TABLE_PACK.iter_unpack(body[packs_at:]):
        if serial >= crates or not size_bytes:
            raise Corrupt(f"{what}: pack {pack.hex()} is in no crate")
        places[PackId(pack)] = CratePlace(names[serial], offset, size_bytes)
    return CrateTable(number, places, bool(flags & _FLAG_SUPERSEDED))


def encode_tail(name: CrateName, places: Sequence[tuple[PackId, CratePlace]]) -> bytes:
    """What follows the packs of a crate: from it the table can be made again. Raises: Corrupt for a
    pack without bytes."""
    _check_sizes((place for _, place in places), keys.crate(name))
    end = max((place.offset + place.size_bytes for _, place in places), default=0)
    rows = [_TAIL_PACK.pack(pack, place.offset, place.size_bytes) for pack, place in places]
    head = _TAIL.pack(_CRATE_MAGIC, VERSION, 0, len(rows), name.number, end)
    body = b"".join([*rows, head])
    return body + blake3(body).digest()


def crate_size_bytes(packs: Sequence[int]) -> int:
    """How long a crate with packs of those sizes is."""
    return sum(packs) + len(packs) * _TAIL_PACK.size + TAIL_HEAD_SIZE_BYTES


def tail_size_bytes(data: Buffer, what: str) -> int:
    """How long the tail of a crate is, by the last TAIL_HEAD_SIZE_BYTES of it. Raises: Corrupt,
    UnknownFormat."""
    if len(data) < TAIL_HEAD_SIZE_BYTES or bytes(data[-TAIL_HEAD_SIZE_BYTES:][:8]) != _CRATE_MAGIC:
        raise Corrupt(f"{what} is not a crate")
    _, version, flags, packs, _, _ = _TAIL.unpack_from(data, len(data) - TAIL_HEAD_SIZE_BYTES)
    _check_version(version, flags, what)
    if packs > TAIL_PACKS_MAX:
        raise Corrupt(f"{what} cannot have {packs} packs")
    return int(packs) * _TAIL_PACK.size + TAIL_HEAD_SIZE_BYTES


def decode_tail(data: Buffer, name: CrateName, what: str) -> dict[PackId, CratePlace]:
    """The packs of a crate, by its tail. Raises: Corrupt, UnknownFormat."""
    size_bytes = tail_size_bytes(data, what)
    tail = memoryview(data)[-size_bytes:]
    body, checksum = tail[:-ID_BYTES], tail[-ID_BYTES:]
    number = _TAIL.unpack_from(body, len(body) - _TAIL.size)[4]
    if blake3(body).digest() != checksum or number != name.number:
        raise Corrupt(f"{what} does not match its checksum, or is another crate")
    places = {
        PackId(pack): CratePlace(name, offset, size)
        for pack, offset, size in _TAIL_PACK.iter_unpack(body[: -_TAIL.size])
    }
    _check_sizes(places.values(), what)
    return places


def _checked(data: Buffer, magic: bytes, head_size_bytes: int, what: str) -> memoryview:
    if len(data) < head_size_bytes + ID_BYTES or bytes(data[: len(magic)]) != magic:
        raise Corrupt(f"{what} is not what its key says")
    body, checksum = memoryview(data)[:-ID_BYTES], memoryview(data)[-ID_BYTES:]
    if blake3(body).digest() != checksum:
        raise Corrupt(f"{what} does not match its checksum")
    return body


def _check_sizes(places: Iterable[CratePlace], what: str) -> None:
    if any(place.size_bytes < 1 for place in places):
        raise Corrupt(f"{what} has a pack without bytes")


def _check_version(version: int, unknown_flags: int, what: str) -> None:
    if version != VERSION or unknown_flags:
        raise UnknownFormat(
            f"{what} is of format {version} with flags {unknown_flags:#x}, which this lodefs does "
            "not know: a newer lodefs is needed"
        )

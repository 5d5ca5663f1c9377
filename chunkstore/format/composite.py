"""Composites: objects that hold many small packs, one after the other, and the table of their packs
(docs/decisions/0051). docs/format.md has the layouts.

A pack is the same in a composite and outside, byte for byte, and keeps its id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, UnknownFormat
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.keys import descending, number_in
from lodefs.chunkstore.format.names import ID_BYTES, PackId, is_hex
from lodefs.chunkstore.types import Buffer

VERSION = 1
COMPOSITES = "composites/data/"
TABLES = "composites/tables/"
LOOKED = "composites/looked"
TABLE_SIZE_BYTES_MAX = LOOKED_SIZE_BYTES_MAX = 64 * 1024 * 1024
TABLE_PACKS_MAX = 1_000_000  # limit for writers: a table of 53 MB
TAIL_PACKS_MAX = 262_144  # limit for one composite
TAIL_HEAD_SIZE_BYTES = 64  # the end of a composite, with the length of its list
_TABLE_MAGIC = b"LODECMTB"
_COMPOSITE_MAGIC = b"LODECMPS"
_FLAG_SUPERSEDED = 1
_FLAG_RESTORED = 2
_TABLE_HEAD = struct.Struct("<8sHHQII")  # magic, version, flags, number, composites, packs
_TABLE_COMPOSITE = struct.Struct("<Q8s")  # number, token
_TABLE_PACK = struct.Struct("<32sIQQ")  # id, composite in this table, offset, size
_TAIL_PACK = struct.Struct("<32sQQ")  # id, offset, size
_TAIL = struct.Struct("<8sHHIQQ")  # magic, version, flags, packs, composite's number, offset


class CompositeName(NamedTuple):
    """``number`` is that of the table that names the composite first; ``token`` is 16 random hex
    characters."""

    number: int
    token: str

    @property
    def key(self) -> str:
        """Returns ``composites/data/<10 digits>-<16 hex>``."""
        return f"{COMPOSITES}{self.number:010d}-{self.token}"


def name_of(key: str) -> CompositeName | None:
    """Returns the name of the composite at ``key``; None for any other key."""
    digits, _, token = key.removeprefix(COMPOSITES).partition("-")
    name = CompositeName(int(digits), token) if digits.isdigit() else None
    is_token = len(token) == 16 and is_hex(token)
    return name if name is not None and is_token and key == name.key else None


def table_key(number: int) -> str:
    """Returns ``composites/tables/<10 digits, descending>``; numbers count from 0."""
    return descending(TABLES, number)


def table_number(key: str) -> int:
    """Returns the number of the table of composites at ``key``; -1 for any other key."""
    return number_in(TABLES, key)


class CompositePlace(NamedTuple):
    """The place of a pack in a composite."""

    composite: CompositeName
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CompositeTable:
    """The places of all packs in composites. Numbers count from 0; the highest one is current."""

    number: int
    places: Mapping[PackId, CompositePlace] = field(default_factory=dict)
    is_superseded: bool = False  # a newer table has replaced this one, which is emptied
    # this table, or one before it, was rebuilt from a list of composites, which may have lacked
    # some
    is_restored: bool = False

    @property
    def composites(self) -> set[CompositeName]:
        """Returns the composites that packs lie in."""
        return {place.composite for place in self.places.values()}


@dataclass(frozen=True, slots=True)
class PurgeScanState:
    """The composites that were scanned for purged bytes. ``purge`` is the number of the newest
    purge then. ``unused`` has the composites whose unused parts had no purged bytes, and how many
    bytes these were. Unused bytes only grow, so if the number is the same, the result is the
    same."""

    purge: int = -1
    unused: Mapping[CompositeName, int] = field(default_factory=dict)


class _LookedBody(msgspec.Struct, forbid_unknown_fields=True):
    purge: int
    unused: dict[str, int]


def encode_table(table: CompositeTable) -> bytes:
    """Returns the bytes of a table. Raises: Corrupt for a pack without bytes."""
    _check_sizes(table.places.values(), "a table of composites")
    names = sorted(table.composites)
    serials = {name: n for n, name in enumerate(names)}
    flags = _FLAG_SUPERSEDED * table.is_superseded | _FLAG_RESTORED * table.is_restored
    head = _TABLE_HEAD.pack(
        _TABLE_MAGIC, VERSION, flags, table.number, len(names), len(table.places)
    )
    parts = [head]
    parts += [_TABLE_COMPOSITE.pack(name.number, bytes.fromhex(name.token)) for name in names]
    for pack, (composite, offset, size_bytes) in sorted(table.places.items()):
        parts.append(_TABLE_PACK.pack(pack, serials[composite], offset, size_bytes))
    body = b"".join(parts)
    return body + blake3(body).digest()


def decode_table(data: Buffer, number: int, what: str = "a table of composites") -> CompositeTable:
    """Returns the table with that number. Raises: Corrupt, UnknownFormat."""
    body, checksum = memoryview(data)[:-ID_BYTES], memoryview(data)[-ID_BYTES:]
    if len(body) < _TABLE_HEAD.size or bytes(body[: len(_TABLE_MAGIC)]) != _TABLE_MAGIC:
        raise Corrupt(f"{what} does not match its key")
    if blake3(body).digest() != checksum:
        raise Corrupt(f"{what} does not match its checksum")
    _, version, flags, own, composites, packs = _TABLE_HEAD.unpack_from(body)
    _check_version(version, flags & ~(_FLAG_SUPERSEDED | _FLAG_RESTORED), what)
    packs_at = _TABLE_HEAD.size + composites * _TABLE_COMPOSITE.size
    if own != number or packs_at + packs * _TABLE_PACK.size != len(body):
        raise Corrupt(f"{what} is not the table {number}, or has the wrong length")
    rows = _TABLE_COMPOSITE.iter_unpack(body[_TABLE_HEAD.size : packs_at])
    names = [CompositeName(first, token.hex()) for first, token in rows]
    places: dict[PackId, CompositePlace] = {}
    for pack, serial, offset, size_bytes in _TABLE_PACK.iter_unpack(body[packs_at:]):
        if serial >= composites or not size_bytes:
            raise Corrupt(f"{what}: pack {pack.hex()} is in no composite")
        places[PackId(pack)] = CompositePlace(names[serial], offset, size_bytes)
    is_superseded, is_restored = bool(flags & _FLAG_SUPERSEDED), bool(flags & _FLAG_RESTORED)
    return CompositeTable(number, places, is_superseded, is_restored)


def encode_tail(name: CompositeName, places: Sequence[tuple[PackId, CompositePlace]]) -> bytes:
    """Returns what follows the packs of a composite: the table can be rebuilt from it. Raises:
    Corrupt for a pack without bytes."""
    _check_sizes((place for _, place in places), name.key)
    end = max((place.offset + place.size_bytes for _, place in places), default=0)
    rows = [_TAIL_PACK.pack(pack, place.offset, place.size_bytes) for pack, place in places]
    head = _TAIL.pack(_COMPOSITE_MAGIC, VERSION, 0, len(rows), name.number, end)
    body = b"".join([*rows, head])
    return body + blake3(body).digest()


def composite_size_bytes(packs: Sequence[int]) -> int:
    """Returns the length of a composite with packs of those sizes."""
    return sum(packs) + len(packs) * _TAIL_PACK.size + TAIL_HEAD_SIZE_BYTES


def tail_size_bytes(data: Buffer, what: str) -> int:
    """Returns the length of a composite's tail, from its last TAIL_HEAD_SIZE_BYTES. Raises:
    Corrupt."""
    if (
        len(data) < TAIL_HEAD_SIZE_BYTES
        or bytes(data[-TAIL_HEAD_SIZE_BYTES:][:8]) != _COMPOSITE_MAGIC
    ):
        raise Corrupt(f"{what} is not a composite")
    packs = _TAIL.unpack_from(data, len(data) - TAIL_HEAD_SIZE_BYTES)[3]
    if packs > TAIL_PACKS_MAX:
        raise Corrupt(f"{what} cannot have {packs} packs")
    return int(packs) * _TAIL_PACK.size + TAIL_HEAD_SIZE_BYTES


def decode_tail(data: Buffer, name: CompositeName, what: str) -> dict[PackId, CompositePlace]:
    """Returns the packs of a composite from its tail. Raises: Corrupt, UnknownFormat."""
    size_bytes = tail_size_bytes(data, what)
    tail = memoryview(data)[-size_bytes:]
    body, checksum = tail[:-ID_BYTES], tail[-ID_BYTES:]
    _, version, flags, _, number, _ = _TAIL.unpack_from(body, len(body) - _TAIL.size)
    if blake3(body).digest() != checksum or number != name.number:
        raise Corrupt(f"{what} does not match its checksum, or is another composite")
    _check_version(version, flags, what)
    places = {
        PackId(pack): CompositePlace(name, offset, size)
        for pack, offset, size in _TAIL_PACK.iter_unpack(body[: -_TAIL.size])
    }
    _check_sizes(places.values(), what)
    return places


def encode_looked(looked: PurgeScanState) -> bytes:
    """Returns the document."""
    unused = {name.key.removeprefix(COMPOSITES): n for name, n in looked.unused.items()}
    return seal("composites-looked", VERSION, _LookedBody(looked.purge, unused))


def decode_looked(data: Buffer, what: str) -> PurgeScanState:
    """Returns what the document says. Raises: Corrupt, UnknownFormat."""
    body = unseal("composites-looked", {VERSION: _LookedBody}, data, what)
    unused: dict[CompositeName, int] = {}
    for text, size_bytes in body.unused.items():
        name = name_of(COMPOSITES + text)
        if name is None:
            raise Corrupt(f"{what}: {text!r} is not a composite")
        unused[name] = size_bytes
    return PurgeScanState(body.purge, unused)


def _check_sizes(places: Iterable[CompositePlace], what: str) -> None:
    if any(place.size_bytes < 1 for place in places):
        raise Corrupt(f"{what} has a pack without bytes")


def _check_version(version: int, unknown_flags: int, what: str) -> None:
    if version != VERSION or unknown_flags:
        raise UnknownFormat(
            f"{what} is of format {version} with flags {unknown_flags:#x}, which this lodefs does "
            "not know: a newer lodefs is needed"
        )

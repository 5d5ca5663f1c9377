"""Virtual packs: some of their chunks lie in objects that lodefs did not write.

The object of such a pack has the stored bytes of its other chunks, the index of all of them, the
place field, and the trailer (docs/format.md). The place field names objects by their key below a
source, whose URL only the settings of readers know, so a pack cannot make a reader ask elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.compression import RAW
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.format.names import PackId, check_source
from lodefs.chunkstore.format.pack import (
    GONE,
    PACK_CHUNKS_LIMIT,
    PackIndex,
    Trailer,
    checked_tail,
)
from lodefs.chunkstore.types import Buffer

OBJECTS_MAX = 1024  # limit for writers: then a place field has at most 1.4 MB
KEY_BYTES_MAX = 1024
TAG_CHARS_MAX = 1024  # of an ETag or version
OWN = -1  # in place of an object's number: the pack's own object


class SourceObject(NamedTuple):
    """One object of a source, in the state in which it was read. ``key`` is relative to the
    source's URL; ``version`` is "" if its bucket keeps no versions."""

    source: str
    key: str
    size_bytes: int
    etag: str
    version: str


class PlacedRun(NamedTuple):
    """``chunks`` chunks from number ``first`` on lie in a row in an object (by its number), from
    ``offset`` on."""

    first: int
    chunks: int
    object: int
    offset: int


class Piece(NamedTuple):
    """Bytes that lie in a row, in an object (by its number, or OWN) from ``offset`` on."""

    size_bytes: int
    object: int
    offset: int


class _PlaceField(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The columns of the place field."""

    sources: list[str]
    source_numbers: list[int]  # for each object, as the next ones
    keys: list[str]
    sizes_bytes: list[int]
    etags: list[str]
    versions: list[str]
    runs: list[int]  # four numbers for each, those of PlacedRun


@dataclass(frozen=True)
class VirtualPack:
    """The contents of a virtual pack. Its chunks lie in ``runs``, the rest in its own object, in
    their order; ``index`` is that of an ordinary pack with all of the bytes."""

    index: PackIndex
    objects: Sequence[SourceObject]
    runs: Sequence[PlacedRun]

    @cached_property
    def pieces(self) -> Sequence[Piece]:
        """Where the bytes of an ordinary pack lie, up to its index, in their order."""
        found: list[Piece] = []
        for piece in self._pieces():
            last = found[-1] if found else None
            if last and (last.object, last.offset + last.size_bytes) == piece[1:]:
                found[-1] = Piece(last.size_bytes + piece.size_bytes, *last[1:])
            else:
                found.append(piece)
        return found

    @property
    def own_size_bytes(self) -> int:
        """The bytes of chunks in the pack's own object."""
        return sum(piece.size_bytes for piece in self._pieces() if piece.object == OWN)

    def all_runs(self) -> Iterator[PlacedRun | tuple[int, int]]:
        """Yields the runs in objects, and between them those (first, count) of the pack's own."""
        end = 0
        for run in self.runs:
            if run.first > end:
                yield end, run.first - end
            yield run
            end = run.first + run.chunks
        if end < len(self.index):
            yield end, len(self.index) - end

    def placed(self, number: int | None = None) -> int:
        """Returns the chunks (bits of their numbers) that lie in the object with a number, or in
        any."""
        runs = (run for run in self.runs if number in (None, run.object))
        return sum(self.bits(run) for run in runs)

    @staticmethod
    def bits(run: PlacedRun) -> int:
        """Returns the chunks of a run."""
        return (1 << run.first + run.chunks) - (1 << run.first)

    def encode_tail(self) -> bytes:
        """Returns what follows the chunks in the pack's own object: index, place field,
        trailer."""
        sources = sorted({one.source for one in self.objects})
        field = _PlaceField(
            sources,
            [sources.index(one.source) for one in self.objects],
            [one.key for one in self.objects],
            [one.size_bytes for one in self.objects],
            [one.etag for one in self.objects],
            [one.version for one in self.objects],
            [number for run in self.runs for number in run],
        )
        return self.index.encode_with(msgspec.msgpack.encode(field), self.own_size_bytes)

    @classmethod
    def decode(cls, pack_id: PackId, data: Buffer) -> VirtualPack:
        """Returns a pack from the end of its object. Raises: Corrupt, UnknownFormat."""
        what = f"pack {pack_id.hex()}"
        trailer = Trailer.decode(pack_id, data, virtual=True)
        tail = checked_tail(pack_id, trailer, data)
        index = PackIndex.of_columns(pack_id, trailer, tail)
        try:
            field = from_msgpack(tail[trailer.index_size_bytes :], _PlaceField)
            objects = _objects(field)
            runs = _runs(field, index, objects)
        except InvalidInput as error:
            raise Corrupt(f"{what}: its place field is damaged: {error}") from error
        found = cls(index, objects, runs)
        if found.own_size_bytes != trailer.index_offset:
            raise Corrupt(f"{what}: its chunks do not fill the object up to the index")
        return found

    def _pieces(self) -> Iterator[Piece]:
        """Yields the pieces of runs and of what lies between them."""
        own_offset = end = 0
        offsets, raw = self.index.offsets, self.index.raw_offsets
        for run in self.runs:
            if size_bytes := offsets[run.first] - offsets[end]:
                yield Piece(size_bytes, OWN, own_offset)
                own_offset += size_bytes
            for first, count in self.index.live_runs(run.first, run.chunks):
                shift = raw[first] - raw[run.first]
                yield Piece(raw[first + count] - raw[first], run.object, run.offset + shift)
            end = run.first + run.chunks
        if size_bytes := offsets[-1] - offsets[end]:
            yield Piece(size_bytes, OWN, own_offset)


def is_condition(tag: str) -> bool:
    """Whether a request can have an ETag, or a version, as its condition. A weak ETag (RFC 9110,
    8.8.3) matches no condition."""
    is_text = tag.isascii() and tag.isprintable() and not tag.startswith("W/")
    return is_text and 0 < len(tag) <= TAG_CHARS_MAX


def check_object_key(key: str) -> str:
    """Returns the valid key of a source's object, which is a path below the source. Raises:
    InvalidInput."""
    is_path = not any(part in ("", ".", "..") for part in key.split("/")) and "\0" not in key
    if not is_path or len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidInput(f"{key!r} is not the path of an object below a source")
    return key


def _objects(field: _PlaceField) -> list[SourceObject]:
    """Returns the objects of a place field. Raises: InvalidInput."""
    columns = (field.source_numbers, field.keys, field.sizes_bytes, field.etags, field.versions)
    lengths = {len(column) for column in columns}
    if not 0 < len(field.keys) <= PACK_CHUNKS_LIMIT or len(lengths) != 1:
        raise InvalidInput("its columns are not equally long")
    sources = [check_source(name) for name in field.sources]
    found: list[SourceObject] = []
    for number, key, size_bytes, etag, version in zip(*columns, strict=True):
        if not 0 <= number < len(sources) or size_bytes < 1:
            raise InvalidInput("an object has no source or no bytes")
        if not is_condition(etag) or (version and not is_condition(version)):
            raise InvalidInput("no request can have an object's ETag or version as its condition")
        key = check_object_key(key)
        found.append(SourceObject(sources[number], key, size_bytes, etag, version))
    return found


def _runs(field: _PlaceField, index: PackIndex, objects: Sequence[SourceObject]) -> list[PlacedRun]:
    """Returns the runs of a place field. Raises: InvalidInput."""
    if not field.runs or len(field.runs) % 4:
        raise InvalidInput("its runs are incomplete")
    found: list[PlacedRun] = []
    end, raw = 0, index.raw_offsets
    for at in range(0, len(field.runs), 4):
        run = PlacedRun(*field.runs[at : at + 4])
        if run.first < end or run.chunks < 1 or run.first + run.chunks > len(index):
            raise InvalidInput("its runs are out of order, or beyond the last chunk")
        end = run.first + run.chunks
        if not 0 <= run.object < len(objects) or run.offset < 0:
            raise InvalidInput("a run lies in no object")
        if run.offset + raw[end] - raw[run.first] > objects[run.object].size_bytes:
            raise InvalidInput("a run ends after its object")
        if index.codecs[run.first : end].translate(None, bytes((RAW, *GONE))):
            raise InvalidInput("a chunk in an object is compressed")
        found.append(run)
    return found

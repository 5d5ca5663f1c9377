"""The purges of a store: chunks that must be gone for good (docs/format.md has the table).

They are a sequence of put-if-absent objects, like a ref. None is ever removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from lodefs.chunkstore.errors import AlreadyExists, Corrupt, InvalidInput, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import ChunkId, parse_id
from lodefs.chunkstore.objects.interface import ObjectStore, exists, read_whole
from lodefs.chunkstore.repo.gallop import last_of_row
from lodefs.chunkstore.types import Buffer

VERSION = 1
CHUNKS_MAX = 8192  # in one document: 540 KB
WHAT_CHARS_MAX = 8192
SIZE_BYTES_MAX = 1024 * 1024
READERS = 16  # purges that are read at once


@dataclass(frozen=True, slots=True)
class Purge:
    """``what`` is a repository and path, percent-encoded, or "" if chunks were purged by id."""

    number: int
    time_s: int  # Unix time
    what: str
    chunks: tuple[ChunkId, ...]


class _PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    time_s: int
    what: str
    chunks: list[str]


def encode_purge(purge: Purge) -> bytes:
    """Returns the document; a path that is too long is cut. Raises: InvalidInput for too many
    chunks."""
    if len(purge.chunks) > CHUNKS_MAX:
        raise InvalidInput(f"a purge has at most {CHUNKS_MAX} chunks, not {len(purge.chunks)}")
    chunks = [chunk.hex() for chunk in purge.chunks]
    what = _cut(purge.what)
    return seal("purge", VERSION, _PurgeBody(purge.number, purge.time_s, what, chunks))


def _cut(what: str) -> str:
    """Cuts the text, which is only for display: a long one ends in "...", and not within a
    percent-encoded byte."""
    if len(what) <= WHAT_CHARS_MAX:
        return what
    return re.sub("%.?$", "", what[: WHAT_CHARS_MAX - 3]) + "..."


def decode_purge(data: Buffer, number: int, what: str) -> Purge:
    """Returns the purge with that number. Raises: Corrupt, UnknownFormat; ``what`` names it in
    these."""
    body = unseal("purge", {VERSION: _PurgeBody}, data, what)
    if body.number != number:
        raise Corrupt(f"{what} is purge {body.number}, not {number}")
    try:
        chunks = tuple(ChunkId(parse_id(chunk)) for chunk in body.chunks)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    return Purge(number, body.time_s, body.what, chunks)


def purged_only_in(source: ObjectStore, other: ObjectStore) -> list[Purge]:
    """Returns the purges of a store, with those of their chunks that were purged neither before nor
    in another store. Raises what Purges raises."""
    purges = list(Purges(source).after(-1))
    known = set(Purges(other).chunks()) if purges else set()
    found = []
    for one in purges:
        if chunks := tuple(chunk for chunk in one.chunks if chunk not in known):
            found.append(replace(one, chunks=chunks))
            known.update(chunks)
    return found


class Purges:
    """The purges of one store. Many threads may use it at once. Methods raise what the store
    raises, and Corrupt, UnknownFormat."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def newest(self, known: int = -1) -> int:
        """Returns the newest number, or -1. It takes one request if there is none after
        ``known``."""
        return last_of_row(self._has, known)

    def after(self, known: int) -> Iterator[Purge]:
        """Yields the purges after number ``known``, in order. If there are none, it takes one
        request. Otherwise a list says how many to read at once; any that the list lacks are read
        one by one."""
        first = self._read(known + 1)
        if first is None:
            return
        yield first
        number = known + 2
        listed = sum(1 for _ in self._objects.list(keys.PURGES, after=keys.purge(known + 1)))
        if listed:
            with ThreadPoolExecutor(min(listed, READERS), "lodefs-purges") as executor:
                for at in range(number, number + listed, READERS):
                    some = range(at, min(at + READERS, number + listed))
                    for purge in executor.map(self._read, some):
                        if purge is None:
                            return
                        yield purge
        number += listed
        while (purge := self._read(number)) is not None:
            yield purge
            number += 1

    def chunks(self) -> frozenset[ChunkId]:
        """Returns the chunks of all purges."""
        return frozenset(chunk for purge in self.after(-1) for chunk in purge.chunks)

    def _read(self, number: int) -> Purge | None:
        key = keys.purge(number)
        try:
            data = read_whole(self._objects, key, SIZE_BYTES_MAX).data
        except NotFound:
            return None
        return decode_purge(data, number, key)

    def append(self, chunks: Sequence[ChunkId], what: str, time_s: int) -> int:
        """Puts as many new purges as are needed. Returns the number of the last one."""
        number = self.newest()
        for at in range(0, len(chunks), CHUNKS_MAX):
            part = tuple(chunks[at : at + CHUNKS_MAX])
            while True:
                number += 1
                data = encode_purge(Purge(number, time_s, what, part))
                try:
                    self._objects.put(keys.purge(number), [data], if_absent=True)
                except AlreadyExists:
                    continue
                break
        return number

    def _has(self, number: int) -> bool:
        return exists(self._objects, keys.purge(number))

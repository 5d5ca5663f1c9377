"""The purges of a store: what somebody wanted to be gone for good (docs/format.md has the table).

A row of put-if-absent objects, as a ref is. None is ever removed.
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
CHUNKS_MAX = 8192  # of one document: 540 KB
WHAT_CHARS_MAX = 8192
SIZE_BYTES_MAX = 1024 * 1024
READERS = 16  # of purges, side by side


@dataclass(frozen=True, slots=True)
class Purge:
    """``what``: a repository and path, percent-encoded, or "" where chunks were named."""

    number: int
    time_s: int  # Unix
    what: str
    chunks: tuple[ChunkId, ...]


class _PurgeBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    time_s: int
    what: str
    chunks: list[str]


def encode_purge(purge: Purge) -> bytes:
    """The document; of too long a path the beginning. Raises: InvalidInput for too many chunks."""
    if len(purge.chunks) > CHUNKS_MAX:
        raise InvalidInput(f"a purge has {CHUNKS_MAX} chunks at most, not {len(purge.chunks)}")
    chunks = [chunk.hex() for chunk in purge.chunks]
    what = _cut(purge.what)
    return seal("purge", VERSION, _PurgeBody(purge.number, purge.time_s, what, chunks))


def _cut(what: str) -> str:
    """It says what was purged, and decides nothing: a long one ends in "...", not in the middle of
    a percent-encoded byte."""
    if len(what) <= WHAT_CHARS_MAX:
        return what
    return re.sub("%.?$", "", what[: WHAT_CHARS_MAX - 3]) + "..."


def decode_purge(data: Buffer, number: int, what: str) -> Purge:
    """The purge of that number. Raises: Corrupt, UnknownFormat; ``what`` names it in these."""
    body = unseal("purge", {VERSION: _PurgeBody}, data, what)
    if body.number != number:
        raise Corrupt(f"{what} is purge {body.number}, not {number}")
    try:
        chunks = tuple(ChunkId(parse_id(chunk)) for chunk in body.chunks)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    return Purge(number, body.time_s, body.what, chunks)


def purged_only_in(source: ObjectStore, other: ObjectStore) -> list[Purge]:
    """The purges of a store, with those of their chunks that were not purged before, nor in another
    store. Raises: as Purges."""
    purges = list(Purges(source).after(-1))
    known = set(Purges(other).chunks()) if purges else set()
    found = []
    for one in purges:
        if chunks := tuple(chunk for chunk in one.chunks if chunk not in known):
            found.append(replace(one, chunks=chunks))
            known.update(chunks)
    return found


class Purges:
    """Safe for many threads. Methods raise what the store does, and Corrupt, UnknownFormat."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def newest(self, known: int = -1) -> int:
        """The newest number, -1 without any; one request where there is none after ``known``."""
        return last_of_row(self._has, known)

    def after(self, known: int) -> Iterator[Purge]:
        """The purges after number ``known``, in their order. One request where there is none; where
        there are, a list says how many may be read side by side: if it lacks some, they are read
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
        """Those of all purges."""
        return frozenset(chunk for purge in self.after(-1) for chunk in purge.chunks)

    def _read(self, number: int) -> Purge | None:
        key = keys.purge(number)
        try:
            data = read_whole(self._objects, key, SIZE_BYTES_MAX).data
        except NotFound:
            return None
        return decode_purge(data, number, key)

    def append(self, chunks: Sequence[ChunkId], what: str, time_s: int) -> int:
        """Puts the next purges, as many as are needed; the number of the last."""
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

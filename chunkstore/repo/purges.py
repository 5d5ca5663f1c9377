"""The purges of a store: a row of put-if-absent objects, as a ref is. None is ever removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lodefs.chunkstore.errors import AlreadyExists, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import ChunkId
from lodefs.chunkstore.format.purge import (
    CHUNKS_MAX,
    SIZE_BYTES_MAX,
    Purge,
    decode_purge,
    encode_purge,
)
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.repo.gallop import last_of_row


class Purges:
    """Safe for many threads. Methods raise what the store does, and Corrupt, UnknownFormat."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def newest(self, known: int = -1) -> int:
        """The newest number, -1 without any; one request where there is none after ``known``."""
        return last_of_row(self._has, known)

    def after(self, known: int) -> Iterator[Purge]:
        """The purges after number ``known``, in their order."""
        number = known
        while True:
            number += 1
            key = keys.purge(number)
            try:
                data = read_whole(self._objects, key, SIZE_BYTES_MAX).data
            except NotFound:
                return
            yield decode_purge(data, number, key)

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
        try:
            self._objects.head(keys.purge(number))
        except NotFound:
            return False
        return True

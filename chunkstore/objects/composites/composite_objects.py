"""An object store in which packs that lie in composites are where they would be without.

A pack's own object comes first. Only one that is not whole gives way to what is in a composite,
which lacks no more than collections and purges allow. So a store without composites costs a process
three requests more at the first pack that is missing or not whole, then one for each that is
missing. ETags of packs in composites say where they lie: a range of one is one request, as of any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from heapq import merge
from itertools import islice

from lodefs.chunkstore.errors import AlreadyExists, Changed, Denied, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CompositeName, PackId
from lodefs.chunkstore.format.pack import MAGIC, TRAILER_SIZE_BYTES, VERSION_GONE
from lodefs.chunkstore.objects.composites.composite_tables import CompositeTables
from lodefs.chunkstore.objects.composites.layout import (
    CompositePlace,
)
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.range_order import RangeOrder, range_order
from lodefs.chunkstore.types import Buffer

_TRIES = 3  # of a pack that is moved again and again
_ETAG = re.compile(r"composite(\d+)-([0-9a-f]{16}):(\d+)\+(\d+):(.*)\Z", re.DOTALL)


class CompositeObjects:
    """An ObjectStore over ``plain``, which shows composites as what they are."""

    def __init__(self, plain: ObjectStore) -> None:
        self.plain = plain
        self.tables = CompositeTables(plain)

    @property
    def url(self) -> str:
        return self.plain.url

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        pack_id = keys.pack_of(key)
        if pack_id is None:
            return self.plain.get(key, offset=offset, size=size, if_match=if_match)
        if if_match is not None and (found := split_etag(if_match)) is not None:
            try:
                return self._read(*found, offset, size)
            except (NotFound, Changed) as error:
                raise Changed(f"{key} was moved: {error}") from error
        try:
            part = self.plain.get(key, offset=offset, size=size, if_match=if_match)
        except NotFound as missing:
            if not self._is_moved(pack_id, missing):
                raise  # it says why, where a directory has something else there
            if if_match is not None:
                raise Changed(f"{key} was put into a composite") from None
            return self.get_in_composite(pack_id, offset=offset, size=size)
        if if_match is None and _lacks_chunks(part, offset):
            try:
                if self.tables.recent(pack_id) is None:
                    return part
                return self.get_in_composite(pack_id, offset=offset, size=size)
            except (NotFound, Denied):  # who may not list composites reads what is here
                return part
        return part

    def _is_moved(self, pack_id: PackId, missing: NotFound) -> bool:
        """Whether a pack without an object of its own is in a composite. Raises: NotFound, saying
        so, if that may not be looked at; Corrupt."""
        try:
            return self.tables.find(pack_id) is not None
        except Denied as error:
            raise NotFound(f"{missing}; if it is in a composite cannot be seen: {error}") from error

    def get_in_composite(self, pack_id: PackId, *, offset: int = 0, size: int) -> Part:
        """As ``get``, of what lies in a composite. Raises: NotFound if the pack is in none, or its
        composite is missing."""
        place = self.tables.find(pack_id)
        for _ in range(_TRIES):
            if place is None:
                raise NotFound(
                    f"{keys.pack(pack_id)} is not in {self.url}, and in no composite there"
                )
            try:
                return self._read(place, None, offset, size)
            except NotFound:
                before, place = place, self.tables.newest().places.get(pack_id)
                if place == before:
                    break
        raise NotFound(
            f"{keys.composite(before.composite)}, which holds {keys.pack(pack_id)}, is missing"
        )

    def head(self, key: str) -> ObjectInfo:
        try:
            return self.plain.head(key)
        except NotFound as missing:
            pack_id = keys.pack_of(key)
            if pack_id is None or not self._is_moved(pack_id, missing):
                raise
        part = self.get_in_composite(pack_id, size=1)
        return ObjectInfo(key, part.object_size_bytes, part.etag)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        pack_id = keys.pack_of(key)
        # A whole pack beside the same one in a composite harms nobody, and most puts are of such.
        if pack_id is None or (if_absent and not _is_partial(data[-1])):
            return self.plain.put(key, data, if_absent=if_absent)
        if self._is_in_composite(pack_id):
            if if_absent:
                raise AlreadyExists(f"{key} exists already, in a composite")
            return self._put_over(pack_id, data)
        etag = self.plain.put(key, data, if_absent=if_absent)
        if not self._is_in_composite(pack_id):
            return etag
        if not _is_partial(data[-1]):  # it has just been put there
            return self._put_over(pack_id, data)
        # Who merged it saw more of it, maybe, than who made this.
        self.plain.delete(key)
        if if_absent:
            raise AlreadyExists(f"{key} exists already, in a composite")
        raise Changed(f"{key} was put into a composite")

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        plain = self.plain.list(prefix, after=after, limit=limit)
        if not prefix.startswith(keys.PACKS) and not keys.PACKS.startswith(prefix):
            return plain
        return islice(self._merged(plain, prefix, after), limit)

    def delete(self, key: str) -> None:
        """Removes the object. A pack that is in a composite stays there: see
        CompositeTables.remove."""
        self.plain.delete(key)

    def close(self) -> None:
        self.plain.close()

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """As of OrderSource, of packs in composites too."""
        found = split_etag(if_match)
        if found is not None:
            place, if_match = found
            key, offset = keys.composite(place.composite), place.offset + offset
        return range_order(self.plain, key, offset, size_bytes, if_match)

    def _is_in_composite(self, pack_id: PackId) -> bool:
        return pack_id in self.tables.newest().places

    def _put_over(self, pack_id: PackId, data: Sequence[Buffer]) -> str:
        """Puts a pack over the one that is in a composite. The old bytes stay there: a purge, and a
        merge, look for such (maintenance/in_composites/composite_remains.py)."""
        self.tables.put_packs({pack_id: b"".join(data)})
        self.plain.delete(keys.pack(pack_id))
        return self.get_in_composite(pack_id, size=1).etag

    def _merged(self, plain: Iterator[ObjectInfo], prefix: str, after: str) -> Iterator[ObjectInfo]:
        places = self.tables.newest().places
        inside = sorted(
            (key, place)
            for key, place in ((keys.pack(pack), place) for pack, place in places.items())
            if key.startswith(prefix) and key > after
        )
        infos = (ObjectInfo(key, at.size_bytes, join_etag(at, "")) for key, at in inside)
        last = ""
        for info in merge(plain, infos, key=lambda info: info.key):
            if info.key != last:
                yield info
            last = info.key

    def _read(self, place: CompositePlace, etag: str | None, offset: int, size: int) -> Part:
        first = max(0, place.size_bytes + offset) if offset < 0 else offset
        size = max(0, min(size, place.size_bytes - first))
        first = min(first, place.size_bytes)
        key = keys.composite(place.composite)
        if not size:
            etag = self.plain.head(key).etag
            return Part(b"", place.size_bytes, join_etag(place, etag))
        part = self.plain.get(key, offset=place.offset + first, size=size, if_match=etag or None)
        return Part(part.data, place.size_bytes, join_etag(place, part.etag))


def through_composites(objects: ObjectStore) -> CompositeObjects:
    """The store that knows its composites."""
    return objects if isinstance(objects, CompositeObjects) else CompositeObjects(objects)


def join_etag(place: CompositePlace, etag: str) -> str:
    """The ETag of a pack in a composite that has that ETag."""
    composite, offset, size_bytes = place
    return f"composite{composite.number}-{composite.token}:{offset}+{size_bytes}:{etag}"


def split_etag(etag: str) -> tuple[CompositePlace, str] | None:
    """Where the pack lies, and the ETag of its composite; None if it is in none."""
    found = _ETAG.match(etag)
    if found is None:
        return None
    name = CompositeName(int(found[1]), found[2])
    return CompositePlace(name, int(found[3]), int(found[4])), found[5]


def _lacks_chunks(part: Part, offset: int) -> bool:
    """Whether bytes of a pack are its end, which says that it is not whole."""
    is_end = offset < 0 or offset + len(part.data) == part.object_size_bytes
    return is_end and _is_partial(part.data)


def _is_partial(end: Buffer) -> bool:
    trailer = bytes(memoryview(end)[-TRAILER_SIZE_BYTES:])
    version = int.from_bytes(trailer[len(MAGIC) : len(MAGIC) + 2], "little")
    return trailer.startswith(MAGIC) and version == VERSION_GONE

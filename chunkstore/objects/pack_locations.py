"""An object store in which each pack is found at its own key, even if it lies in a composite.

A pack's own object takes precedence. Only if it is incomplete, the pack is read from a composite,
where it lacks only what gc runs and purges allow. So without composites, a process makes three more
requests for the first pack that is missing or incomplete, and then one for each that is missing.
The ETag of a pack in a composite says where it lies, so a range of it takes one request, like any
other range.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from heapq import merge
from itertools import islice

from lodefs.chunkstore.errors import AlreadyExists, Changed, Denied, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.composite import CompositeName, CompositePlace
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.pack import MAGIC, TRAILER_SIZE_BYTES, VERSION_GONE
from lodefs.chunkstore.objects.composite_tables import CompositeTables
from lodefs.chunkstore.objects.delegating import DelegatingStore
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.ranges.order import RangeOrder, range_order
from lodefs.chunkstore.types import Buffer

COMPOSITE_SIZE_BYTES = 32 * 1024 * 1024  # in memory while the composite is made
COMPOSITE_PACKS_MAX = 16 * 1024
_TRIES = 3  # for a pack that keeps moving
_ETAG = re.compile(r"composite(\d+)-([0-9a-f]{16}):(\d+)\+(\d+):(.*)\Z", re.DOTALL)


class PackLocations(DelegatingStore):
    """An ObjectStore over ``inner`` that resolves packs in composites."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.tables = CompositeTables(inner)

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        pack_id = keys.pack_of(key)
        if pack_id is None:
            return self.inner.get(key, offset=offset, size=size, if_match=if_match)
        if if_match is not None and (found := split_etag(if_match)) is not None:
            try:
                return self.read(*found, offset=offset, size=size)
            except (NotFound, Changed) as error:
                raise Changed(f"{key} was moved: {error}") from error
        try:
            part = self.inner.get(key, offset=offset, size=size, if_match=if_match)
        except NotFound as missing:
            if not self._is_moved(pack_id, missing):
                raise  # it says what else a directory has there
            if if_match is not None:
                raise Changed(f"{key} was put into a composite") from None
            return self.get_in_composite(pack_id, offset=offset, size=size)
        if if_match is None and _lacks_chunks(part, offset):
            try:
                if self.tables.recent(pack_id) is None:
                    return part
                return self.get_in_composite(pack_id, offset=offset, size=size)
            except (NotFound, Denied):  # without the right to list composites, use the own object
                return part
        return part

    def head(self, key: str) -> ObjectInfo:
        try:
            return self.inner.head(key)
        except NotFound as missing:
            pack_id = keys.pack_of(key)
            if pack_id is None or not self._is_moved(pack_id, missing):
                raise
        part = self.get_in_composite(pack_id, size=1)
        return ObjectInfo(key, part.object_size_bytes, part.etag)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        pack_id = keys.pack_of(key)
        # A whole pack beside the same one in a composite does no harm, and most puts are such
        # packs.
        if pack_id is None or (if_absent and not _is_partial(data[-1])):
            return self.inner.put(key, data, if_absent=if_absent)
        if self._is_in_composite(pack_id):
            if if_absent:
                raise AlreadyExists(f"{key} exists already, in a composite")
            return self._put_over(pack_id, data)
        etag = self.inner.put(key, data, if_absent=if_absent)
        if not self._is_in_composite(pack_id):
            return etag
        if not _is_partial(data[-1]):  # another writer has just put it there
            return self._put_over(pack_id, data)
        # The merge may have seen more chunks of it than the maker of this object.
        self.inner.delete(key)
        if if_absent:
            raise AlreadyExists(f"{key} exists already, in a composite")
        raise Changed(f"{key} was put into a composite")

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        own = self.inner.list(prefix, after=after, limit=limit)
        if not prefix.startswith(keys.PACKS) and not keys.PACKS.startswith(prefix):
            return own
        return islice(self._merged(own, prefix, after), limit)

    def get_in_composite(self, pack_id: PackId, *, offset: int = 0, size: int) -> Part:
        """Does what ``get`` does for a pack in a composite. Raises: NotFound if the pack is in
        none, or its composite is missing."""
        place = self.tables.find(pack_id)
        for _ in range(_TRIES):
            if place is None:
                raise NotFound(
                    f"{keys.pack(pack_id)} is not in {self.url}, and in no composite there"
                )
            try:
                return self.read(place, offset=offset, size=size)
            except NotFound:
                before, place = place, self.tables.newest().places.get(pack_id)
                if place == before:
                    break
        raise NotFound(f"{before.composite.key}, which has {keys.pack(pack_id)}, is missing")

    def read(
        self, place: CompositePlace, etag: str = "", *, offset: int = 0, size: int | None = None
    ) -> Part:
        """Returns a range at a place, which may be unused now. ``etag`` is that of its composite.
        Raises: what the store raises."""
        first = max(0, place.size_bytes + offset) if offset < 0 else offset
        rest = place.size_bytes - first
        size = max(0, rest if size is None else min(size, rest))
        first = min(first, place.size_bytes)
        key = place.composite.key
        if not size:
            etag = self.inner.head(key).etag
            return Part(b"", place.size_bytes, join_etag(place, etag))
        part = self.inner.get(key, offset=place.offset + first, size=size, if_match=etag or None)
        return Part(part.data, place.size_bytes, join_etag(place, part.etag))

    def moves(self) -> int:
        """Returns a number that grows whenever a pack is moved. Raises: Corrupt if the locations of
        packs are unknown; what the store raises."""
        return self.tables.newest().number

    def existing(self) -> set[PackId]:
        """Returns the packs that a list shows and whose bytes are where it says."""
        listed = [(keys.pack_of(i.key), place_of(i.etag)) for i in self.list(keys.PACKS)]
        there = self.tables.sizes_bytes()
        return {
            pack
            for pack, place in listed
            if pack is not None and (place is None or place.composite in there)
        }

    def _is_moved(self, pack_id: PackId, missing: NotFound) -> bool:
        """Whether a pack without an object of its own is in a composite. Raises: NotFound, with the
        reason, if lodefs may not look; Corrupt."""
        try:
            return self.tables.find(pack_id) is not None
        except Denied as error:
            raise NotFound(
                f"{missing}; whether it is in a composite is unknown: {error}"
            ) from error

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """Implements OrderSource, for packs in composites, too."""
        found = split_etag(if_match)
        if found is not None:
            place, if_match = found
            key, offset = place.composite.key, place.offset + offset
        return range_order(self.inner, key, offset, size_bytes, if_match)

    def _is_in_composite(self, pack_id: PackId) -> bool:
        return pack_id in self.tables.newest().places

    def _put_over(self, pack_id: PackId, data: Sequence[Buffer]) -> str:
        """Puts a pack over one in a composite. The old bytes stay there; purges and merges find
        them (maintenance/moved_packs.py)."""
        self.tables.put_packs({pack_id: b"".join(data)})
        self.inner.delete(keys.pack(pack_id))
        return self.get_in_composite(pack_id, size=1).etag

    def _merged(self, own: Iterator[ObjectInfo], prefix: str, after: str) -> Iterator[ObjectInfo]:
        places = self.tables.newest().places
        inside = sorted(
            (key, place)
            for key, place in ((keys.pack(pack), place) for pack, place in places.items())
            if key.startswith(prefix) and key > after
        )
        infos = (ObjectInfo(key, at.size_bytes, join_etag(at, "")) for key, at in inside)
        last = ""
        for info in merge(own, infos, key=lambda info: info.key):
            if info.key != last:
                yield info
            last = info.key


class PackBatch:
    """Rewritten packs that lie in composites. It collects them in memory until one composite is
    full, or ``flush`` puts it. For one thread. Methods raise what CompositeTables.put_packs raises;
    packs that were not put are then lost."""

    def __init__(self, objects: PackLocations) -> None:
        self._objects = objects
        self._packs: dict[PackId, Buffer] = {}
        self._seen: dict[PackId, CompositePlace] = {}
        self._size_bytes = 0
        self._taken: list[PackId] = []
        self.stayed: set[PackId] = set()  # not put, since they were moved after they were seen

    def add(self, pack_id: PackId, data: Buffer, etag: str) -> None:
        """Adds a pack's whole object. ``etag`` is that of the object in a composite that it
        replaces."""
        place = place_of(etag)
        assert place is not None, "the pack has an object of its own"
        self._add(pack_id, data, place)

    def take(self, pack_id: PackId, parts: Sequence[Buffer]) -> bool:
        """Adds a pack's object if the pack lies in a composite now, and returns whether it does. It
        also replaces an own object, which readers would read first."""
        place = self._objects.tables.newest().places.get(pack_id)
        if place is not None:
            self._add(pack_id, b"".join(parts), place)
            self._taken.append(pack_id)
        return place is not None

    def flush(self) -> None:
        """Puts what was added. Afterwards ``stayed`` is up to date."""
        packs, seen, taken = self._packs, self._seen, self._taken
        self._packs, self._seen, self._taken, self._size_bytes = {}, {}, [], 0
        put = self._objects.tables.put_packs(packs, seen) if packs else set()
        self.stayed |= packs.keys() - put
        for pack_id in taken:
            if pack_id in put:  # the own object of a pack that stayed may have more than its place
                self._objects.inner.delete(keys.pack(pack_id))

    def _add(self, pack_id: PackId, data: Buffer, seen: CompositePlace) -> None:
        size_bytes = memoryview(data).nbytes
        is_full = len(self._packs) == COMPOSITE_PACKS_MAX or pack_id in self._packs
        if is_full or self._size_bytes + size_bytes > COMPOSITE_SIZE_BYTES:
            self.flush()
        self._packs[pack_id], self._seen[pack_id] = data, seen
        self._size_bytes += size_bytes


def locations_of(objects: ObjectStore) -> PackLocations:
    """Returns the wrapper that knows where the store's packs lie."""
    return objects if isinstance(objects, PackLocations) else PackLocations(objects)


def composite_parts(packs: Iterable[tuple[PackId, int]]) -> Iterator[list[tuple[PackId, int]]]:
    """Yields packs with their sizes, as many at a time as go into one composite."""
    part: list[tuple[PackId, int]] = []
    room = COMPOSITE_SIZE_BYTES
    for pack, size_bytes in packs:
        if part and (size_bytes > room or len(part) == COMPOSITE_PACKS_MAX):
            yield part
            part, room = [], COMPOSITE_SIZE_BYTES
        part.append((pack, size_bytes))
        room -= size_bytes
    if part:
        yield part


def join_etag(place: CompositePlace, etag: str) -> str:
    """Returns the ETag of a pack in a composite with the given ETag."""
    composite, offset, size_bytes = place
    return f"composite{composite.number}-{composite.token}:{offset}+{size_bytes}:{etag}"


def split_etag(etag: str) -> tuple[CompositePlace, str] | None:
    """Returns where the pack lies, and its composite's ETag; None if it is in no composite."""
    found = _ETAG.match(etag)
    if found is None:
        return None
    name = CompositeName(int(found[1]), found[2])
    return CompositePlace(name, int(found[3]), int(found[4])), found[5]


def place_of(etag: str) -> CompositePlace | None:
    """Returns where the pack with an ETag lies; None if it has an object of its own."""
    found = split_etag(etag)
    return None if found is None else found[0]


def _lacks_chunks(part: Part, offset: int) -> bool:
    """Whether bytes are the end of a pack that says it is incomplete."""
    is_end = offset < 0 or offset + len(part.data) == part.object_size_bytes
    return is_end and _is_partial(part.data)


def _is_partial(end: Buffer) -> bool:
    trailer = bytes(memoryview(end)[-TRAILER_SIZE_BYTES:])
    version = int.from_bytes(trailer[len(MAGIC) : len(MAGIC) + 2], "little")
    return trailer.startswith(MAGIC) and version == VERSION_GONE

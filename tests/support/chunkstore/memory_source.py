"""A source of virtual packs in memory, as a bucket is: its owner overwrites, deletes and archives
objects, with versions or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lodefs.chunkstore.errors import Changed, NotFound
from lodefs.chunkstore.format.virtual_pack import SourceObject
from lodefs.chunkstore.objects.in_place.source_objects import SourceObjects, Sources, lost
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings
from lodefs.chunkstore.objects.ranges.order import RangeOrder
from lodefs.chunkstore.objects.s3.errors import Archived
from lodefs.chunkstore.push.remote.remote_files import Listing, Piece
from lodefs.chunkstore.push.workers.source_files import ReadCondition
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import etag_of
from tests.support.chunkstore.memory_remote import MemoryRemote


class MemorySource:
    """Implements SourceObjects. ``before_read`` may change the source between two reads."""

    url = "memory://source"

    def __init__(self, name: str, *, has_versions: bool = False) -> None:
        self.name = name
        self.has_versions = has_versions
        self.current: dict[str, str] = {}  # version by key
        self.versions: dict[tuple[str, str], bytes] = {}
        self.archived: set[str] = set()
        self.reads: list[tuple[str, int, int]] = []
        self.before_read: Callable[[], object] = lambda: None

    def put(self, key: str, data: bytes) -> SourceObject:
        """Writes an object, and returns its state."""
        version = str(len(self.versions)) if self.has_versions else ""
        self.versions[key, version] = data
        self.current[key] = version
        self.archived.discard(key)
        return SourceObject(self.name, key, len(data), etag_of(data), version)

    def delete(self, key: str) -> None:
        """Removes an object; its versions stay."""
        version = self.current.pop(key, "")
        if not self.has_versions:
            self.versions.pop((key, version), None)

    def read(self, found: SourceObject, offset: int, size_bytes: int) -> Buffer:
        self.before_read()
        self.reads.append((found.key, offset, size_bytes))
        with self._lost(found):
            data = self._data(found)
            if found.key in self.archived:
                raise Archived(f"{found.key} is archived")
        return data[offset : offset + size_bytes]

    def check(self, found: SourceObject) -> None:
        with self._lost(found):
            self._data(found)
            if found.key in self.archived:
                raise Archived(f"{found.key} is archived")

    @contextmanager
    def range_order(
        self, found: SourceObject, offset: int, size_bytes: int
    ) -> Iterator[RangeOrder | None]:
        del found, offset, size_bytes
        yield None

    def close(self) -> None:
        """Nothing to free."""

    def _data(self, found: SourceObject) -> bytes:
        version = found.version or self.current.get(found.key, "")
        data = self.versions.get((found.key, version))
        if data is None or (not found.version and found.key not in self.current):
            raise NotFound(f"{found.key} is not in {self.url}")
        if (etag_of(data), len(data)) != (found.etag, found.size_bytes):
            raise Changed(f"{found.key} has another ETag")
        return data

    @contextmanager
    def _lost(self, found: SourceObject) -> Iterator[None]:
        try:
            yield
        except (NotFound, Changed, Archived) as error:
            raise lost(f"{self.url}/{found.key}", found, error) from error


def sources_of(*sources: MemorySource) -> Sources:
    """Returns the sources of a reader whose settings name these."""
    by_url = {f"s3://{one.name}": one for one in sources}
    settings = {one.name: SourceSettings(f"s3://{one.name}") for one in sources}

    def opened(one: SourceSettings) -> SourceObjects:
        return by_url[one.url]

    return Sources(settings, opened)


class SourceFiles(MemoryRemote):
    """Implements RemoteFiles for what a MemorySource has now, in whole objects of a bucket that
    tells in which state it gives them."""

    def __init__(self, source: MemorySource) -> None:
        super().__init__({})
        self.source = source

    def list(self, path: bytes) -> Listing:
        current = self.source.current.items()
        self.files = {key.encode(): self.source.versions[key, one] for key, one in current}
        return super().list(path)

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        key = path.decode()
        piece = super().read(path, offset, size_bytes)
        condition = ReadCondition(etag_of(self.files[path]), self.source.current[key])
        return piece._replace(condition=condition)

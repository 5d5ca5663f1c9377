"""Objects of other buckets that have chunks of virtual packs. They are read in one state, or not at
all.

Implementations: S3SourceObjects here. Every one passes
``tests.support.chunkstore.source_objects_suite``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Protocol

from lodefs.chunkstore.errors import Changed, NotFound, SourceLost, SourceUnknown
from lodefs.chunkstore.format.virtual_pack import SourceObject, check_object_key
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings, lines_for
from lodefs.chunkstore.objects.ranges.order import RangeOrder
from lodefs.chunkstore.objects.s3.bucket import PatientBucket, VersionedKey
from lodefs.chunkstore.objects.s3.errors import Archived
from lodefs.chunkstore.types import Buffer


class SourceObjects(Protocol):
    """Objects below the URL of one source. Many threads may use it at once."""

    def read(self, found: SourceObject, offset: int, size_bytes: int) -> Buffer:
        """Returns ``size_bytes`` of an object in the given state. Raises: SourceLost if it has no
        such state (any more), or cannot be read before it is restored from an archive; Denied,
        Unavailable."""
        ...

    def check(self, found: SourceObject) -> None:
        """Checks, without reading an object, that it is in the given state. Raises: what ``read``
        raises."""
        ...

    def range_order(
        self, found: SourceObject, offset: int, size_bytes: int
    ) -> AbstractContextManager[RangeOrder | None]:
        """Yields an order for a range of an object in the given state, as OrderSource does."""
        ...

    def close(self) -> None:
        """Frees connections."""
        ...


class S3SourceObjects:
    """Implements SourceObjects for a prefix of a bucket."""

    def __init__(self, bucket: PatientBucket, prefix: str) -> None:
        self._bucket = bucket
        self._base = f"{prefix}/" if prefix else ""

    def read(self, found: SourceObject, offset: int, size_bytes: int) -> Buffer:
        with self._lost(found):
            key = self._key(found)
            part = self._bucket.get(key, offset, size_bytes, if_match=found.etag)
            if part.object_size_bytes != found.size_bytes or len(part.data) != size_bytes:
                raise Changed(f"it has {part.object_size_bytes} bytes, not {found.size_bytes}")
        return part.data

    def check(self, found: SourceObject) -> None:
        with self._lost(found):
            info = self._bucket.head(self._key(found))
            if (info.size_bytes, info.etag) != (found.size_bytes, found.etag):
                raise Changed(f"its ETag is {info.etag}, not {found.etag}")
            if info.is_archived:
                raise Archived("it must be restored before it can be read")

    def range_order(
        self, found: SourceObject, offset: int, size_bytes: int
    ) -> AbstractContextManager[RangeOrder | None]:
        return self._bucket.range_order(self._key(found), offset, size_bytes, found.etag)

    def close(self) -> None:
        self._bucket.close()

    def _key(self, found: SourceObject) -> VersionedKey:
        return VersionedKey(self._base + check_object_key(found.key), found.version)

    @contextmanager
    def _lost(self, found: SourceObject) -> Iterator[None]:
        """Translates the errors of an object that has changed."""
        try:
            yield
        except (NotFound, Changed, Archived) as error:
            raise lost(f"{self._bucket.url}/{self._base}{found.key}", found, error) from error


def lost(where: str, found: SourceObject, error: Exception) -> SourceLost:
    """Returns the error for an object that has changed."""
    what = {NotFound: "is gone", Archived: "is archived"}
    state = next((text for kind, text in what.items() if isinstance(error, kind)), "was changed")
    version = f", version {found.version}" if found.version else ""
    return SourceLost(
        f"{where} (source {found.source}{version}) {state} since it was imported in place: restore "
        "it as it was, or import it again for a new version without what is lost; `lodefs adopt` "
        f"in time would have kept it ({error})"
    )


class Sources:
    """The sources of this reader's settings, each opened at its first use. For any thread."""

    def __init__(
        self,
        settings: Mapping[str, SourceSettings],
        open_source: Callable[[SourceSettings], SourceObjects],
    ) -> None:
        self._settings = settings
        self._open = open_source
        self._lock = Lock()  # guards what follows
        self._opened: dict[str, SourceObjects] = {}

    def __getitem__(self, name: str) -> SourceObjects:
        """Returns a source. Raises: SourceUnknown, with the lines to add to the settings;
        InvalidInput for wrong settings."""
        settings = self._settings.get(name)
        if settings is None:
            raise SourceUnknown(
                f"these bytes lie in place in the source {name!r}, which the settings here do not "
                f"name: add {lines_for(name)} to lodefs.toml"
            )
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._open(settings)
            return self._opened[name]

    def close(self) -> None:
        """Closes all opened sources."""
        with self._lock:
            while self._opened:
                self._opened.popitem()[1].close()

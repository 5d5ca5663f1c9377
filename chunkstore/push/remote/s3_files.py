"""The objects below a prefix of a bucket as files: their keys are paths."""

from __future__ import annotations

from urllib.parse import urlsplit

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.objects.interface import NoSuchBucket, ObjectInfo
from lodefs.chunkstore.objects.open_url import open_bucket
from lodefs.chunkstore.objects.s3.bucket import PatientBucket
from lodefs.chunkstore.objects.s3.errors import BadCredentials
from lodefs.chunkstore.push.remote.remote_files import (
    Listing,
    NoAccess,
    Piece,
    RemoteFile,
    Unreadable,
)
from lodefs.chunkstore.push.workers.source_files import ReadCondition, show_path

# A directory with so many objects below it, or fewer, is listed at once with all that is in it
FLAT_KEYS_MAX = 50_000


class S3Files:
    """Implements RemoteFiles. A state is an ETag: two objects with the same one have the same
    bytes, and each part that is read comes with it."""

    survives_fork = True

    def __init__(
        self,
        bucket: PatientBucket,
        prefix: str,
        flat_keys_max: int = FLAT_KEYS_MAX,
        location: str = "",
    ) -> None:
        self.location = location
        self._bucket = bucket
        self._key = prefix
        self._base = f"{prefix}/" if prefix else ""
        self._flat_keys_max = flat_keys_max
        self._listed: dict[bytes, Listing] = {}  # directories of the last flat list

    @property
    def url(self) -> str:
        return f"{self._bucket.url}/{self._base}".rstrip("/")

    def list(self, path: bytes) -> Listing:
        """Implements RemoteFiles. A walk asks for one list of all that is below the largest
        directories with at most ``flat_keys_max`` objects, and for one list of each above."""
        known = self._listed.pop(path, None)
        if known is not None:
            return known
        prefix = f"{self._key_of(path)}/" if path else self._base
        found = [*self._bucket.list(prefix, self._flat_keys_max + 1)]
        if len(found) > self._flat_keys_max:
            self._listed = {}
            return self._level(prefix)
        self._listed = _directories(path, prefix, found)
        return self._listed.pop(path)

    def _level(self, prefix: str) -> Listing:
        listing = Listing([], [])
        start = len(prefix)
        for objects, prefixes in self._bucket.levels(prefix):
            listing.subdirectories.extend(one[start:-1].encode() for one in prefixes)
            for info in objects:
                if info.key != prefix or info.size_bytes:  # not the mark of this directory
                    _add(listing, info.key[start:], info)
        return listing

    def read(self, path: bytes, offset: int, size_bytes: int) -> Piece:
        try:
            part = self._bucket.get(self._key_of(path), offset, size_bytes)
        except (BadCredentials, NoSuchBucket) as error:
            raise NoAccess(str(error)) from error
        condition = ReadCondition(part.etag, part.version)
        return Piece(part.data, part.object_size_bytes, part.etag.strip('"'), condition)

    def find(self, path: bytes) -> RemoteFile | None:
        key = self._key_of(path)
        first = next(self._bucket.list(key, 1), None) if key else None
        if first is None or first.key != key:
            return None
        return _file(key.rpartition("/")[2], first)

    def _key_of(self, path: bytes) -> str:
        try:
            return self._base + path.decode() if path else self._key
        except UnicodeDecodeError as error:
            shown = show_path(path)
            raise InvalidInput(f"{shown} is no key in {self.url}: keys are UTF-8") from error

    def holds(self, place: str) -> bool:
        """Implements RemoteFiles: the bucket has the store's first object, at the same place."""
        parts = urlsplit(place)
        if parts.scheme != "s3" or f"s3://{parts.netloc}" != self._bucket.url:
            return False
        store = f"{parts.path.strip('/')}/".lstrip("/")
        if not (store.startswith(self._base) or self._base.startswith(store)):
            return False
        try:
            self._bucket.get(store + keys.STORE, 0, 1)
        except NotFound:
            return False
        return True

    def close(self) -> None:
        self._bucket.close()


def open_s3_files(url: str) -> S3Files:
    """Opens ``s3://BUCKET[/PREFIX][?endpoint_url=...&region=...]``. Raises: InvalidInput."""
    return S3Files(*open_bucket(url), location=url)


def _directories(path: bytes, prefix: str, found: list[ObjectInfo]) -> dict[bytes, Listing]:
    """Returns the listings of a directory and of all in it, by path. A part of a key that is no
    name is listed where it is found, and nothing below it."""
    root = Listing([], [])
    listings = {path: root}
    last: tuple[str, Listing] = ("", root)  # keys of one directory come in a row
    for info in found:
        name = info.key[len(prefix) :].rpartition("/")[2]
        parent = info.key[len(prefix) : len(info.key) - len(name)]
        if last[0] != parent:
            last = parent, _listing_of(listings, path, parent)
        if name or info.size_bytes:  # else it is the mark of a directory
            _add(last[1], name, info)
    return listings


def _listing_of(listings: dict[bytes, Listing], path: bytes, parent: str) -> Listing:
    """Returns the listing of ``parent`` ("" or "a/b/"), relative to ``path``; makes it, and those
    above."""
    at, listing = path, listings[path]
    for name in parent[:-1].split("/") if parent else ():
        raw = name.encode()
        at = at + b"/" + raw if at or not raw else raw  # an empty name is not the root
        child = listings.get(at)
        if child is None:
            child = listings[at] = Listing([], [])
            listing.subdirectories.append(raw)
        listing = child
    return listing


def _add(listing: Listing, name: str, info: ObjectInfo) -> None:
    if info.is_archived:
        reason = f"{info.key} is archived (Glacier): restore it first"
        listing.unreadable.append(Unreadable(name.encode(), reason))
    else:
        listing.files.append(_file(name, info))


def _file(name: str, info: ObjectInfo) -> RemoteFile:
    return RemoteFile(name.encode(), info.size_bytes, info.etag.strip('"'))

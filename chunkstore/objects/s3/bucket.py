"""Reads a bucket of somebody else, whose keys may have any characters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeGuard
from urllib.parse import quote

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.objects.interface import ObjectInfo, Part
from lodefs.chunkstore.objects.limiting import Limited
from lodefs.chunkstore.objects.observing import Observation, Observed
from lodefs.chunkstore.objects.ranges.order import RangeOrder
from lodefs.chunkstore.objects.retrying import Retrying
from lodefs.chunkstore.objects.s3.store import LIST_KEYS_MAX, S3Objects, is_archived

_KEY_BYTES_MAX = 1024  # of any object on S3
_UNESCAPED = "/~"  # as botocore leaves them


class Level(NamedTuple):
    """One page of a listing with the delimiter "/": objects, and the prefixes of others, each of
    which ends with "/"."""

    objects: list[ObjectInfo]
    prefixes: list[str]


class VersionedKey(str):
    """A key that stands for one version of its object; "" for the current one."""

    __slots__ = ("version",)
    version: str

    def __new__(cls, key: str, version: str) -> Self:
        made = super().__new__(cls, key)
        made.version = version
        return made


class S3Bucket(S3Objects):
    """All objects of a bucket. Keys are those of the bucket, in the order of their UTF-8; they may
    be VersionedKeys. Lists say which archived objects have been restored."""

    _list_settings: ClassVar[dict[str, Any]] = {"OptionalObjectAttributes": ["RestoreStatus"]}

    def level(self, prefix: str, token: str) -> tuple[Level, str]:
        """Returns the page at ``token`` ("": the first one) of what ``prefix`` directly holds, and
        the next token; "" after the last page."""
        request: dict[str, Any] = {
            "Bucket": self._bucket,
            "Prefix": prefix,
            "Delimiter": "/",
            "MaxKeys": LIST_KEYS_MAX,
            **self._list_settings,
        }
        if token:
            request["ContinuationToken"] = token
        with self._operation("list", prefix, 0):
            answer = self._client.list_objects_v2(**request)
            more: bool = answer["IsTruncated"]
            following: str = answer["NextContinuationToken"] if more else ""
        found = [
            ObjectInfo(item["Key"], item["Size"], item["ETag"], is_archived(item))
            for item in answer.get("Contents", ())
        ]
        prefixes = [item["Prefix"] for item in answer.get("CommonPrefixes", ())]
        return Level(found, prefixes), following

    def _checked(self, key: str) -> str:
        if not 0 < len(key.encode()) <= _KEY_BYTES_MAX:
            raise InvalidInput(f"a key on S3 has 1 to {_KEY_BYTES_MAX} bytes, unlike {key!r}")
        return key

    def _check_prefix(self, prefix: str) -> None:
        if prefix:
            self._checked(prefix)

    def _named(self, key: str) -> dict[str, Any]:
        named = super()._named(key)
        return named | {"VersionId": key.version} if _has_version(key) else named

    def _request_key(self, key: str) -> str:
        path = quote(self._checked(key), safe=_UNESCAPED)
        return f"{path}?versionId={quote(key.version, safe='~')}" if _has_version(key) else path


def _has_version(key: str) -> TypeGuard[VersionedKey]:
    return isinstance(key, VersionedKey) and bool(key.version)


class PatientBucket:
    """Reads a bucket with retries. Many threads may use it at once."""

    def __init__(
        self,
        bucket: S3Bucket,
        limited: Limited,
        patient: Retrying,
        observe: Callable[[Observation], None] | None = None,
    ) -> None:
        """``observe`` is called for every call but those of ``levels``."""
        self._bucket = bucket
        self._limited = limited
        self._patient = patient
        self._seen = Observed(patient, observe) if observe else patient

    @property
    def url(self) -> str:
        """``s3://BUCKET``."""
        return self._bucket.url

    def get(self, key: str, offset: int, size_bytes: int, *, if_match: str | None = None) -> Part:
        """Returns a range, as ObjectStore.get does."""
        return self._seen.get(key, offset=offset, size=size_bytes, if_match=if_match)

    def head(self, key: str) -> ObjectInfo:
        """Returns size and ETag, as ObjectStore.head does."""
        return self._seen.head(key)

    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> AbstractContextManager[RangeOrder | None]:
        """Implements OrderSource."""
        return self._seen.range_order(key, offset, size_bytes, if_match)

    def list(self, prefix: str, limit: int) -> Iterator[ObjectInfo]:
        """Yields at most ``limit`` objects, in the order of their keys' UTF-8."""
        return self._seen.list(prefix, limit=limit)

    def levels(self, prefix: str) -> Iterator[Level]:
        """Yields all pages of what ``prefix`` directly holds."""
        token, is_more = "", True
        while is_more:
            ask = partial(self._bucket.level, prefix, token)
            page, token = self._patient.repeat(partial(self._limited.limited, ask))
            yield page
            is_more = bool(token)

    def close(self) -> None:
        """Frees connections."""
        self._bucket.close()

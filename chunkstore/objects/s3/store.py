"""Objects in an S3 bucket.

Protocol: Amazon S3 API Reference (GetObject, PutObject with If-None-Match, ListObjectsV2). Tested
with Ceph RGW 16 and moto. boto.py wraps boto3. Ranged reads go through range_reader.py once
one has gone through boto3. Wrappers add retries, limits and counts, instead of botocore.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import msgspec

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Changed,
    Denied,
    InvalidInput,
    NotFound,
    Unavailable,
    Unsupported,
)
from lodefs.chunkstore.objects.interface import (
    Md5Buffers,
    ObjectInfo,
    Part,
    check_key,
    check_prefix,
)
from lodefs.chunkstore.objects.ranges.answers import part_of, range_header
from lodefs.chunkstore.objects.ranges.order import SIZE_BYTES_MAX, RangeOrder
from lodefs.chunkstore.objects.ranges.transport import UnsupportedResponse
from lodefs.chunkstore.objects.s3.boto import (
    CHECK,
    S3Options,
    S3Transfer,
    is_answer,
    open_client,
    range_reader_of,
    translated,
)
from lodefs.chunkstore.objects.s3.errors import NoSuchKey, PastTheEnd, refusal_of
from lodefs.chunkstore.objects.s3.range_reader import RangeReader
from lodefs.chunkstore.objects.timed_requests import TimedRequests
from lodefs.chunkstore.system.systemd.watchdog import Transfer
from lodefs.chunkstore.types import Buffer

LIST_KEYS_MAX = 1000  # in one answer
_NULL_VERSION = "null"  # of an object that came when its bucket kept no versions


_ARCHIVES = frozenset(("GLACIER", "DEEP_ARCHIVE"))


class S3Objects:
    """Objects below ``prefix`` in a bucket. Credentials come from AWS's usual places."""

    _list_settings: ClassVar[dict[str, Any]] = {}  # of each request for a list, besides its place

    def __init__(self, bucket: str, prefix: str = "", options: S3Options | None = None) -> None:
        """Opens no connection. Raises: InvalidInput for an invalid endpoint or region."""
        options = options or S3Options()
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._base = _base(prefix)
        self._current = S3Transfer()
        self._client = open_client(options, self._current)
        self._options = options
        errors = partial(translated, bucket=bucket)
        self._requests = TimedRequests(options, self._current, errors, is_answer, CHECK)
        self._range_reader: RangeReader | None = None
        # until boto3 succeeds after a range read failed; it does not say who pays
        self._is_range_reader_fit = not options.requester_pays
        self._learning = threading.Lock()  # guards both
        self._is_md5_fit = True  # until a put with an MD5 was refused or not confirmed

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        if size == 0:
            return self._nothing_of(key, if_match)
        size_bytes = -offset if offset < 0 else size
        reader = self._range_reader
        if reader is not None and size_bytes <= SIZE_BYTES_MAX:
            try:
                part = self._get_quickly(reader, key, offset, size_bytes, if_match)
            except PastTheEnd:
                return self._nothing_of(key, if_match)
            if part is None:
                part = self._get(key, offset, size_bytes, if_match)
                self._drop_range_reader(reader)
        else:
            part = self._get(key, offset, size_bytes, if_match)
        if len(part.data) > size:
            return msgspec.structs.replace(part, data=memoryview(part.data)[:size])
        return part

    def _get_quickly(
        self, reader: RangeReader, key: str, offset: int, size_bytes: int, if_match: str | None
    ) -> Part | None:
        """Returns a part without boto3; None if boto3 must be used."""
        with self._operation("read", key, size_bytes) as transfer:
            what = f"cannot read {key} in {self.url}"
            try:
                name = self._request_key(key)
                answer = reader.get(name, offset, size_bytes, if_match, transfer)
            except UnsupportedResponse:
                return None
            if answer.status != 206:
                refusal = refusal_of(answer.status, answer.headers, answer.data, what, self._bucket)
                if refusal is not None:
                    raise refusal
                return None
            part = part_of(answer, key, offset, if_match)
            version = _version(answer.headers.get("x-amz-version-id"))
            return Part(part.data, part.object_size_bytes, part.etag, version)

    @contextmanager
    def range_order(
        self, key: str, offset: int, size_bytes: int, if_match: str
    ) -> Iterator[RangeOrder | None]:
        """Implements OrderSource, once a read has gone through boto3."""
        reader = self._range_reader
        http = None
        if reader is not None and 0 < size_bytes <= SIZE_BYTES_MAX:
            http = reader.order(self._request_key(key), offset, size_bytes, if_match)
        yield None if http is None else RangeOrder(http)

    def keep_open(self, connections: int) -> None:
        """Implements KeepsOpen, once a read has gone through boto3."""
        reader = self._range_reader
        if reader is not None:
            with self._requests.operation(f"cannot connect to {self.url}", 0):
                reader.keep_open(connections)

    def _learn(self, key: str) -> None:
        """Makes ranged reads bypass boto3 from now on, if possible, since boto3 has read
        ``key``."""
        with self._learning:
            if self._range_reader is None and self._is_range_reader_fit:
                self._range_reader = range_reader_of(
                    self._client, self._current, self._request_key(key), self._options
                )

    def _drop_range_reader(self, reader: RangeReader) -> None:
        with self._learning:
            self._is_range_reader_fit, self._range_reader = False, None
        reader.close()

    def _get(self, key: str, offset: int, size_bytes: int, if_match: str | None) -> Part:
        """Returns a part through boto3. It reads at most ``size_bytes`` of the answer."""
        what = f"cannot read {key} in {self.url}"
        wanted = range_header(offset, size_bytes)
        request = {**self._named(key), "Range": wanted}
        if if_match is not None:
            request["IfMatch"] = if_match
        try:
            with self._operation("read", key, size_bytes):
                answer = self._client.get_object(**request)
                with closing(answer["Body"]) as body:
                    _check_size(what, answer, answer.get("ContentLength", 0), size_bytes, wanted)
                    data = body.read(size_bytes + 1)  # one more byte shows that there is more
                size = _object_size_bytes(answer, len(data))
                part = Part(data, size, answer["ETag"], _version(answer.get("VersionId")))
                _check_part(part, what, answer, size_bytes, wanted=wanted, if_match=if_match)
                if _is_partial(answer) and self._range_reader is None:
                    self._learn(key)
        except PastTheEnd:
            return self._nothing_of(key, if_match)
        return part

    def head(self, key: str) -> ObjectInfo:
        return self._head(key, None)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        if isinstance(data, Md5Buffers) and self._is_md5_fit:
            try:
                etag = self._put(key, data, data.md5, if_absent=if_absent)
                if etag.strip('"').lower() == data.md5.hex():
                    return etag
                if if_absent:
                    self._is_md5_fit = False
                    return self._read_back(key, data, etag)
            except (Denied, InvalidInput, Unsupported):
                pass  # a wrong MD5; the server forbids unsigned bodies; or it knows no MD5
            # It is unfit, too, if the answer does not confirm what arrived
            self._is_md5_fit = False
        return self._put(key, data, None, if_absent=if_absent)

    def _read_back(self, key: str, data: Sequence[Buffer], etag: str) -> str:
        """Returns the ETag of what was just put, if it equals ``data``. Raises: AlreadyExists."""
        body = b"".join(data)
        with suppress(Changed, NotFound):
            if self.get(key, size=len(body) + 1, if_match=etag).data == body:
                return etag
        raise AlreadyExists(f"{key} in {self.url} differs from the object that was put there")

    def _put(self, key: str, data: Sequence[Buffer], md5: bytes | None, *, if_absent: bool) -> str:
        """Puts a body, which the server checks by its MD5, or by its SHA-256 without one."""
        body = _UploadBody(data)
        request = {**self._named(key), "Body": body, "ContentLength": len(body)}
        if if_absent:
            request["IfNoneMatch"] = "*"
        if md5 is not None:
            request["ContentMD5"] = b64encode(md5).decode()
        try:
            with self._operation("write", key):
                etag: str = self._client.put_object(**request)["ETag"]
                return etag
        except Changed:
            raise AlreadyExists(f"{key} exists already in {self.url}") from None

    def copy_from(self, bucket: str, prefix: str, key: str, if_match: str) -> str:
        """Implements ServerCopy for another prefix at the same endpoint, with one attempt."""
        request = {
            **self._named(key),
            "CopySource": {"Bucket": bucket, "Key": _base(prefix) + key},
            "CopySourceIfMatch": if_match,
            "IfNoneMatch": "*",
        }
        with self._operation("copy", key):
            copied = self._client.copy_object(**request).get("CopyObjectResult", {})
            if "ETag" not in copied:
                raise Unsupported(
                    f"cannot copy {key} to {self.url}: the server does not confirm the copy"
                )
            return '"{}"'.format(copied["ETag"].strip('"'))  # Ceph RGW sends it without quotes

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        self._check_prefix(prefix)
        return islice(self._list(prefix, after, limit), limit)

    def delete(self, key: str) -> None:
        with suppress(NoSuchKey), self._operation("delete", key):
            self._client.delete_object(**self._named(key))

    def close(self) -> None:
        if self._range_reader is not None:
            self._range_reader.close()
        self._client.close()
        self._requests.close()

    def _named(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._bucket, "Key": self._base + self._checked(key)}

    def _checked(self, key: str) -> str:
        """Returns a key that the bucket may have. Raises: InvalidInput."""
        return check_key(key)

    def _check_prefix(self, prefix: str) -> None:
        check_prefix(prefix)

    def _request_key(self, key: str) -> str:
        """Returns a key as it stands in a request line. Raises: InvalidInput."""
        return self._checked(key)  # none of its characters is escaped

    def _head(self, key: str, if_match: str | None) -> ObjectInfo:
        request = self._named(key)
        if if_match is not None:
            request["IfMatch"] = if_match
        with self._operation("look up", key, 0):
            answer = self._client.head_object(**request)
            size_bytes, etag = answer["ContentLength"], answer["ETag"]
            return ObjectInfo(key, size_bytes, etag, is_archived(answer))

    def _nothing_of(self, key: str, if_match: str | None) -> Part:
        info = self._head(key, if_match)
        return Part(b"", info.size_bytes, info.etag)

    def _list(self, prefix: str, after: str, limit: int | None) -> Iterator[ObjectInfo]:
        left = limit
        request: dict[str, Any] = {"Bucket": self._bucket, "Prefix": self._base + prefix}
        request |= self._list_settings
        if after:
            request["StartAfter"] = self._base + after
        while left is None or left > 0:
            request["MaxKeys"] = LIST_KEYS_MAX if left is None else min(left, LIST_KEYS_MAX)
            with self._operation("list", prefix, 0):
                answer = self._client.list_objects_v2(**request)
                # Raises for an answer that is not a list, or empty
                more: bool = answer["IsTruncated"]
            found = answer.get("Contents", [])
            for item in found:
                key = item["Key"][len(self._base) :]
                yield ObjectInfo(key, item["Size"], item["ETag"], is_archived(item))
            if not more:
                return
            left = None if left is None else left - len(found)
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def _operation(
        self, verb: str, key: str, answer_bytes: int | None = None
    ) -> AbstractContextManager[Transfer]:
        """Runs one request within its time. ``answer_bytes`` is as in TimedRequests."""
        return self._requests.operation(f"cannot {verb} {key} in {self.url}", answer_bytes)


def is_archived(item: Mapping[str, Any]) -> bool:
    """Whether an object, as a list or a HEAD tells of it, must be restored before it can be read.

    Source: Amazon S3 API Reference, "ListObjectsV2", StorageClass and RestoreStatus; "HeadObject",
    x-amz-restore.
    """
    is_restored = "RestoreExpiryDate" in item.get("RestoreStatus", {}) or (
        'ongoing-request="false"' in item.get("Restore", "")
    )
    return item.get("StorageClass") in _ARCHIVES and not is_restored


class _UploadBody:
    """Presents buffers as one file that can be read again from its beginning, without a copy."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._buffers = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        self._size_bytes = sum(len(buffer) for buffer in self._buffers)
        self._number = 0  # the buffer to read next
        self._offset = 0  # the offset in that buffer
        self._position = 0

    def __len__(self) -> int:
        return self._size_bytes

    def read(self, size_bytes: int = -1) -> bytes | memoryview:
        """Returns at most ``size_bytes`` of one buffer; nothing at the end."""
        if self._number == len(self._buffers):
            return b""
        buffer = self._buffers[self._number]
        end = len(buffer) if size_bytes < 0 else min(len(buffer), self._offset + size_bytes)
        piece = buffer[self._offset : end]
        self._offset = end
        if end == len(buffer):
            self._number, self._offset = self._number + 1, 0
        self._position += len(piece)
        return piece

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        """Moves to the beginning or, so that the size can be determined, to the end."""
        at_end = whence == 2
        if position != 0 or whence not in (0, 2):
            raise InvalidInput("a request's body can be repeated only from its beginning")
        self._number = len(self._buffers) if at_end else 0
        self._offset = 0
        self._position = self._size_bytes if at_end else 0
        return self._position


def _base(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""


def _object_size_bytes(answer: Mapping[str, Any], received_bytes: int) -> int:
    """Returns the object's size from ``Content-Range: bytes 0-9/SIZE``, or else what was
    received."""
    total = str(answer.get("ContentRange", "")).rpartition("/")[2]
    return int(total) if total.isdigit() else received_bytes


def _version(value: str | None) -> str:
    """Returns a version id; "" for objects without one, and for those that may be overwritten."""
    return "" if value in (None, _NULL_VERSION) else str(value)


def _is_partial(answer: Mapping[str, Any]) -> bool:
    return bool(answer["ResponseMetadata"]["HTTPStatusCode"] == 206)


def _check_size(
    what: str, answer: Mapping[str, Any], sent_bytes: int, size_bytes: int, wanted: str
) -> None:
    """Checks that a server does not send more than was asked for, even if it ignores ranges."""
    if sent_bytes <= size_bytes:
        return
    if not _is_partial(answer):
        raise _ignores_ranges(what, wanted)
    raise Unavailable(f"{what}: the server sends {sent_bytes} bytes, asked for {wanted}")


def _ignores_ranges(what: str, wanted: str) -> Unsupported:
    return Unsupported(f"{what}: the server ignores ranges ({wanted}); lodefs needs them")


def _check_part(
    part: Part,
    what: str,
    answer: Mapping[str, Any],
    size_bytes: int,
    *,
    wanted: str,
    if_match: str | None,
) -> None:
    """Checks what a server, or an HTTP proxy in between, may get wrong without an error."""
    _check_size(what, answer, len(part.data), size_bytes, wanted)
    chunked = "transfer-encoding" in answer["ResponseMetadata"]["HTTPHeaders"]
    expected_bytes = len(part.data) if chunked else answer["ContentLength"]
    if len(part.data) != expected_bytes:
        raise Unavailable(
            f"{what}: the answer ended after {len(part.data)} of {expected_bytes} bytes"
        )
    if if_match is not None and part.etag != if_match:
        raise Changed(f"{what}: its ETag is {part.etag}, not {if_match}")
    # So that a whole object is acceptable
    is_from_start = wanted.startswith(("bytes=0-", "bytes=-"))
    if part.data and not _is_partial(answer) and not is_from_start:
        raise _ignores_ranges(what, wanted)

"""GetObject and HeadObject: a file of a snapshot as S3 clients expect it.

Source: Amazon S3 API Reference, GetObject and HeadObject.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.proxy.api.ranges import ByteRange, Outcome, Selection, Unsatisfiable, select_ranges
from lodefs.proxy.api.ranges import evaluate as evaluate_tags
from lodefs.proxy.api.responses import (
    FOREIGN_CONTENT,
    Answer,
    Headers,
    content_type,
    fast_path_target,
    source_of,
)
from lodefs.proxy.metrics.server_metrics import Metrics
from lodefs.proxy.node import Files, Names, SnapshotFile
from lodefs.proxy.read.symlinks import linked_file
from lodefs.proxy.s3.buckets import ObjectPlace, no_such_key
from lodefs.proxy.s3.documents import http_time
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.request import S3Request

PARTS_MAX = 10_000
_ONE_RANGE = re.compile(r"\s*bytes\s*=\s*(?:([0-9]+)-([0-9]*)|-([0-9]+))\s*\Z", re.IGNORECASE)
_NO_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
OVERRIDES = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}


@dataclass(frozen=True, slots=True)
class FoundObject:
    """A file as an object: its headers, tag and time."""

    file: SnapshotFile
    headers: Headers
    etag: str
    modified_s: int


async def find_object(names: Names, place: ObjectPlace, key: bytes) -> FoundObject:
    """Returns the object at a place. Raises: S3Error if there is none."""
    try:
        snapshot = await names.snapshot(place.repo, place.rev)
        found = await names.file(snapshot, place.path)
        if not isinstance(found, SnapshotFile) and found.kind == Kind.SYMLINK:
            directory = place.path.rpartition(b"/")[0]
            found = await linked_file(names, snapshot, directory, found.target)
    except NotADirectory:
        raise no_such_key(key) from None
    except NotFound as error:
        raise no_such_key(key, str(error)) from error
    if not isinstance(found, SnapshotFile):
        raise no_such_key(key, "this is a directory: ListObjectsV2 lists its contents")
    etag = f'"{found.content_id.hex()}"'
    headers = [
        ("Content-Type", content_type(place.path)),
        ("ETag", etag),
        ("Last-Modified", http_time(snapshot.time_s)),
        ("Accept-Ranges", "bytes"),
        ("x-amz-meta-lodefs-commit", snapshot.commit),
        ("x-amz-meta-lodefs-digest", found.entry.digest.hex()),
        *FOREIGN_CONTENT,
    ]
    return FoundObject(found, headers, etag, snapshot.time_s)


async def object_answer(
    files: Files, found: FoundObject, asked: S3Request, metrics: Metrics, label: str
) -> Answer:
    """Returns the answer to a GET or HEAD of an object. Raises: S3Error; the errors of reading."""
    total = found.file.entry.size_bytes
    outcome, failed = evaluate(asked.headers, found.etag, found.modified_s)
    if outcome is Outcome.NOT_MODIFIED:
        return Answer(304, [pair for pair in found.headers if pair[0] != "Content-Type"])
    if outcome is Outcome.FAILED:
        what = "at least one of the preconditions you specified did not hold"
        raise S3Error("PreconditionFailed", what, more=(("Condition", failed),))
    headers = _overridden(found.headers, asked)
    selected = _selected(found, asked, total)
    one = selected or ByteRange(0, total)
    sizes = [("Content-Length", str(one.size_bytes))]
    if selected is not None:
        sizes.append(("Content-Range", selected.content_range(total)))
    status = 200 if selected is None else 206
    target = None
    if headers is found.headers:
        target = fast_path_target(found.file, found.headers, metrics, label)
    if asked.method == "HEAD" or not one.size_bytes:
        return Answer(status, [*headers, *sizes], size_bytes=one.size_bytes, target=target)
    stream = await files.open(found.file, *one)
    return Answer(
        status,
        [*headers, *sizes],
        pieces=stream,
        first=stream.first,
        size_bytes=one.size_bytes,
        origin=stream.origin,
        source=source_of(stream.origin),
        target=target,
    )


def one_range(header: str | None, total_bytes: int) -> ByteRange | Unsatisfiable | None:
    """Returns what a Range header asks for; None for the whole object. S3 ignores several ranges
    and malformed ones."""
    if header is None or _ONE_RANGE.match(header) is None:
        return None
    selection: Selection = select_ranges(header, total_bytes)
    if isinstance(selection, list):
        return selection[0]
    if isinstance(selection, Unsatisfiable) and "malformed" in selection.why:
        return None
    return selection


def _selected(found: FoundObject, asked: S3Request, total: int) -> ByteRange | None:
    """Returns the wanted part; None: the whole object."""
    wanted = asked.headers.get("range")
    if "partNumber" in asked.query:
        return _part(asked.text("partNumber"), wanted, total)
    if not range_applies(asked.headers, found.etag):
        return None
    selected = one_range(wanted, total)
    if isinstance(selected, Unsatisfiable):
        more = (("RangeRequested", wanted or ""), ("ActualObjectSize", str(total)))
        headers = (("Content-Range", f"bytes */{total}"),)
        what = "the requested range is not satisfiable"
        raise S3Error("InvalidRange", what, more=more, headers=headers)
    return selected


def _part(number: str, wanted: str | None, total: int) -> ByteRange | None:
    """Returns a part by its number: every object here has one part."""
    if wanted is not None:
        what = "cannot specify both Range header and partNumber query parameter"
        raise S3Error("InvalidRequest", what)
    if not re.fullmatch("[0-9]{1,5}", number) or not 1 <= int(number) <= PARTS_MAX:
        what = f"part number must be an integer between 1 and {PARTS_MAX}, inclusive"
        more = (("ArgumentName", "partNumber"), ("ArgumentValue", number))
        raise S3Error("InvalidArgument", what, more=more)
    if int(number) > 1:
        raise S3Error("InvalidPartNumber", "the requested partnumber is not satisfiable")
    return ByteRange(0, total) if total else None


def _overridden(headers: Headers, asked: S3Request) -> Headers:
    """Returns the headers with the request's overrides; the same list if there are none."""
    given = [name for name in OVERRIDES if name in asked.query]
    if not given:
        return headers
    signed = "authorization" in asked.headers or "X-Amz-Signature" in asked.query
    if not signed:
        what = "request specific response headers cannot be used for anonymous GET requests"
        raise S3Error("InvalidRequest", what)
    own = {OVERRIDES[name]: asked.text(name) for name in given}
    if any(_NO_HEADER.search(value) for value in own.values()):
        raise S3Error("InvalidArgument", "a response-* parameter has invalid characters")
    return [*(pair for pair in headers if pair[0] not in own), *own.items()]


def evaluate(headers: Mapping[str, str], etag: str, modified_s: int) -> tuple[Outcome, str]:
    """Returns the outcome of the conditions, and the header that failed. Tags take precedence over
    dates (13.2.2); malformed dates are ignored."""
    tags = {"If-Match": headers.get("if-match"), "If-None-Match": headers.get("if-none-match")}
    given = {name: _quoted(value) for name, value in tags.items() if value is not None}
    unmodified_s = _date_s(headers.get("if-unmodified-since"))
    if "If-Match" not in given and unmodified_s is not None and modified_s > unmodified_s:
        return Outcome.FAILED, "If-Unmodified-Since"
    outcome = evaluate_tags(given, etag)
    if outcome is Outcome.FAILED:
        return outcome, "If-Match"
    if outcome is Outcome.NOT_MODIFIED:
        return outcome, "If-None-Match"
    modified_since_s = _date_s(headers.get("if-modified-since"))
    if (
        "If-None-Match" not in given
        and modified_since_s is not None
        and modified_s == modified_since_s  # a branch that was moved back is older, and different
    ):
        return Outcome.NOT_MODIFIED, "If-Modified-Since"
    return Outcome.PROCEED, ""


def range_applies(headers: Mapping[str, str], etag: str) -> bool:
    """Whether a Range header counts: there is no If-Range, or its tag matches. A date never
    matches, since two commits may have the same second."""
    wanted = headers.get("if-range")
    return wanted is None or _quoted(wanted.strip()) == etag


def _quoted(value: str) -> str:
    """Returns a quoted tag: S3 accepts tags without quotes, too."""
    text = value.strip()
    bare = text and text != "*" and '"' not in text
    return ", ".join(f'"{one.strip()}"' for one in text.split(",")) if bare else text


def _date_s(value: str | None) -> int | None:
    parsed = parsedate(value) if value else None
    try:
        return timegm(parsed) if parsed else None
    except (ValueError, OverflowError):
        return None

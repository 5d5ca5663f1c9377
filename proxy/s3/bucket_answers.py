"""Answers about buckets: lists of objects and buckets, and the settings that clients query first.

Source: Amazon S3 API Reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote_from_bytes

from lodefs.proxy.api.responses import Answer
from lodefs.proxy.s3.documents import OWNER, XML, document, element, escaped, iso_time
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.listing import (
    KEYS_MAX,
    KeyPage,
    Query,
    decode_token,
    encode_token,
    start_after,
    wrong_token,
)
from lodefs.proxy.s3.request import S3Request

REGION = "us-east-1"
LEFT_OUT_HEADER = "x-lodefs-left-out"
_NUMBER = re.compile(r"[0-9]{1,10}\Z")

# The answers of an unconfigured bucket. None: there is no such configuration.
_SETTINGS: dict[str, tuple[str, str]] = {
    "accelerate": ("AccelerateConfiguration", ""),
    "acl": (
        "AccessControlPolicy",
        OWNER + "<AccessControlList><Grant>"
        '<Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        'xsi:type="CanonicalUser"><ID>lodefs</ID><DisplayName>lodefs</DisplayName></Grantee>'
        "<Permission>READ</Permission></Grant></AccessControlList>",
    ),
    "location": ("LocationConstraint", ""),
    "logging": ("BucketLoggingStatus", ""),
    "notification": ("NotificationConfiguration", ""),
    "requestPayment": ("RequestPaymentConfiguration", element("Payer", "BucketOwner")),
    "versioning": ("VersioningConfiguration", ""),
}
_MISSING = {
    "cors": "NoSuchCORSConfiguration",
    "encryption": "ServerSideEncryptionConfigurationNotFoundError",
    "lifecycle": "NoSuchLifecycleConfiguration",
    "object-lock": "ObjectLockConfigurationNotFoundError",
    "ownershipControls": "OwnershipControlsNotFoundError",
    "policy": "NoSuchBucketPolicy",
    "publicAccessBlock": "NoSuchPublicAccessBlockConfiguration",
    "replication": "ReplicationConfigurationNotFoundError",
    "tagging": "NoSuchTagSet",
    "website": "NoSuchWebsiteConfiguration",
}
_OTHER = {
    *("analytics", "intelligent-tiering", "inventory", "metadataTable", "metrics"),
    *("policyStatus", "session", "uploads", "versions"),
}
_OBJECT_SETTINGS: dict[str, tuple[str, str]] = {
    "acl": _SETTINGS["acl"],
    "tagging": ("Tagging", "<TagSet></TagSet>"),
}
_OBJECT_OTHER = {
    *("attributes", "legal-hold", "restore", "retention", "select", "torrent", "uploadId"),
}


def xml_answer(name: str, inner: str, headers: Iterable[tuple[str, str]] = ()) -> Answer:
    return Answer(200, [("Content-Type", XML), *headers], document(name, inner))


def bucket_setting(asked: S3Request) -> Answer | None:
    """Returns the answer to a query of a bucket's settings; None for other requests. Raises:
    S3Error."""
    for name in asked.query:
        if name in _SETTINGS:
            return xml_answer(*_SETTINGS[name])
        if name in _MISSING:
            raise S3Error(_MISSING[name], "this bucket has no such configuration", status=404)
        if name in _OTHER:
            raise _not_implemented(name)
    return None


def object_setting(asked: S3Request) -> Answer | None:
    """Returns the same for an object, which must exist."""
    for name in asked.query:
        if name in _OBJECT_SETTINGS:
            return xml_answer(*_OBJECT_SETTINGS[name])
        if name in _OBJECT_OTHER:
            raise _not_implemented(name)
    if asked.query.get("versionId", b"null") != b"null":
        raise S3Error("InvalidArgument", "invalid version id: name a revision in key or bucket")
    return None


def _not_implemented(name: str) -> S3Error:
    return S3Error("NotImplemented", f"{name} is not supported: only reads are")


def buckets_answer(names: Iterable[str], created_s: float) -> Answer:
    made = element("CreationDate", iso_time(created_s))
    inner = "".join(f"<Bucket>{element('Name', name)}{made}</Bucket>" for name in names)
    return xml_answer("ListAllMyBucketsResult", f"{OWNER}<Buckets>{inner}</Buckets>")


def is_version_2(asked: S3Request) -> bool:
    return asked.query.get("list-type") == b"2"


def query_of(asked: S3Request) -> Query:
    """Returns the parameters of a list. Raises: S3Error."""
    given = asked.text("max-keys", str(KEYS_MAX))
    if not _NUMBER.match(given):
        about = [("ArgumentName", "max-keys"), ("ArgumentValue", given)]
        raise S3Error("InvalidArgument", "max-keys must be a number, 0 or more", more=about)
    if asked.query.get("encoding-type", b"url") not in (b"url", b""):
        about = [("ArgumentName", "encoding-type")]
        raise S3Error("InvalidArgument", "invalid encoding method: url is known", more=about)
    prefix = asked.query.get("prefix", b"")
    delimiter = asked.query.get("delimiter", b"")
    token = None
    marker = asked.query.get("start-after" if is_version_2(asked) else "marker", b"")
    start = start_after(marker, prefix, delimiter)
    if is_version_2(asked) and asked.query.get("continuation-token"):
        token = decode_token(asked.text("continuation-token"))
        if token.bucket != asked.bucket:
            raise wrong_token("this continuation token is of another bucket")
        start = token.start
    keys_max = min(int(given), KEYS_MAX)
    return Query(asked.bucket, prefix, delimiter, keys_max, start, token)


def listing_answer(asked: S3Request, query: Query, page: KeyPage) -> Answer:
    """Returns the answer of ListObjectsV2 or ListObjects."""
    text = _encoder(asked)
    two = is_version_2(asked)
    parts = [element("Name", asked.bucket), _named("Prefix", query.prefix, text)]
    if two:
        if "start-after" in asked.query:
            parts.append(_named("StartAfter", asked.query["start-after"], text))
        if "continuation-token" in asked.query:
            parts.append(element("ContinuationToken", asked.text("continuation-token")))
        parts.append(element("KeyCount", len(page)))
    else:
        parts.append(_named("Marker", asked.query.get("marker", b""), text))
    parts.append(element("MaxKeys", query.keys_max))
    if query.delimiter:
        parts.append(_named("Delimiter", query.delimiter, text))
    if asked.query.get("encoding-type"):
        parts.append(element("EncodingType", "url"))
    parts.append(element("IsTruncated", "true" if page.following else "false"))
    if page.following is not None:
        if two:
            parts.append(element("NextContinuationToken", encode_token(page.following)))
        else:
            parts.append(_named("NextMarker", page.last, text))
    owner = OWNER if not two or asked.query.get("fetch-owner") == b"true" else ""
    times: dict[int, str] = {}
    for one in page.keys:
        time = times.setdefault(one.time_s, element("LastModified", iso_time(one.time_s)))
        parts.append(
            f"<Contents><Key>{text(one.key)}</Key>{time}"
            f"<ETag>&quot;{one.content_id.hex()}&quot;</ETag><Size>{one.size_bytes}</Size>"
            f"{owner}<StorageClass>STANDARD</StorageClass></Contents>"
        )
    parts += [
        f"<CommonPrefixes><Prefix>{text(prefix)}</Prefix></CommonPrefixes>"
        for prefix in page.prefixes
    ]
    headers = [(LEFT_OUT_HEADER, str(page.left_out))] if page.left_out else []
    return xml_answer("ListBucketResult", "".join(parts), headers)


def _encoder(asked: S3Request) -> Callable[[bytes], str]:
    """Returns the function that encodes keys in the document."""
    if asked.query.get("encoding-type"):
        return lambda key: quote_from_bytes(key, safe="/")
    return lambda key: escaped(key.decode("utf-8", "replace"))


def _named(name: str, value: bytes, text: Callable[[bytes], str]) -> str:
    return f"<{name}>{text(value)}</{name}>"

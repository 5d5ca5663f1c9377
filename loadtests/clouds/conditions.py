"""What servers like S3 do with conditions that lodefs does not need, or can do without: they tell
how far a server follows AWS. ``lodefs init --dry-run`` tries what it needs."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from loadtests.services import S3Server

NO, IGNORED, YES = "refused", "ignored", "yes"


def _refused(error: Any) -> bool:
    return error.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412)


def _put_if_match(client: Any, bucket: str, key: str) -> str:
    """PUT with If-Match: the ETag of now is taken, and a former one refused."""
    etag = client.put_object(Bucket=bucket, Key=key, Body=b"old")["ETag"]
    client.put_object(Bucket=bucket, Key=key, Body=b"new", IfMatch=etag)
    try:
        client.put_object(Bucket=bucket, Key=key, Body=b"late", IfMatch=etag)
    except client.exceptions.ClientError as error:
        return YES if _refused(error) else NO
    return IGNORED


def _complete_if_absent(client: Any, bucket: str, key: str) -> str:
    """CompleteMultipartUpload with If-None-Match: * over an object."""
    client.put_object(Bucket=bucket, Key=key, Body=b"old")
    upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    named = {"Bucket": bucket, "Key": key, "UploadId": upload}
    part = client.upload_part(**named, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    try:
        client.complete_multipart_upload(**named, MultipartUpload=parts, IfNoneMatch="*")
    except client.exceptions.ClientError as error:
        return YES if _refused(error) else NO
    return IGNORED


def _copy_if_match(client: Any, bucket: str, key: str) -> str:
    """CopyObject with the ETag of the source, once the right one, once another."""
    etag = client.put_object(Bucket=bucket, Key=key, Body=b"old")["ETag"]
    source = {"Bucket": bucket, "Key": key}
    there = {"Bucket": bucket, "Key": f"{key}-copy", "CopySource": source}
    client.copy_object(**there, CopySourceIfMatch=etag)
    client.put_object(Bucket=bucket, Key=key, Body=b"new")
    try:
        client.copy_object(**there, CopySourceIfMatch=etag)
    except client.exceptions.ClientError as error:
        return YES if _refused(error) else NO
    return IGNORED


CONDITIONS: dict[str, Callable[[Any, str, str], str]] = {
    "PUT if it matches": _put_if_match,
    "multipart, if absent": _complete_if_absent,
    "copy, if it matches": _copy_if_match,
}


def tried(server: S3Server, bucket: str) -> dict[str, str]:
    """What a server does with each condition: yes, ignored, or refused though it holds."""
    client = server.client()
    found = {}
    for name, ask in CONDITIONS.items():
        try:
            found[name] = ask(client, bucket, f"tried-{secrets.token_hex(6)}")
        except client.exceptions.ClientError:
            found[name] = NO
    return found

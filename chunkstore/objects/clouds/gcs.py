"""Requests to Google Cloud Storage through its JSON API, version 1.

Source: Cloud Storage JSON API reference (objects: get, insert, list, delete) and "Request
preconditions". The ETag of an object is its generation, which changes with each write of its bytes;
``ifGenerationMatch=0`` writes only if there is no object. google-auth finds credentials as all of
Google's tools do; STORAGE_EMULATOR_HOST names an emulator, which needs none.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64decode
from collections.abc import Callable
from os import environ, urandom
from typing import Any
from urllib.parse import quote, urlencode

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, Unavailable, Unsupported
from lodefs.chunkstore.objects.clouds.http_objects import HttpRequest, Listing, Page, Written
from lodefs.chunkstore.objects.interface import ObjectInfo
from lodefs.chunkstore.objects.ranges.answers import RangeResponse
from lodefs.chunkstore.objects.s3.errors import error_of_cloud

ENDPOINT = "https://storage.googleapis.com"
EMULATOR = "STORAGE_EMULATOR_HOST"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]\Z")
_GENERATION = re.compile(r"[0-9]{1,19}\Z")
_NO_BUCKET = re.compile(r"bucket does not exist|bucket .*not found", re.IGNORECASE)
_CODES = {  # reasons of Google for which s3/errors.py has a name
    "rateLimitExceeded": "SlowDown",  # with the status 403 or 429
    "userRateLimitExceeded": "SlowDown",
    "authError": "InvalidToken",
}
_TYPE = "application/octet-stream"
_CHECK = f"check the network and {EMULATOR}"


def check_bucket(name: str) -> str:
    """Returns the name of a bucket. Raises: InvalidInput, which does not repeat it."""
    if not _BUCKET.match(name):
        raise InvalidInput(
            "the URL's bucket is not a valid name: one has 3 to 63 lower-case letters, digits, "
            "'-', '_' and '.', a letter or digit first and last; use gs://bucket/prefix"
        )
    return name


def open_gcs(bucket: str) -> GcsApi:
    """Returns the interface to a bucket, with the credentials of this environment. It does not
    connect yet. Raises: InvalidInput."""
    host = environ.get(EMULATOR, "")
    if not host:
        return GcsApi(bucket, ENDPOINT, GoogleToken())
    endpoint = host.rstrip("/") if "://" in host else f"http://{host}"
    return GcsApi(bucket, endpoint, None)


class GcsApi:
    """Implements CloudApi."""

    etag_header = "x-goog-generation"
    has_suffix_ranges = True
    has_start = True
    check = _CHECK

    def __init__(self, bucket: str, endpoint: str, token: Callable[[], str] | None) -> None:
        """``token`` returns the current access token; None if none is sent."""
        self.url = f"gs://{check_bucket(bucket)}"
        self.endpoint = endpoint
        self._bucket = bucket
        self._token = token

    def signed(self, request: HttpRequest, body_bytes: int | None) -> HttpRequest:  # noqa: ARG002
        if self._token is None:
            return request
        headers = {**request.headers, "authorization": f"Bearer {self._token()}"}
        return request._replace(headers=headers)

    def get(self, key: str, wanted: str, if_match: str | None) -> HttpRequest:
        query = {"alt": "media"}
        if if_match is not None and _GENERATION.match(if_match):  # the caller checks any other
            query["ifGenerationMatch"] = if_match
        return self._of_object("GET", key, query, {"range": wanted}, root="/download")

    def head(self, key: str) -> HttpRequest:
        return self._of_object("GET", key, {"fields": "size,generation"})

    def put(self, key: str, *, if_absent: bool) -> HttpRequest:
        # "multipart", as Google's own libraries do: fake-gcs-server ignores conditions of "media"
        query = {"uploadType": "multipart", "fields": "generation,md5Hash"}
        if if_absent:
            query["ifGenerationMatch"] = "0"
        mark = urandom(16).hex()  # random, since it must not be in the object
        metadata = json.dumps({"name": key, "contentType": _TYPE})
        before = (
            f"--{mark}\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n{metadata}\r\n"
            f"--{mark}\r\ncontent-type: {_TYPE}\r\n\r\n"
        )
        return HttpRequest(
            "POST",
            f"/upload/storage/v1/b/{self._bucket}/o?{urlencode(query)}",
            {"content-type": f"multipart/related; boundary={mark}"},
            before.encode(),
            f"\r\n--{mark}--\r\n".encode(),
        )

    def delete(self, key: str) -> HttpRequest:
        return self._of_object("DELETE", key, {})

    def list(self, listing: Listing) -> HttpRequest:
        query = {
            "prefix": listing.prefix,
            "startOffset": listing.start,
            "delimiter": listing.delimiter,
            "maxResults": str(listing.keys_max),
            "pageToken": listing.token,
            "fields": "nextPageToken,prefixes,items(name,size,generation)",
        }
        said = urlencode({name: value for name, value in query.items() if value})
        return HttpRequest("GET", f"/storage/v1/b/{self._bucket}/o?{said}", {})

    def info(self, key: str, answer: RangeResponse) -> ObjectInfo:
        return _info(key, json.loads(bytes(answer.data)))

    def written(self, answer: RangeResponse) -> Written:
        found = json.loads(bytes(answer.data))
        md5 = found.get("md5Hash")
        return Written(str(found["generation"]), b64decode(md5) if md5 else None)

    def page(self, answer: RangeResponse) -> Page:
        found = json.loads(bytes(answer.data))
        infos = [_info(item["name"], item) for item in found.get("items", ())]
        return Page(infos, found.get("prefixes", []), found.get("nextPageToken", ""))

    def is_taken(self, answer: RangeResponse) -> bool:
        return answer.status == 412

    def refusal(self, answer: RangeResponse, what: str) -> LodefsError:
        message, reason = _error_of(bytes(answer.data))
        is_bucket = answer.status == 404 and _NO_BUCKET.search(message)
        code = "NoSuchBucket" if is_bucket else _CODES.get(reason, reason)
        return error_of_cloud(answer, code, message, what, self._bucket)

    def _of_object(
        self,
        method: str,
        key: str,
        query: dict[str, str],
        headers: dict[str, str] | None = None,
        root: str = "",
    ) -> HttpRequest:
        path = f"{root}/storage/v1/b/{self._bucket}/o/{quote(key, safe='')}"
        return HttpRequest(method, f"{path}?{urlencode(query)}" if query else path, headers or {})


class GoogleToken:
    """The access token of this environment's Google credentials, renewed before it ends. For any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # lets one thread find and renew them
        self._credentials: Any = None  # of google-auth

    def __call__(self) -> str:
        """Returns the token. Raises: Denied if there are no credentials, or they are refused;
        Unavailable; Unsupported without google-auth."""
        try:
            import google.auth
            from google.auth import exceptions
            from google.auth.transport import urllib3 as transport
        except ImportError:
            raise Unsupported(
                "gs:// needs the library google-auth: pip install 'lodefs[gcs]'"
            ) from None
        import urllib3

        request: Any = transport.Request
        try:
            with self._lock:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=[SCOPE])
                if not self._credentials.valid:
                    self._credentials.refresh(request(urllib3.PoolManager()))
                return str(self._credentials.token)
        except exceptions.DefaultCredentialsError as error:
            raise Denied(
                f"no Google credentials were found ({error}); run `gcloud auth application-default "
                "login`, or set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account"
            ) from error
        except exceptions.TransportError as error:
            raise Unavailable(f"Google's token server does not answer ({error})") from error
        except exceptions.GoogleAuthError as error:
            raise Denied(
                f"Google refuses this node's credentials ({error}); check them, and this clock"
            ) from error


def _info(key: str, found: dict[str, object]) -> ObjectInfo:
    return ObjectInfo(key, int(str(found["size"])), str(found["generation"]))


def _error_of(body: bytes) -> tuple[str, str]:
    """Returns message and reason of an error, which is JSON or, for media, plain text."""
    try:
        error = json.loads(body)["error"]
        reasons = [str(one.get("reason", "")) for one in error.get("errors", ())]
        return str(error.get("message", "")), "".join(reasons[:1])
    except (ValueError, LookupError, TypeError, AttributeError):
        return body.decode("utf-8", "replace")[:200].strip(), ""

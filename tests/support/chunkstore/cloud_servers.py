"""Small servers of the parts of Google Cloud Storage and of Azure Blobs that lodefs uses, in this
process, for tests. They check conditions and answer as the documents of both say; real emulators
are asked by ``./run clouds``."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import replace
from itertools import count
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.chunkstore.bad_server import Answer, Request

_RANGE = re.compile(r"bytes=(\d*)-(\d*)\Z")


class _Stored(NamedTuple):
    data: bytes
    version: str


class CloudServer:
    """Objects of one bucket. A subclass is what a BadServer answers with."""

    def __init__(self) -> None:
        self.stored: dict[str, _Stored] = {}
        self._numbers = count(1_700_000_000_000_001)
        self._lock = threading.Lock()  # guards check-then-write

    def put(self, key: str, data: bytes, *, if_absent: bool) -> _Stored | None:
        """Returns the object; None if there was one already."""
        with self._lock:
            if if_absent and key in self.stored:
                return None
            self.stored[key] = _Stored(data, str(next(self._numbers)))
            return self.stored[key]

    def page(self, query: dict[str, str], start: str, keys_max: int) -> tuple[list[str], str]:
        """Returns names of one page, those that end with the delimiter being prefixes, and the
        first name of the next page."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names = set()
        for key in self.stored:
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[: end + 1]
            if key.startswith(prefix) and name >= start:
                names.add(name)
        found = sorted(names)
        return found[:keys_max], "".join(found[keys_max : keys_max + 1])


def ranged(stored: _Stored, header: str, headers: dict[str, str], *, suffixes: bool) -> Answer:
    """Returns the answer to a GET of a range."""
    size = len(stored.data)
    found = _RANGE.match(header)
    assert found is not None and (suffixes or found[1]), header
    first = int(found[1]) if found[1] else max(0, size - int(found[2]))
    last = min(int(found[2]) if found[1] and found[2] else size - 1, size - 1)
    if first >= size:
        return Answer(416)
    span = {"Content-Range": f"bytes {first}-{last}/{size}"}
    return Answer(206, stored.data[first : last + 1], headers | span)


class GcsServer(CloudServer):
    """Google's JSON API, for the bucket ``bucket`` and the token ``token``."""

    def __call__(self, request: Request) -> Answer:
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if request.headers.get("authorization", "Bearer token") != "Bearer token":
            return self._error(401, "Invalid Credentials")
        found = re.match(r"(/download|/upload|)/storage/v1/b/([^/]+)/o(?:/(.+))?\Z", url.path)
        assert found is not None, url.path
        if found[2] != "bucket":
            return self._error(404, "The specified bucket does not exist.")
        if found[1] == "/upload":
            return self._put(query, request)
        if not found[3]:
            return self._list(query)
        return self._object(request, unquote(found[3]), query)

    def _object(self, request: Request, key: str, query: dict[str, str]) -> Answer:
        stored = self.stored.get(key)
        if stored is None:
            return self._error(404, f"No such object: bucket/{key}")
        if request.method == "DELETE":
            del self.stored[key]
            return Answer(204)
        if query.get("ifGenerationMatch", stored.version) != stored.version:
            return self._error(412, "At least one of the pre-conditions did not hold.")
        if query.get("alt") != "media":
            return Answer(200, json.dumps(self._resource(key, stored)).encode())
        headers = {"X-Goog-Generation": stored.version, "ETag": "metadata"}
        return ranged(stored, request.headers["range"], headers, suffixes=True)

    def _put(self, query: dict[str, str], request: Request) -> Answer:
        assert query["uploadType"] == "multipart"
        key, body = _parts(request)
        stored = self.put(key, body, if_absent=query.get("ifGenerationMatch") == "0")
        if stored is None:
            return self._error(412, "At least one of the pre-conditions did not hold.")
        return Answer(200, json.dumps(self._resource(key, stored)).encode())

    def _list(self, query: dict[str, str]) -> Answer:
        start = max(query.get("startOffset", ""), query.get("pageToken", ""))
        names, token = self.page(query, start, int(query["maxResults"]))
        items = [self._resource(name, self.stored[name]) for name in names if name in self.stored]
        answer = {"items": items, "prefixes": [one for one in names if one not in self.stored]}
        return Answer(
            200, json.dumps(answer | ({"nextPageToken": token} if token else {})).encode()
        )

    def _resource(self, key: str, stored: _Stored) -> dict[str, str]:
        md5 = hashlib.md5(stored.data, usedforsecurity=False).digest()
        sizes = {"size": str(len(stored.data)), "generation": stored.version}
        return {"name": key, "md5Hash": base64.b64encode(md5).decode(), **sizes}

    def _error(self, status: int, message: str) -> Answer:
        body = {"error": {"code": status, "message": message, "errors": [{"reason": "said"}]}}
        return Answer(status, json.dumps(body).encode())


def _parts(request: Request) -> tuple[str, bytes]:
    """Returns name and bytes of the object in a multipart body (RFC 2387)."""
    mark = request.headers["content-type"].partition("boundary=")[2].encode()
    _, metadata, media = request.body.removesuffix(b"--\r\n").split(b"--" + mark, 3)[:3]
    name = json.loads(metadata.partition(b"\r\n\r\n")[2])["name"]
    return name, media.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")


class AzureServer(CloudServer):
    """Azure's REST interface, for the container ``bucket`` of the account ``devstoreaccount1``."""

    def __call__(self, request: Request) -> Answer:
        url = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        assert "x-ms-date" in request.headers and "x-ms-version" in request.headers
        if not request.headers.get("authorization", "").startswith("SharedKey devstoreaccount1:"):
            return self._error(403, "AuthenticationFailed")
        account, container, key = [*url.path[1:].split("/", 2), ""][:3]
        assert account == "devstoreaccount1"
        if container != "bucket":
            return self._error(404, "ContainerNotFound")
        return self._object(request, unquote(key)) if key else self._list(query)

    def _object(self, request: Request, key: str) -> Answer:
        if request.method == "PUT":
            return self._put(request, key)
        stored = self.stored.get(key)
        etag = "" if stored is None else f'"0x{stored.version}"'
        if request.headers.get("if-match", etag) != etag:
            return self._error(412, "ConditionNotMet")
        if stored is None:
            missing = self._error(404, "BlobNotFound")
            return replace(missing, lacks_length=request.method == "HEAD")  # as Azurite answers
        if request.method == "DELETE":
            del self.stored[key]
            return Answer(202)
        headers = {"ETag": etag}
        if request.method == "HEAD":
            return Answer(200, stored.data, headers)
        return ranged(stored, request.headers["range"], headers, suffixes=False)

    def _put(self, request: Request, key: str) -> Answer:
        assert request.headers["x-ms-blob-type"] == "BlockBlob"
        if_absent = request.headers.get("if-none-match") == "*"
        stored = self.put(key, request.body, if_absent=if_absent)
        if stored is None:
            return self._error(409, "BlobAlreadyExists")
        md5 = hashlib.md5(stored.data, usedforsecurity=False).digest()
        headers = {"Content-MD5": base64.b64encode(md5).decode(), "ETag": f'"0x{stored.version}"'}
        return Answer(201, b"", headers)

    def _list(self, query: dict[str, str]) -> Answer:
        names, token = self.page(query, query.get("marker", ""), int(query["maxresults"]))
        lines = ['<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>']
        for name in names:
            stored, said = self.stored.get(name), f"<Name>{escape(name)}</Name>"
            if stored is None:
                lines.append(f"<BlobPrefix>{said}</BlobPrefix>")
                continue
            sizes = f"<Content-Length>{len(stored.data)}</Content-Length>"
            etag = f"<Etag>0x{stored.version}</Etag>"
            lines.append(f"<Blob>{said}<Properties>{etag}{sizes}</Properties></Blob>")
        lines.append(f"</Blobs><NextMarker>{escape(token)}</NextMarker></EnumerationResults>")
        return Answer(200, "".join(lines).encode())

    def _error(self, status: int, code: str) -> Answer:
        body = f"<Error><Code>{code}</Code><Message>said so\nRequestId:1</Message></Error>"
        return Answer(status, body.encode(), {"x-ms-error-code": code})

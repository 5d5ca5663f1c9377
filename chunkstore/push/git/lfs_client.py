"""Fetches objects from the Git LFS server of a Git repository: the batch API and basic transfer.

Sources: https://github.com/git-lfs/git-lfs, docs/api/batch.md and docs/api/server-discovery.md.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256
from typing import BinaryIO
from urllib.parse import SplitResult, urlsplit

import msgspec

from lodefs.chunkstore.errors import (
    Corrupt,
    DeadlineExceeded,
    Denied,
    InvalidInput,
    LodefsError,
    NotFound,
    Unavailable,
)
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign.lfs import MEDIA, Action, Pointer
from lodefs.chunkstore.push.git.git_repository import GitRepository

BATCH_OBJECTS_MAX = 100
ANSWER_BYTES_MAX = 4 << 20
TIMEOUT_S = 60.0  # for each step of an answer
BLOCK_SIZE_BYTES = 1 << 20


class _Error(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Object(msgspec.Struct, frozen=True):
    oid: str
    actions: dict[str, Action] = {}
    error: _Error | None = None


class _Batch(msgspec.Struct, frozen=True):
    objects: list[_Object]


class LfsServer:
    """The LFS server of a repository that has a URL. ``limit_s`` is for all that it sends."""

    def __init__(self, repository: GitRepository, limit_s: float) -> None:
        """Raises: InvalidInput for a local directory."""
        self._repository = repository
        self._endpoint = endpoint_of(repository.url)
        self._ends_s = time.monotonic() + limit_s
        self._context = ssl.create_default_context(cafile=repository.ca_file)

    def actions(self, pointers: Iterable[Pointer]) -> dict[str, Action]:
        """Returns how to get objects, by id. Raises: NotFound for objects that the server lacks;
        Denied, Unavailable."""
        found: dict[str, Action] = {}
        wanted = [*{one.oid: one for one in pointers}.values()]
        for first in range(0, len(wanted), BATCH_OBJECTS_MAX):
            some = wanted[first : first + BATCH_OBJECTS_MAX]
            body = json.dumps(
                {
                    "operation": "download",
                    "transfers": ["basic"],
                    "objects": [{"oid": one.oid, "size": one.size_bytes} for one in some],
                }
            )
            for one in self._batch(body.encode()).objects:
                if one.error is not None or "download" not in one.actions:
                    why = "no download" if one.error is None else one.error.message[:200]
                    raise NotFound(f"{self._endpoint} does not give {one.oid[:64]}: {why}")
                found[one.oid] = one.actions["download"]
        return found

    @contextmanager
    def fetched(self, pointer: Pointer, action: Action) -> Iterator[BinaryIO]:
        """Yields a temporary file with an object, which was checked. Raises: Corrupt for other
        bytes; Denied, Unavailable."""
        with tempfile.TemporaryFile(dir=self._repository.directory) as file:
            hasher, left = sha256(), pointer.size_bytes
            with self._asked("GET", action.href, b"", action.header) as answer:
                if answer.status != 200:
                    raise _refusal(action.href, answer.status)
                while block := answer.read1(min(BLOCK_SIZE_BYTES, left + 1)):  # what has come
                    self._check_time()
                    left -= len(block)
                    if left < 0:
                        break
                    hasher.update(block)
                    file.write(block)
            if left or hasher.hexdigest() != pointer.oid:
                raise Corrupt(
                    f"{_place(action.href)} sends other bytes than those of {pointer.oid}: nothing "
                    "was committed"
                )
            file.seek(0)
            yield file

    def _batch(self, body: bytes) -> _Batch:
        url = f"{self._endpoint}/objects/batch"
        headers = {"Accept": MEDIA, "Content-Type": MEDIA, **self._authorization()}
        with self._asked("POST", url, body, headers) as answer:
            if answer.status != 200:
                raise _refusal(url, answer.status)
            data = answer.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            raise InvalidInput(f"{url} answers with more than {ANSWER_BYTES_MAX:,} bytes")
        return from_json(data, _Batch)

    def _authorization(self) -> Mapping[str, str]:
        known = self._repository.credentials(self._endpoint)
        if known is None:
            return {}
        return {"Authorization": f"Basic {b64encode(os.fsencode(':'.join(known))).decode()}"}

    @contextmanager
    def _asked(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str]
    ) -> Iterator[http.client.HTTPResponse]:
        """Sends one request, and follows no redirect."""
        self._check_time()
        parts = _split(url, self._endpoint)
        target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        try:
            with closing(self._connection(parts)) as connection:
                connection.request(method, target, body, dict(headers))
                yield connection.getresponse()
        except LodefsError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(f"{_place(url)} does not answer: {error}") from error

    def _connection(self, parts: SplitResult) -> http.client.HTTPConnection:
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_S, context=self._context
            )
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)

    def _check_time(self) -> None:
        if time.monotonic() > self._ends_s:
            raise DeadlineExceeded(f"{self._endpoint} takes too long: repeat the import")


def endpoint_of(url: str) -> str:
    """Returns the URL of the LFS server that belongs to the URL of a repository. Raises:
    InvalidInput for a local directory."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise InvalidInput(
            f"{url} is a directory, without an LFS server: push its objects by git lfs"
        )
    path = parts.path if parts.path.endswith(".git") else f"{parts.path}.git"
    if parts.scheme == "ssh":
        return f"https://{parts.hostname}{path}/info/lfs"
    return f"{parts.scheme}://{parts.netloc}{path}/info/lfs"


def _split(url: str, endpoint: str) -> SplitResult:
    """Splits a URL that the server has sent. Raises: Denied unless it is as safe as the server's
    own."""
    parts = urlsplit(url)
    is_http = parts.scheme == "https" or parts.scheme == urlsplit(endpoint).scheme == "http"
    if not is_http or not parts.hostname or parts.username is not None:
        raise Denied(f"{endpoint} leads to {_place(url)}, which is less safe: it is not followed")
    return parts


def _refusal(url: str, status: int) -> LodefsError:
    place = _place(url)
    if 300 <= status < 400:
        return Denied(f"{place} redirects, and no redirect is followed")
    if status in (401, 403):
        return Denied(f"{place} wants other credentials: lines https://USER:TOKEN@HOST in a file")
    if status == 404:
        return NotFound(f"{place} is not there: perhaps the Git server has no Git LFS")
    return Unavailable(f"{place} answers with status {status}")


def _place(url: str) -> str:
    """Returns a URL for messages, without its query, which may be a secret."""
    return url.partition("?")[0][:300]

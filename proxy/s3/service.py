"""The S3 interface of a node: from a request to an answer. Read-only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.api import disclosure
from lodefs.proxy.api.responses import Answer
from lodefs.proxy.metrics.server_metrics import Metrics
from lodefs.proxy.node import NodeService
from lodefs.proxy.runtime.thread_pools import current_owner, remote_owner
from lodefs.proxy.s3.bucket_answers import (
    REGION,
    bucket_setting,
    buckets_answer,
    is_version_2,
    listing_answer,
    object_setting,
    query_of,
)
from lodefs.proxy.s3.buckets import S3Settings, no_such_bucket, place_of, root_of
from lodefs.proxy.s3.errors import S3Error, error_answer
from lodefs.proxy.s3.forwarding import Forwarder
from lodefs.proxy.s3.listing import KeyPage, Lister, ListingToken
from lodefs.proxy.s3.objects import find_object, object_answer
from lodefs.proxy.s3.request import S3Request, parse_request
from lodefs.proxy.s3.signature import AccessKey, AccessKeys, Verifier

_V1Page = tuple[str, str, bytes, bytes, bytes]  # key, bucket, prefix, delimiter, marker
LABEL = "s3"  # the label of its requests in metrics
METHODS = ("GET", "HEAD")
LISTINGS_MAX = 1024  # lists of V1, whose pages belong to one commit
LISTING_FOR_S = 900.0  # after this time a marker is only a key


class S3Service:
    """The answers of one S3 endpoint. ``keys`` None: everybody may read everything, signed or
    not."""

    def __init__(
        self,
        node: NodeService,
        settings: S3Settings,
        keys: AccessKeys | None,
        metrics: Metrics,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.verifier = None if keys is None else Verifier(keys, clock_s)
        self._forwarder = None if settings.other is None else Forwarder(settings.other)
        self._node = node
        self._metrics = metrics
        self._clock_s = clock_s
        self._started_s = clock_s()
        self._listings: Lru[_V1Page, tuple[float, ListingToken]] = Lru(LISTINGS_MAX)

    async def answer(
        self,
        method: str,
        raw_target: str,
        headers: Mapping[str, str],
        allowed: Callable[[], None] = lambda: None,
    ) -> Answer:
        """Returns the answer to a request, even for errors; names of ``headers`` are in lower case.
        ``allowed`` is called for an authorized client."""
        asked = parse_request(method, raw_target, headers, self.settings.domain)
        key = None
        try:
            key = None if self.verifier is None else self.verifier.verify(asked)
            if key is not None:
                current_owner.set(remote_owner(key.name))
            allowed()
            if method not in METHODS:
                what = "this is read-only: `lodefs push` writes"
                raise S3Error("MethodNotAllowed", what, headers=(("Allow", "GET, HEAD"),))
            return await self._answer(asked, key)
        except LodefsError as error:
            if key is not None and not key.sees_all:
                error = self._told(error)
            return error_answer(error, asked.resource, close=method not in METHODS)

    def _told(self, error: LodefsError) -> LodefsError:
        """Returns an error as a key that may not read everything gets it."""
        places = disclosure.places_of(self._node.status())
        if not isinstance(error, S3Error):
            return disclosure.redacted(error, places)
        return error.without_why() if disclosure.names_place(str(error), places) else error

    async def _answer(self, asked: S3Request, key: AccessKey | None) -> Answer:
        if not asked.bucket:
            names = [name for name in self._buckets() if self._may_open(key, name)]
            return buckets_answer(names, self._started_s)
        if self._is_forwarded(asked.bucket, key) and self._forwarder is not None:
            return await self._forwarder.answer(asked)
        if not self._may_open(key, asked.bucket):  # the same answer as for a missing bucket
            raise no_such_bucket(asked.bucket)
        root = root_of(self.settings, asked.bucket, asked.key or asked.query.get("prefix", b""))
        if root is not None and not _may_read(key, root.repo):
            what = f"this key may not read the repository {root.repo!r}"
            raise S3Error("AccessDenied", what)
        if asked.key:
            return await self._object(asked)
        return await self._bucket(asked, key)

    def _is_forwarded(self, bucket: str, key: AccessKey | None) -> bool:
        return self.settings.is_other(bucket) and key is not None and key.forwards(bucket)

    def _buckets(self) -> list[str]:
        return sorted({self.settings.bucket, *self.settings.aliases})

    def _may_open(self, key: AccessKey | None, bucket: str) -> bool:
        alias = self.settings.aliases.get(bucket)
        return alias is None or _may_read(key, alias.repo)

    async def _object(self, asked: S3Request) -> Answer:
        place = place_of(self.settings, asked.bucket, asked.key)
        found = await find_object(self._node.names, place, asked.key)
        setting = object_setting(asked)
        if setting is not None:
            return setting
        return await object_answer(self._node.files, found, asked, self._metrics, LABEL)

    async def _bucket(self, asked: S3Request, key: AccessKey | None) -> Answer:
        alias = self.settings.aliases.get(asked.bucket)
        if alias is not None:
            try:
                await self._node.names.snapshot(alias.repo, alias.rev)
            except NotFound as error:
                raise S3Error("NoSuchBucket", str(error)) from error
        if asked.method == "HEAD":
            return Answer(200, [("x-amz-bucket-region", REGION), ("Content-Length", "0")])
        setting = bucket_setting(asked)
        return setting if setting is not None else await self._listing(asked, key)

    async def _listing(self, asked: S3Request, key: AccessKey | None) -> Answer:
        query = query_of(asked)
        if not query.keys_max:
            return listing_answer(asked, query, KeyPage())
        who = "" if key is None else key.name  # keys see different repositories
        kept = (who, query.bucket, query.prefix, query.delimiter)
        if not is_version_2(asked):  # a marker does not name the commit
            marker = asked.query.get("marker", b"")
            ends_s, token = self._listings.get((*kept, marker)) or (0.0, None)
            if token is not None and self._clock_s() < ends_s:
                query = replace(query, token=token, start=token.start)
        lister = Lister(self._node.names, self.settings, lambda repo: _may_read(key, repo))
        page = await lister.page(query)
        self._metrics.s3_left_out += page.left_out
        if page.following is not None and page.last and not is_version_2(asked):
            until_s = self._clock_s() + LISTING_FOR_S
            self._listings.put((*kept, page.last), (until_s, page.following))
        return listing_answer(asked, query, page)


def _may_read(key: AccessKey | None, repo: str) -> bool:
    return key is None or key.allows(repo)

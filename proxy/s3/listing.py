"""Pages of lists: keys and common prefixes of one bucket, for ListObjects (V1 and V2).

Source: Amazon S3 API Reference, ListObjectsV2 and ListObjects.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.decoding import from_msgpack
from lodefs.chunkstore.format.names import ID_BYTES, check_repo, digest_of
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.node import Names
from lodefs.proxy.s3.buckets import Root, S3Settings, root_of
from lodefs.proxy.s3.errors import S3Error
from lodefs.proxy.s3.key_walk import Found, KeyWalk

KEYS_MAX = 1000
STEPS_MAX = 50_000  # entries visited for a page, including empty and left-out ones
PAGE_S_MAX = 20.0  # then a page with any keys ends, since clients wait for at most a minute


class ListedKey(NamedTuple):
    """One key of a page."""

    key: bytes
    size_bytes: int
    content_id: bytes
    time_s: int


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of a page. ``start`` is the least key; ``token`` is the end of the page
    before."""

    bucket: str
    prefix: bytes = b""
    delimiter: bytes = b""
    keys_max: int = KEYS_MAX
    start: bytes = b""
    token: ListingToken | None = None


@dataclass(slots=True)
class KeyPage:
    """One page. ``following`` is None after the last one."""

    keys: list[ListedKey] = field(default_factory=list)
    prefixes: list[bytes] = field(default_factory=list)
    following: ListingToken | None = None
    last: bytes = b""  # where V1 continues: the last key or prefix
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.keys) + len(self.prefixes)


def start_after(marker: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Returns the least key of a page after a marker. A marker within a common prefix skips all of
    it."""
    if not marker:
        return b""
    common = common_prefix(marker, prefix, delimiter)
    return after_all(common) if common else marker + b"\0"


def common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes:
    """Returns the common prefix under which a key is shown; b"" if it is shown itself."""
    if not delimiter or not key.startswith(prefix):
        return b""
    at = key.find(delimiter, len(prefix))
    return key[: at + len(delimiter)] if at >= 0 else b""


def after_all(prefix: bytes) -> bytes:
    """Returns the least bytes after all keys with a prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b"\xff" * (len(prefix) + 1)


class Lister:
    """Makes pages. ``may_read`` tells whether the client may read a repository."""

    def __init__(self, names: Names, settings: S3Settings, may_read: Callable[[str], bool]) -> None:
        self._names = names
        self._settings = settings
        self._may_read = may_read

    async def page(self, query: Query) -> KeyPage:
        """Returns a page. Raises: S3Error, Unavailable."""
        builder = _PageBuilder(self._names, query)
        token, prefix = query.token, query.prefix
        one = root_of(self._settings, query.bucket, prefix)
        if one is None:
            await self._add_repos(builder, prefix)
        elif token is not None and (token.repo, token.rev) != (one.repo, one.rev):
            raise wrong_token("this continuation token belongs to another list")
        else:
            await builder.add(one)
        return await builder.finished()

    async def _add_repos(self, builder: _PageBuilder, prefix: bytes) -> None:
        """Adds the repositories whose keys have a prefix. It visits only those that the page may
        show."""
        repo, at, _ = prefix.partition(b"@")
        if at:
            if _is_repo(repo) and self._may_read(repo.decode()):
                await self._add_repo(builder, repo.decode(), prefix)
            return
        start: bytes | None = builder.least
        while start is not None:
            page = await self._names.repos(prefix, max(start, builder.least))
            for name in page.names:
                if not builder.is_ahead(f"{name}@".encode()) or not self._may_read(name):
                    continue
                if not await self._add_repo(builder, name, prefix):
                    return
            start = page.following
            if start is not None and builder.is_late:
                builder.end_at(max(start, builder.least))
                return

    async def _add_repo(self, builder: _PageBuilder, repo: str, prefix: bytes) -> bool:
        """Adds one repository. Returns whether there is room left."""
        key = f"{repo}@".encode()
        if builder.shows_as_one(key):
            return builder.add_common(key)
        start: bytes | None = b""
        while start is not None:
            least = max(builder.least, prefix)
            rest = least[len(key) :] if least.startswith(key) else b""
            rev, slash, _ = rest.partition(b"/")
            page = await self._names.revisions(repo, max(start, rev + slash))
            for name in page.names:
                root = Root(repo, name, b"", f"{repo}@{name}/".encode())
                if root.key.startswith(prefix) and not await builder.add(root):
                    return False
                if builder.is_late:
                    builder.end_at(max(after_all(root.key), builder.least))
                    return False
            start = page.following
        return True


def _is_repo(name: bytes) -> bool:
    try:
        check_repo(name.decode("ascii", "replace"))
    except InvalidInput:
        return False
    return True


class _PageBuilder:
    """A page that is being made."""

    def __init__(self, names: Names, query: Query) -> None:
        self._names = names
        self._query = query
        self._page = KeyPage()
        self._found: list[tuple[Root, Snapshot, Found]] = []
        self.least = query.start  # the least key that is not shown yet
        self._ends_s = monotonic() + PAGE_S_MAX
        self._steps = 0

    @property
    def _count(self) -> int:
        return len(self._found) + len(self._page.prefixes)

    def is_ahead(self, key: bytes) -> bool:
        """Whether keys with this prefix are still to come."""
        return key >= self.least or self.least.startswith(key)

    def shows_as_one(self, key: bytes) -> bool:
        """Whether all keys with this prefix are shown as one common prefix."""
        return bool(common_prefix(key, self._query.prefix, self._query.delimiter))

    def add_common(self, key: bytes) -> bool:
        """Adds the common prefix of keys with this prefix. Returns whether there is room left."""
        common = common_prefix(key, self._query.prefix, self._query.delimiter)
        return self._add_prefix(common, Root("", ""), None)

    @property
    def is_late(self) -> bool:
        """Whether the page ends now; an empty one gets twice the time."""
        late_s = monotonic() - self._ends_s
        return late_s > (0 if self._count else PAGE_S_MAX)

    def end_at(self, start: bytes) -> None:
        """Ends the page; ``start`` begins the next one."""
        self._end(start, Root("", ""), None)

    async def add(self, root: Root) -> bool:
        """Adds what belongs to the page from a part of the bucket. Returns whether there is room
        left."""
        if not self.is_ahead(root.key):
            return True  # it is in a common prefix
        if self.shows_as_one(root.key):
            return self.add_common(root.key)
        try:
            snapshot = await self._names.snapshot(root.repo, self._rev_of(root))
        except NotFound:
            return True  # S3 has no revisions, so no keys have this prefix
        going_on = True
        while going_on:
            going_on = await self._walk(root, snapshot)
        return self._page.following is None

    def _rev_of(self, root: Root) -> str:
        """Returns the commit of the pages before, if they belong to this part."""
        token = self._query.token
        if token is not None and (token.repo, token.rev) == (root.repo, root.rev) and token.commit:
            return token.commit
        return root.rev

    async def _walk(self, root: Root, snapshot: Snapshot) -> bool:
        """Walks until the page or the part ends, or a common prefix must be skipped; then it
        returns True."""
        query = self._query
        base = root.directory + b"/" if root.directory else b""
        begun = len(root.key)
        start = self.least[begun:] if self.least.startswith(root.key) else b""
        prefix = query.prefix[begun:]
        walk = KeyWalk(
            self._names,
            snapshot,
            prefix=base + prefix,
            start=base + start,
            by_directory=query.delimiter == b"/",
        )
        try:
            while True:
                found = await walk.next(query.keys_max + 1 - self._count)
                if found is None and walk.is_over:
                    return False
                if self._is_spent(walk) and (found is None or self._count):
                    at = root.key + walk.position[len(base) :]
                    self._end(at if found is not None else at + b"\0", root, snapshot)
                    return False
                if found is None:
                    continue
                key = root.key + found.key[len(base) :]
                common = common_prefix(key, query.prefix, query.delimiter)
                if common:
                    if not self._add_prefix(common, root, snapshot):
                        return False
                    if query.delimiter != b"/":
                        return True
                elif not self._add_key(key, root, snapshot, found):
                    return False
        finally:
            self._page.left_out += walk.left_out
            self._steps += walk.steps

    def _is_spent(self, walk: KeyWalk) -> bool:
        return self.is_late or self._steps + walk.steps > STEPS_MAX

    def _add_prefix(self, common: bytes, root: Root, snapshot: Snapshot | None) -> bool:
        if self._count >= self._query.keys_max:
            self._end(common, root, snapshot)
            return False
        self._page.prefixes.append(common)
        self._page.last = common
        self.least = after_all(common)
        return True

    def _add_key(self, key: bytes, root: Root, snapshot: Snapshot, found: Found) -> bool:
        if self._count >= self._query.keys_max:
            self._end(key, root, snapshot)
            return False
        self._found.append((root, snapshot, found._replace(key=key)))
        self._page.last = key
        return True

    def _end(self, start: bytes, root: Root, snapshot: Snapshot | None) -> None:
        """Ends a full page; ``start`` begins the next one."""
        repo, rev = (root.repo, root.rev) if snapshot is not None else ("", "")
        commit = snapshot.commit if snapshot is not None else ""
        self._page.following = ListingToken(self._query.bucket, repo, rev, commit, start)
        if not self._count:  # nothing was found so far, and ``start`` is not a key either
            self._page.last = start.removesuffix(b"\0")

    async def finished(self) -> KeyPage:
        """Returns the page, with the details of its keys."""
        ids = await self._content_ids()
        for (_, snapshot, found), content_id in zip(self._found, ids, strict=True):
            size_bytes = (found.linked.entry if found.linked else found.entry).size_bytes
            self._page.keys.append(ListedKey(found.key, size_bytes, content_id, snapshot.time_s))
        return self._page

    async def _content_ids(self) -> list[bytes]:
        """Returns the ids of all files on the page, with one lookup for each commit."""
        ids = [found.linked.content_id if found.linked else found.entry.content
               for _, _, found in self._found]  # fmt: skip
        missing: dict[str, list[int]] = {}
        for n, (_, snapshot, _) in enumerate(self._found):
            if len(ids[n]) != ID_BYTES:
                missing.setdefault(snapshot.commit, []).append(n)
        for places in missing.values():
            snapshot = self._found[places[0]][1]
            inos = [self._found[n][2].entry.ino for n in places]
            for n, one in zip(places, await self._names.content_ids(snapshot, inos), strict=True):
                ids[n] = one
        return ids


_CHECK_BYTES = 6
_TOKEN_CHARS_MAX = 8192


class ListingToken(msgspec.Struct, array_like=True, frozen=True):
    """``start`` is the least key of the next page. It lies in ``commit`` of REPO@REV; these are ""
    if it lies between repositories."""

    bucket: str
    repo: str
    rev: str
    commit: str
    start: bytes


def encode_token(token: ListingToken) -> str:
    """Returns a token for clients. It needs no percent-encoding, however they use it."""
    body = msgspec.msgpack.encode(token)
    return urlsafe_b64encode(digest_of(body)[:_CHECK_BYTES] + body).decode().rstrip("=")


def decode_token(text: str) -> ListingToken:
    """Returns the token in a text. Raises: S3Error unless ``encode_token`` made it."""
    try:
        if len(text) > _TOKEN_CHARS_MAX:
            raise InvalidInput("too long")
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        check, body = data[:_CHECK_BYTES], data[_CHECK_BYTES:]
        if digest_of(body)[:_CHECK_BYTES] != check:
            raise InvalidInput("another digest")
        return from_msgpack(body, ListingToken)
    except (InvalidInput, Base64Error, ValueError):
        raise wrong_token() from None


def wrong_token(why: str = "the continuation token provided is incorrect") -> S3Error:
    return S3Error("InvalidArgument", why, more=(("ArgumentName", "continuation-token"),))

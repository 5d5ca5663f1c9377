"""The API of Git LFS over a node: batch, basic transfer, verify, locks.

Objects are read as /files/ reads files. Writes go through the node's LfsWriter.
Source: https://github.com/git-lfs/git-lfs, docs/api.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import (
    Conflict,
    Denied,
    InvalidInput,
    NoSpace,
    NotADirectory,
    NotFound,
    Renamed,
    Unavailable,
)
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign import lfs
from lodefs.chunkstore.format.foreign.lfs import MEDIA, Lock
from lodefs.chunkstore.format.names import ID_BYTES
from lodefs.chunkstore.protocol.lfs_recipe import Hole, encode_holes
from lodefs.chunkstore.protocol.orders.lfs_orders import (
    AddLock,
    FillHoles,
    FindChunks,
    ListLocks,
    RemoveLock,
)
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.api import disclosure, responses, routes
from lodefs.proxy.api.handlers import Handler
from lodefs.proxy.api.request import Request
from lodefs.proxy.api.responses import Answer, failure_answer, method_not_allowed
from lodefs.proxy.api.routes import Route
from lodefs.proxy.lfs.target import (
    AGENT,
    BASIC,
    BATCH,
    FORM,
    OBJECTS_MAX,
    PIECES,
    Batch,
    LockWanted,
    ObjectRef,
    Page,
    Unlock,
    answer_about,
    checked,
    page_of,
)
from lodefs.proxy.lfs.upload_places import UploadPlaces
from lodefs.proxy.lfs.uploads import received, received_in_pieces
from lodefs.proxy.node import LfsWriter, NodeService, SnapshotFile

HOLES_MAX = 16_000  # in one order
log = logging.getLogger("lodefs.lfs")
T = TypeVar("T")


class LfsHandlers:
    """Answers for one node. ``of`` maps kinds of routes to handlers."""

    def __init__(self, node: NodeService) -> None:
        self._node = node
        self._places = UploadPlaces()
        self.of: dict[str, Handler] = {routes.LFS: self._answer}

    async def _answer(self, route: Route, request: Request) -> Answer:
        try:
            return await self._of(route, request)
        except _NoWriter as error:
            return failure_answer(error)
        except InvalidInput as error:
            told = disclosure.redacted(error, disclosure.places_of(self._node.status()))
            return failure_answer(told, status=422)
        except Conflict:  # with a text that hides nothing from anybody
            moved = Conflict("others have changed the store meanwhile: send it again")
            return failure_answer(moved, status=409)
        except NoSpace as error:
            log.warning("an upload was refused: %s", error)
            full = NoSpace("the node's disk, the store or a quota is full: the proxy's log says it")
            return failure_answer(full, status=507)

    async def _of(self, route: Route, request: Request) -> Answer:
        what, _, rest = route.path.decode("utf-8", "replace").partition("/")
        if what == "locks":
            await self._head(route.repo)  # raises Renamed, so that the new name is tried
        method = "GET" if request.method == "HEAD" else request.method
        match method, what, rest.split("/"):
            case "POST", "objects", ["batch"]:
                return await self._batch(route, request)
            case "POST", "objects", ["verify"]:
                return await self._verify(route, request)
            case "POST", "objects", ["chunks"]:
                return await self._find(route.repo, request)
            case "GET", "objects", [oid]:
                return await self._download(route.repo, lfs.check_oid(oid), request)
            case "PUT", "objects", [oid]:
                return await self._upload(route, lfs.check_oid(oid), request)
            case "GET", "locks", [""]:
                return await self._list(route)
            case "POST", "locks", [""]:
                return await self._lock(route, request)
            case "POST", "locks", ["verify"]:
                return await self._list_by_owner(route, request)
            case "POST", "locks", [number, "unlock"]:
                return await self._unlock(route, number, request)
        return method_not_allowed(request.method, "what docs/git.md names")

    # Objects

    async def _batch(self, route: Route, request: Request) -> Answer:
        batch = _parsed(request, Batch)
        if len(batch.objects) > OBJECTS_MAX:
            error = InvalidInput(f"a batch has at most {OBJECTS_MAX} objects: ask in several")
            return failure_answer(error, status=413)
        if not {AGENT, BASIC} & {*batch.transfers} or batch.hash_algo != "sha256":
            raise InvalidInput("this server has the transfer 'basic' and the hash 'sha256' alone")
        if batch.operation == "upload":
            _check_write(route.repo, request)
        head = await self._head(route.repo)
        base = f"{request.origin}{routes.LFS_PREFIX}{route.repo}"
        found = [(one, await self._stored(head, one)) for one in batch.objects]
        key = ""
        if batch.operation == "upload" and self._node.lfs is not None:
            missing = [one.oid for one, stored in found if stored is None]
            asked = [one.oid for one in batch.objects]
            key = self._node.lfs.expect(route.repo, request.reader.name, asked, missing)
        transfer, header = _transfer_of(batch, request)
        answers = [answer_about(base, batch.operation, key, header, *one) for one in found]
        return _told({"transfer": transfer, "objects": answers, "hash_algo": "sha256"})

    async def _verify(self, route: Route, request: Request) -> Answer:
        _check_write(route.repo, request)
        wanted = checked(_parsed(request, ObjectRef))
        if self._node.lfs is not None:
            await self._node.lfs.settled(route.repo, wanted.oid)
        stored = await self._size_of(await self._head(route.repo), wanted)
        if stored is None:
            raise NotFound(f"{route.repo} has no object {wanted.oid}: push it again")
        if stored != wanted.size:
            raise InvalidInput(f"{wanted.oid} has {stored} bytes, not {wanted.size}")
        return _told({})

    async def _download(self, repo: str, oid: str, request: Request) -> Answer:
        path = lfs.object_path(oid).encode()
        try:
            snapshot = await self._node.names.snapshot(repo, lfs.OBJECTS)
            file = await self._node.names.file(snapshot, path)
        except NotFound:  # the node may not have seen the last commit
            head = await self._head(repo)
            if head is None:
                raise NotFound(f"{repo} has no object {oid}") from None
            file = await self._node.names.file(head, path)
        if not isinstance(file, SnapshotFile):
            raise NotFound(f"{repo} has no object {oid}")
        headers = responses.file_headers(file, responses.OCTETS, responses.IMMUTABLE)
        headers += responses.FOREIGN_CONTENT
        return await responses.file_answer(self._node.files, file, headers, request)

    async def _upload(self, route: Route, oid: str, request: Request) -> Answer:
        _check_write(route.repo, request)
        assert request.content is not None
        writer, content, name = self._writer(), request.content, request.reader.name
        key = route.query.get(BATCH, b"").decode("ascii", "replace")
        taken = received(writer.uploads(), oid, content)
        if route.query.get(FORM) == PIECES:
            taken = received_in_pieces(
                writer.uploads(), oid, content, partial(_fill, route.repo, writer)
            )
        async with self._places.place(name), taken as upload:
            await writer.put(route.repo, name, upload, key)
        return Answer(200)

    async def _find(self, repo: str, request: Request) -> Answer:
        _check_write(repo, request)
        if len(request.body) % ID_BYTES:
            raise InvalidInput(f"ids of chunks have {ID_BYTES} bytes each")
        outcome = await self._writer().carry_out(FindChunks(repo, request.body))
        return _told(outcome.chunks)

    async def _head(self, repo: str) -> Snapshot | None:
        """Returns the last commit of objects, as the store has it now; None if there is none."""
        try:
            log = await self._node.catalog.log(repo, lfs.OBJECTS, 1)
        except Renamed:
            raise
        except NotFound:
            return None
        return await self._node.names.snapshot(repo, log.commits[0].commit)

    async def _stored(self, head: Snapshot | None, wanted: ObjectRef) -> int | InvalidInput | None:
        """Returns the size of an object that is in the store, or why no object can be so."""
        try:
            return await self._size_of(head, checked(wanted))
        except InvalidInput as error:
            return error

    async def _size_of(self, head: Snapshot | None, wanted: ObjectRef) -> int | None:
        if head is None:
            return None
        try:
            path = lfs.object_path(wanted.oid).encode()
            return (await self._node.names.entry(head, path)).size_bytes
        except (NotFound, NotADirectory):
            return None

    # Locks

    async def _list(self, route: Route) -> Answer:
        query = {name: value.decode("utf-8", "replace") for name, value in route.query.items()}
        locks = await self._locks(route.repo, query.get("path", ""))
        if query.get("id"):
            locks = [lock for lock in locks if lock.id == query["id"]]
        limit = query.get("limit", "")
        page = Page(query.get("cursor", ""), int(limit) if limit.isdecimal() else Page().limit)
        found, following = page_of(locks, page)
        return _told({"locks": found, **_cursor(following)})

    async def _list_by_owner(self, route: Route, request: Request) -> Answer:
        _check_write(route.repo, request)
        page = _parsed(request, Page)
        found, following = page_of(await self._locks(route.repo), page)
        ours = [lock for lock in found if lock.owner.name == request.reader.name]
        theirs = [lock for lock in found if lock.owner.name != request.reader.name]
        return _told({"ours": ours, "theirs": theirs, **_cursor(following)})

    async def _lock(self, route: Route, request: Request) -> Answer:
        _check_write(route.repo, request)
        path = _parsed(request, LockWanted).path
        lfs.lock_id(path)
        outcome = await self._writer().carry_out(AddLock(route.repo, path, request.reader.name))
        [lock] = outcome.locks
        if outcome.is_refused:
            message = f"{path} is locked by {lock.owner.name}"
            return _told({"lock": lock, "message": message}, status=409)
        return _told({"lock": lock}, status=201)

    async def _unlock(self, route: Route, number: str, request: Request) -> Answer:
        _check_write(route.repo, request)
        force = _parsed(request, Unlock).force
        order = RemoveLock(route.repo, number, request.reader.name, force)
        outcome = await self._writer().carry_out(order)
        [lock] = outcome.locks
        if outcome.is_refused:
            message = f"{lock.path} is locked by {lock.owner.name}: --force removes the lock"
            return _told({"lock": lock, "message": message}, status=403)
        return _told({"lock": lock})

    async def _locks(self, repo: str, path: str = "") -> list[Lock]:
        return (await self._writer().carry_out(ListLocks(repo, path))).locks

    def _writer(self) -> LfsWriter:
        if self._node.lfs is None:
            raise Unavailable("this node does not write to its store")
        return self._node.lfs


class _NoWriter(Denied):
    """The client may read the repository, but not write to it. The message is safe to show."""


def _check_write(repo: str, request: Request) -> None:
    if not request.reader.may_write(repo):
        raise _NoWriter(
            f"this token may not write to {repo}: one that may is made with "
            "`lodefs token create --write`"
        )


async def _fill(repo: str, writer: LfsWriter, file: Path, holes: Sequence[Hole]) -> None:
    for start in range(0, len(holes), HOLES_MAX):
        part = encode_holes(holes[start : start + HOLES_MAX])
        await writer.carry_out(FillHoles(repo, str(file), part))


def _transfer_of(batch: Batch, request: Request) -> tuple[str, dict[str, str]]:
    """Returns the way to transfer objects. An agent has nothing but what it is given, so it gets
    the credentials back by which its client was admitted."""
    if AGENT not in batch.transfers:
        return BASIC, {}
    given = request.headers.get("Authorization", "")
    return AGENT, {"Authorization": given} if given else {}


def _parsed(request: Request, kind: type[T]) -> T:
    return from_json(request.body or b"{}", kind)


def _told(value: object, *, status: int = 200) -> Answer:
    headers = [("Content-Type", MEDIA), responses.NOSNIFF]
    return Answer(status, headers, msgspec.json.encode(value))


def _cursor(following: str) -> dict[str, str]:
    return {"next_cursor": following} if following else {}

"""The hub's HTTP API for reading, over a node: one method for each action.

Bytes are answered as /files/ answers them. Nothing here speaks of Xet, so clients take plain HTTP.
Source: the requests of the package huggingface_hub, and the fields that it reads from the answers.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

import msgspec

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.foreign import git, hub, lfs
from lodefs.chunkstore.format.foreign.lfs import Pointer
from lodefs.chunkstore.format.names import split_path
from lodefs.chunkstore.format.tree import Kind as EntryKind
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.protocol.orders.hub_orders import HubOrder, HubOutcome, HubRequest, RepoKind
from lodefs.proxy.api import responses, routes
from lodefs.proxy.api.handlers import Handler
from lodefs.proxy.api.request import Reader, Request
from lodefs.proxy.api.responses import Answer, json_answer, method_not_allowed
from lodefs.proxy.api.routes import Route
from lodefs.proxy.hub.arriving import ArrivingFile
from lodefs.proxy.hub.last_commits import LastCommits, shown_time
from lodefs.proxy.hub.listing import Listed, Listing
from lodefs.proxy.hub.revisions import SHA_CHARS, HubRevision, HubRevisions, etag_of
from lodefs.proxy.hub.target import (
    ErrorCode,
    HubError,
    HubTarget,
    Kind,
    form_of,
    parse_target,
)
from lodefs.proxy.metrics.server_metrics import Metrics
from lodefs.proxy.node import NodeService, SnapshotFile

PAGE_ENTRIES_MAX, EXPANDED_MAX = 1000, 50  # as of the hub
SIBLINGS_MAX = 50_001  # above 50,000 clients ask for the tree, since the hub's list may end there
COMMIT_HEADER = "X-Repo-Commit"
_REPO_KINDS: Mapping[Kind, RepoKind] = {
    "models": "model",
    "datasets": "dataset",
    "spaces": "space",
}
_CODES: Mapping[str, ErrorCode] = {
    "no repository": "RepoNotFound",
    "no revision": "RevisionNotFound",
    "gated": "GatedRepo",
    "too large": "TooLarge",
}
_STATUSES: Mapping[ErrorCode, int] = {
    "BadRequest": 400,
    "GatedRepo": 403,
    "TooLarge": 403,
    "FetchFailed": 503,
}
_NO_HEADER = re.compile(r"[^ -~]")
# What huggingface_hub takes for the name of a repository
_REPO_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}\Z", re.ASCII)

Json = dict[str, object]
_Act = Callable[[HubTarget, HubRevision, Request], Awaitable[Answer]]


class HubHandlers:
    """Answers for one node. ``of`` maps kinds of routes to handlers."""

    def __init__(self, node: NodeService, metrics: Metrics) -> None:
        self._node = node
        self._metrics = metrics
        self._revisions = HubRevisions(
            node.names, node.catalog, with_arriving=node.upstream is not None
        )
        self._acts: Mapping[str, _Act] = {
            "info": self._info,
            "tree": self._tree,
            "refs": self._refs,
            "paths-info": self._paths_info,
            "resolve": self._resolve,
        }
        self.of: dict[str, Handler] = {routes.HUB: self._answer}

    async def _answer(self, route: Route, request: Request) -> Answer:
        target = parse_target(route.path.decode("utf-8", "replace"))
        if (request.method == "POST") != (target.action == "paths-info"):
            allowed = "POST" if target.action == "paths-info" else "GET, HEAD"
            return method_not_allowed(request.method, allowed)
        try:
            found = await self._found(target, request.reader)
            return await self._acts[target.action](target, found, request)
        except HubError as error:
            return _failure(error)

    async def _found(self, target: HubTarget, reader: Reader) -> HubRevision:
        """Returns the revision that a target names; has it fetched if the store lacks it, and the
        site has a hub that may have it. Raises: HubError; Unavailable for the store."""
        try:
            return await self._revisions.find(target, reader)
        except HubError as error:
            if self._node.upstream is None:
                raise
            missing = error
        order = await self._order(target, reader, missing.repo)
        if order is not None:
            outcome = await self._node.upstream.reach(HubRequest(order))
            if outcome.state == "running":
                with suppress(NotFound):
                    return await self._revisions.arriving(order.repo, outcome.sha)
            elif outcome.state != "done":
                raise _refusal(order, outcome)
        return await self._revisions.find(target, reader)  # a fetch may have just ended

    async def _order(self, target: HubTarget, reader: Reader, repo: str) -> HubOrder | None:
        """Returns the fetch of what the store lacks, if there may be one: of a whole repository, or
        of a revision of ``repo``, if that was taken from the hub."""
        if self._node.upstream is None or not _REPO_ID.match(target.repo_id):
            return None
        wanted = repo or target.repositories[0]
        order = HubOrder(_REPO_KINDS[target.kind], target.repo_id, target.rev, wanted)
        if not reader.may_read(wanted):
            return None
        if repo and not await self._revisions.is_from(repo, order.repo_url):
            return None
        return order

    async def _info(self, target: HubTarget, found: HubRevision, _request: Request) -> Answer:
        snapshot = found.snapshot
        files = []
        async for one in Listing(self._node.names, found).below(b"", recursive=True):
            if one.etag:
                files.append(_sibling(one, with_blob=target.flag("blobs")))
                if len(files) == SIBLINGS_MAX:
                    break
        when = shown_time(snapshot.time_s)
        view: Json = {
            "id": target.repo_id,
            "author": target.repo_id.rpartition("/")[0] or None,
            "sha": found.sha,
            "lastModified": when,
            "createdAt": when,
            "private": False,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": files,
            "usedStorage": snapshot.size_bytes,
        }
        if target.kind == "models":
            view["modelId"] = target.repo_id
        return json_answer(view, headers=_headers(found))

    async def _tree(self, target: HubTarget, found: HubRevision, request: Request) -> Answer:
        page_max = _limit_of(target)
        after = b"/".join(split_path(target.query.get("cursor", [""])[0].encode()))
        recursive = target.flag("recursive")
        listed: list[Listed] = []
        more = False
        below = Listing(self._node.names, found).below(target.path, after, recursive=recursive)
        async for one in below:
            if more := len(listed) == page_max:
                break
            listed.append(one)
        headers = _headers(found)
        if more:
            last = listed[-1].path.encode()[len(target.path) :].lstrip(b"/")
            headers.append(("Link", f'<{_next_url(target, request, found, last)}>; rel="next"'))
        views = await self._views(listed, found, with_commits=target.flag("expand"))
        return json_answer(views, headers=headers)

    async def _paths_info(self, _target: HubTarget, found: HubRevision, request: Request) -> Answer:
        form = form_of(request.body.decode("utf-8", "replace"))
        listing = Listing(self._node.names, found)
        paths = [b"/".join(split_path(path.encode())) for path in form.get("paths", ())]
        there = [await listing.at(path) for path in paths if path]
        listed = [one for one in there if one is not None]
        with_commits = form.get("expand", [""])[-1].lower() == "true"
        if with_commits and len(listed) > EXPANDED_MAX:
            what = f"expand is for at most {EXPANDED_MAX} paths, not {len(listed)}: ask in several"
            raise HubError("BadRequest", what)
        views = await self._views(listed, found, with_commits=with_commits)
        return json_answer(views, headers=_headers(found))

    async def _views(
        self, listed: Sequence[Listed], found: HubRevision, *, with_commits: bool
    ) -> list[Json]:
        """Returns elements of a tree, with the last commit of each if that is asked for. There are
        no scans for security here, so nothing is said of them."""
        views = [_node_view(one) for one in listed]
        if with_commits:
            commits = LastCommits(self._node.catalog, self._revisions, found)
            for view, one in zip(views, listed, strict=True):
                if (commit := await commits.of(one.path.encode())) is not None:
                    view["lastCommit"] = commit
        return views

    async def _refs(self, _target: HubTarget, found: HubRevision, _request: Request) -> Answer:
        repo = found.snapshot.repo
        refs = await self._node.catalog.refs(repo)
        views: dict[str, list[Json]] = {"branch": [], "tag": []}
        for ref in refs.refs:
            if ref.kind == "branch" and hub.is_own_branch(ref.name):
                continue
            folder = "heads" if ref.kind == "branch" else "tags"
            sha = (await self._revisions.of(repo, ref.name)).sha
            views[ref.kind].append(
                {"name": ref.name, "ref": f"refs/{folder}/{ref.name}", "targetCommit": sha}
            )
        return json_answer(
            {
                "branches": views["branch"],
                "tags": views["tag"],
                "converts": [],
                "pullRequests": [],
            },
            headers=_headers(found),
        )

    async def _resolve(self, target: HubTarget, found: HubRevision, request: Request) -> Answer:
        names = self._node.names
        if found.is_arriving:
            return await self._resolve_arriving(target, found, request)
        file = await Listing(names, found).file(target.path)
        etag = await etag_of(names, found, target.path, file.content_id)
        is_fixed = target.rev == found.sha
        headers = _resolve_headers(target, found, file, etag)
        learned = None
        if is_fixed and request.method == "GET":
            learned = responses.fast_path_target(file, headers, self._metrics, routes.HUB)
        return await responses.file_answer(self._node.files, file, headers, request, learned)

    async def _resolve_arriving(
        self, target: HubTarget, found: HubRevision, request: Request
    ) -> Answer:
        """Answers for a file that may still be on its way."""
        names, upstream, repo = self._node.names, self._node.upstream, found.snapshot.repo
        listed = await Listing(names, found).at(target.path)
        if listed is None or not listed.etag:
            shown = target.path.decode("utf-8", "backslashreplace")
            raise HubError("EntryNotFound", f"there is no file {shown}", sha=found.sha)
        order = await self._order(replace(target, rev=found.sha), request.reader, repo)
        if order is None or upstream is None:
            raise HubError("FetchFailed", f"{repo} is fetched from another repository of the hub")
        link = await names.entry(found.snapshot, target.path)
        entry = msgspec.structs.replace(link, kind=EntryKind.FILE, size_bytes=listed.size_bytes)
        row = EntryRow(0, b"", EntryKind.FILE, False, entry.size_bytes, b"", b"", b"")  # noqa: FBT003
        file = SnapshotFile(found.snapshot, entry, b"", row)
        headers = [
            pair
            for pair in _resolve_headers(target, found, file, listed.etag)
            if pair[0] not in (wire.COMMIT_HEADER, wire.DIGEST_HEADER)  # not known yet
        ]
        arriving = ArrivingFile(
            names, self._node.files, self._revisions, upstream, order, target.path
        )
        return await responses.file_answer(arriving, file, headers, request)


def _resolve_headers(
    target: HubTarget, found: HubRevision, file: SnapshotFile, etag: str
) -> responses.Headers:
    """Returns the headers of answers about a file, as clients of the hub expect them."""
    caching = responses.IMMUTABLE if target.rev == found.sha else responses.REVALIDATE
    headers = responses.file_headers(file, responses.content_type(target.path), caching)
    own = {
        "ETag": f'"{etag}"',
        "X-Linked-ETag": f'"{etag}"',
        "X-Linked-Size": str(file.entry.size_bytes),
        COMMIT_HEADER: found.sha,
    }
    kept = [pair for pair in headers if pair[0] not in own]
    return [*kept, *own.items(), *responses.FOREIGN_CONTENT]


def _headers(found: HubRevision) -> responses.Headers:
    return [(COMMIT_HEADER, found.sha)]


def _refusal(order: HubOrder, outcome: HubOutcome) -> HubError:
    """Returns why a fetch failed. The reason of a fault may name places, so only the log has it."""
    if outcome.state in _CODES:
        return HubError(_CODES[outcome.state], outcome.message)
    what = f"{order.repo_url} cannot be fetched now: the log of the proxy says why"
    return HubError("FetchFailed", what)


def _failure(error: HubError) -> Answer:
    text = _NO_HEADER.sub("?", str(error))
    headers = [("X-Error-Code", error.code), ("X-Error-Message", text)]
    if error.sha:
        headers.append((COMMIT_HEADER, error.sha))
    status = _STATUSES.get(error.code, 404)
    if status == 503:
        headers.append(("Retry-After", str(responses.RETRY_AFTER_S_DEFAULT)))
    return json_answer({"error": text}, status=status, headers=headers)


def _sibling(one: Listed, *, with_blob: bool) -> Json:
    if not with_blob:
        return {"rfilename": one.path}
    view: Json = {"rfilename": one.path, "size": one.size_bytes, "blobId": _blob_id(one)}
    if hub.is_lfs(one.etag):
        size_bytes = len(_pointer(one))
        view["lfs"] = {"sha256": one.etag, "size": one.size_bytes, "pointerSize": size_bytes}
    return view


def _node_view(one: Listed) -> Json:
    """Returns a file or directory as an element of a tree."""
    if not one.etag:
        return {"type": "directory", "path": one.path, "oid": one.id, "size": 0}
    view: Json = {"type": "file", "path": one.path, "oid": _blob_id(one), "size": one.size_bytes}
    if hub.is_lfs(one.etag):
        size_bytes = len(_pointer(one))
        view["lfs"] = {"oid": one.etag, "size": one.size_bytes, "pointerSize": size_bytes}
    return view


def _pointer(one: Listed) -> bytes:
    """Returns what Git has in place of a file in Git LFS."""
    return lfs.encode_pointer(Pointer(one.etag, one.size_bytes))


def _blob_id(one: Listed) -> str:
    if hub.is_lfs(one.etag):
        return git.blob_id(_pointer(one))
    return one.etag


def _limit_of(target: HubTarget) -> int:
    text = target.query.get("limit", [""])[-1]
    asked = int(text) if text.isascii() and text.isdigit() and len(text) < SHA_CHARS else 0
    most = EXPANDED_MAX if target.flag("expand") else PAGE_ENTRIES_MAX
    return min(asked, most) or most


def _next_url(target: HubTarget, request: Request, found: HubRevision, last: bytes) -> str:
    """Returns the absolute URL of a tree's next page, which names the commit, so that all pages are
    of one."""
    path = f"/{quote(target.path, safe='')}" if target.path else ""
    flags = "&".join(f"{name}=true" for name in ("recursive", "expand") if target.flag(name))
    return (
        f"{request.origin}{routes.HUB_PREFIX}api/{target.kind}/{target.repo_id}/tree/{found.sha}"
        f"{path}?{flags}{'&' if flags else ''}limit={_limit_of(target)}&cursor={quote(last)}"
    )

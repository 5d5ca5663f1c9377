"""Revisions as clients of the hub know them: by ids of 40 hex digits.

The id of a commit that was taken from the hub is the hub's own. That of any other commit is the
beginning of its id in the store, 160 of its 256 bits.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound, Renamed
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.api.request import Reader
from lodefs.proxy.hub.target import HubError, HubTarget
from lodefs.proxy.node import Catalog, Names

SHA_CHARS = 40
KNOWN_MAX = 4096


@dataclass(frozen=True, slots=True)
class HubRevision:
    """One commit. ``sha`` is its id for clients of the hub; ``tags`` is the snapshot that has the
    hub's ETags of its files (chunkstore/format/foreign/hub.py), None if the hub does not know it.
    If it ``is_arriving``, both are the snapshot of its tags, since not all files are there."""

    snapshot: Snapshot
    sha: str
    tags: Snapshot | None = None
    is_arriving: bool = False


class HubRevisions:
    """The revisions of one store. For use on the event loop only."""

    def __init__(self, names: Names, catalog: Catalog, *, with_arriving: bool) -> None:
        """``with_arriving``: also those that are being fetched, since this node can have it go
        on."""
        self._names = names
        self._with_arriving = with_arriving
        self._catalog = catalog
        # Both for ever, since commits do not change
        self._commits: Lru[tuple[str, str], tuple[str, str]] = Lru(KNOWN_MAX)  # by sha
        self._shas: Lru[tuple[str, str], tuple[str, str]] = Lru(KNOWN_MAX)  # by commit
        self._listings: Lru[tuple[str, str], str] = Lru(KNOWN_MAX)  # by sha

    async def find(self, target: HubTarget, reader: Reader) -> HubRevision:
        """Returns the revision that a target names, in the first repository that there is and that
        the reader may read. Raises: HubError; Unavailable and others of the store."""
        for repo in target.repositories:
            if (found := await self._find_in(repo, target, reader)) is not None:
                return found
        raise HubError("RepoNotFound", f"there is no repository {target.repo_id}")

    async def _find_in(self, repo: str, target: HubTarget, reader: Reader) -> HubRevision | None:
        """Returns the revision in a repository; None if there is no such repository."""
        if not reader.may_read(repo):
            return None
        try:
            return await self.of(repo, target.rev)
        except Renamed as error:
            return await self._find_in(error.to, target, reader)
        except (NotFound, InvalidInput) as error:
            missing = error
        try:
            await self._catalog.refs(repo)
        except (NotFound, InvalidInput):
            return None
        what = f"{target.repo_id} has no revision {target.rev}"
        raise HubError("RevisionNotFound", what, repo=repo) from missing

    async def is_from(self, repo: str, url: str) -> bool:
        """Whether a repository of the store was taken from ``hf://...`` on the hub."""
        for ref in (await self._catalog.refs(repo)).refs:
            if hub.is_own_branch(ref.name):
                is_whole = hub.commit_of_branch(ref.name) is not None
                with suppress(NotFound):
                    rev = f"{ref.name}~1" if is_whole else ref.name
                    log = await self._catalog.log(repo, rev, 1)
                    return log.commits[0].metadata.get(hub.SOURCE) == url
        return False

    async def of(self, repo: str, rev: str) -> HubRevision:
        """Returns a revision of a repository: a branch, a tag, a commit, or the hub's id of one.
        Raises: NotFound, InvalidInput, Renamed, Unavailable."""
        ref = hub.ref_of(rev)
        if not hub.is_commit_id(ref):
            return await self._marked(await self._names.snapshot(repo, ref))
        known = self._commits.get((repo, ref))
        if known is not None:
            return await self._at(repo, ref, *known)
        try:
            found = await self._tagged(repo, ref)
        except NotFound:
            if self._with_arriving:
                with suppress(NotFound):
                    return await self.arriving(repo, ref)
            marked = await self._marked(await self._names.snapshot(repo, ref))
            found = replace(marked, sha=ref)  # clients keep files below the id they asked for
        self._commits.put((repo, ref), _commits_of(found))
        return found

    async def arriving(self, repo: str, sha: str) -> HubRevision:
        """Returns a commit of the hub that is being fetched. Raises: NotFound."""
        listing = self._listings.get((repo, sha))
        if listing is None:
            log = await self._catalog.log(repo, hub.arriving_branch_of(sha), 1)
            listing = log.commits[0].metadata.get(hub.LISTING_COMMIT, "")
            self._listings.put((repo, sha), listing)
        tags = await self._names.snapshot(repo, listing)
        return HubRevision(tags, sha, tags, is_arriving=True)

    async def _marked(self, snapshot: Snapshot) -> HubRevision:
        """Returns the revision of a snapshot: the hub's, if the metadata of the commit names one
        whose tags lie on a commit with the same content."""
        key = (snapshot.repo, snapshot.commit)
        known = self._shas.get(key)
        if known is not None:
            sha, tags = known
            return await self._at(snapshot.repo, sha, snapshot.commit, tags)
        log = await self._catalog.log(snapshot.repo, snapshot.commit, 1)
        sha = log.commits[0].metadata.get(hub.COMMIT, "")
        found = HubRevision(snapshot, snapshot.commit[:SHA_CHARS])
        if hub.is_commit_id(sha):
            try:
                tagged = await self._tagged(snapshot.repo, sha)
            except NotFound:
                return found  # not to be remembered: a push writes the tags after the commit
            if tagged.snapshot.root.digest == snapshot.root.digest:
                found = replace(tagged, snapshot=snapshot)
        self._shas.put(key, (found.sha, _commits_of(found)[1]))
        return found

    async def _tagged(self, repo: str, sha: str) -> HubRevision:
        """Returns the commit that has the hub's id ``sha``. Raises: NotFound."""
        branch = hub.branch_of(sha)
        snapshot = await self._names.snapshot(repo, f"{branch}~1")
        return HubRevision(snapshot, sha, await self._names.snapshot(repo, branch))

    async def _at(self, repo: str, sha: str, commit: str, tags: str) -> HubRevision:
        """Returns a known revision. Commits that the node has used need no store."""
        tagged = await self._names.snapshot(repo, tags) if tags else None
        return HubRevision(await self._names.snapshot(repo, commit), sha, tagged)


def _commits_of(found: HubRevision) -> tuple[str, str]:
    return found.snapshot.commit, "" if found.tags is None else found.tags.commit


async def etag_of(names: Names, found: HubRevision, path: bytes, content_id: bytes) -> str:
    """Returns the ETag of a file: the hub's, or else the beginning of its content id, which has as
    many digits as the SHA-1 of a git blob."""
    if found.tags is not None:
        try:
            link = await names.entry(found.tags, path)
        except (NotFound, NotADirectory):
            link = found.tags.root
        if (tag := hub.decode_tag(link.target)) is not None:
            return tag.etag
    return content_id.hex()[:SHA_CHARS]

"""The commits that changed files and directories last, for clients of the hub that ask for them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import quote_from_bytes

from lodefs.chunkstore.errors import NotFound
from lodefs.proxy.hub.revisions import SHA_CHARS, HubRevision, HubRevisions
from lodefs.proxy.node import Catalog, LastChange, LastChangesView

Json = dict[str, object]


class LastCommits:
    """Those of one revision, for one request. Each directory is looked at once, for a bounded
    time."""

    def __init__(self, catalog: Catalog, revisions: HubRevisions, found: HubRevision) -> None:
        self._catalog = catalog
        self._revisions = revisions
        self._found = found
        self._views: dict[bytes, LastChangesView] = {}

    async def of(self, path: bytes) -> Json | None:
        """Returns the commit that changed what is at a path; None if it is not found in time, or if
        the files are still on their way."""
        if self._found.is_arriving:
            return None
        directory, _, name = path.rpartition(b"/")
        if directory not in self._views:
            snapshot = self._found.snapshot
            view = await self._catalog.last_changes(snapshot.repo, snapshot.commit, directory)
            self._views[directory] = view
        view = self._views[directory]
        number = view.entries.get(quote_from_bytes(name))
        return None if number is None else await self._shown(view.commits[number])

    async def _shown(self, change: LastChange) -> Json:
        sha = change.commit[:SHA_CHARS]
        with suppress(NotFound):  # it has expired
            sha = (await self._revisions.of(self._found.snapshot.repo, change.commit)).sha
        title = change.message.partition("\n")[0]
        return {"id": sha, "title": title, "date": shown_time(change.time_s)}


def shown_time(time_s: int) -> str:
    """Returns a Unix time as the hub writes it."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")

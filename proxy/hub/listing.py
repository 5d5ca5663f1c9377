"""Lists a snapshot for clients of the hub: files and directories by their paths, some at a time.

Entries that JSON or a hub cannot have are left out: names that are not UTF-8, and symlinks that
lead to no file of the snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.wire import Entry, Page
from lodefs.proxy.hub.revisions import HubRevision, etag_of
from lodefs.proxy.hub.target import HubError
from lodefs.proxy.node import Names, SnapshotFile
from lodefs.proxy.read.symlinks import linked_file, linked_file_or_none

PAGE_ENTRIES = 1000  # of one directory, read at once


@dataclass(frozen=True, slots=True)
class Listed:
    """A file or a directory of a listing. A directory has ``id``, and "" as ``etag``."""

    path: str
    size_bytes: int
    etag: str
    id: str = ""


@dataclass(slots=True)
class _Level:
    """A directory on the way through a tree, and the known part of its remaining entries."""

    path: bytes
    ino: int
    page: Page
    content_ids: dict[int, bytes] = field(default_factory=dict)  # by inode, of its page
    at: int = 0


class Listing:
    """The listings of one revision."""

    def __init__(self, names: Names, found: HubRevision) -> None:
        self._names = names
        self._found = found

    async def below(
        self, top: bytes, after: bytes = b"", *, recursive: bool
    ) -> AsyncIterator[Listed]:
        """Yields what lies in a directory; if ``recursive``, each directory's content follows
        it. ``after`` is the path after which to go on. It holds a page of each level. Raises:
        HubError if there is no such directory."""
        levels = await self._levels(top, after, recursive=recursive)
        while levels:
            level = levels[-1]
            if level.at < len(level.page.nodes):
                entry = level.page.nodes[level.at]
                level.at += 1
                path = _join(level.path, entry.name)
                listed = await self._listed(path, entry, level.content_ids)
                if listed is not None:
                    yield listed
                if recursive and entry.kind == Kind.DIRECTORY:
                    levels.append(await self._level(path, entry.ino))
            elif level.page.more:
                levels[-1] = await self._level(level.path, level.ino, level.page.nodes[-1].name)
            else:
                levels.pop()

    async def at(self, path: bytes) -> Listed | None:
        """Returns what lies at a path, if anything does."""
        try:
            entry = await self._names.entry(self._found.snapshot, path)
        except (NotFound, NotADirectory):
            return None
        return await self._listed(path, entry, await self._content_ids([entry]))

    async def file(self, path: bytes) -> SnapshotFile:
        """Returns the file at a path, also behind a symlink. Raises: HubError."""
        snapshot, sha = self._found.snapshot, self._found.sha
        shown = path.decode("utf-8", "backslashreplace")
        try:
            found = await self._names.file(snapshot, path)
            if not isinstance(found, SnapshotFile) and found.kind == Kind.SYMLINK:
                above = path.rpartition(b"/")[0]
                found = await linked_file(self._names, snapshot, above, found.target)
        except (NotFound, NotADirectory) as error:
            raise HubError("EntryNotFound", f"there is no file {shown}", sha=sha) from error
        if not isinstance(found, SnapshotFile):
            raise HubError("EntryNotFound", f"{shown} is a directory, not a file", sha=sha)
        return found

    async def _levels(self, top: bytes, after: bytes, *, recursive: bool) -> list[_Level]:
        """Returns the directories from ``top`` down to the place behind ``after``."""
        ino = await self._directory(top)
        if not after:
            return [await self._level(top, ino)]
        levels = []
        names = after.split(b"/")
        above = [top, *(_join(top, path) for path in accumulate(names, _join))]
        for path, name in zip(above, names, strict=False):
            levels.append(await self._level(path, await self._directory(path), name))
        if recursive and (entry := await self.at(above[-1])) is not None and not entry.etag:
            levels.append(await self._level(above[-1], await self._directory(above[-1])))
        return levels

    async def _directory(self, path: bytes) -> int:
        try:
            entry = await self._names.entry(self._found.snapshot, path)
        except (NotFound, NotADirectory):
            entry = None
        if entry is None or entry.kind != Kind.DIRECTORY:
            shown = path.decode("utf-8", "backslashreplace")
            what = f"there is no directory {shown}"
            raise HubError("EntryNotFound", what, sha=self._found.sha)
        return entry.ino

    async def _level(self, path: bytes, ino: int, after: bytes = b"") -> _Level:
        page = await self._names.children(
            self._found.snapshot, ino, after=after, limit=PAGE_ENTRIES
        )
        return _Level(path, ino, page, await self._content_ids(page.nodes))

    async def _content_ids(self, entries: Sequence[Entry]) -> dict[int, bytes]:
        inos = [entry.ino for entry in entries if entry.kind == Kind.FILE]
        ids = await self._names.content_ids(self._found.snapshot, inos) if inos else []
        return dict(zip(inos, ids, strict=True))

    async def _listed(
        self, path: bytes, entry: Entry, content_ids: Mapping[int, bytes]
    ) -> Listed | None:
        try:
            text = path.decode()
        except UnicodeDecodeError:
            return None
        snapshot = self._found.snapshot
        if entry.kind == Kind.DIRECTORY:
            return Listed(text, 0, "", entry.digest.hex()[:40])
        if self._found.is_arriving:
            tag = hub.decode_tag(entry.target)
            return None if tag is None else Listed(text, tag.size_bytes, tag.etag)
        if entry.kind == Kind.SYMLINK:
            above = path.rpartition(b"/")[0]
            file = await linked_file_or_none(self._names, snapshot, above, entry.target)
            if file is None:
                return None
            entry, content_id = file.entry, file.content_id
        else:
            content_id = content_ids[entry.ino]
        etag = await etag_of(self._names, self._found, path, content_id)
        return Listed(text, entry.size_bytes, etag)


def _join(above: bytes, name: bytes) -> bytes:
    return above + b"/" + name if above else name

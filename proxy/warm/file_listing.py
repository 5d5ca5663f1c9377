"""Lists all files of a snapshot that a selection covers, one level of directories at a time.

Unknown directories are loaded into the node's index on the way, many at a time, so that the names
are cached afterwards, too.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.chunkstore.repo.tree_walk import join
from lodefs.proxy.read.directories.tree_source import Outcome
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.runtime.thread_pools import Pools
from lodefs.proxy.warm.path_patterns import MatchState, Selection

DIRECTORIES_TOGETHER = 32  # loaded and then read from the index at a time
TOGETHER_SIZE_BYTES_MAX = 4 * 1024 * 1024  # of their trees: some fifty thousand entries
GROUPS_AHEAD = 2

ListedEntry = tuple[bytes, TreeEntry]  # the path of a file or symlink, and its entry
Call = Callable[[], Awaitable[list[Outcome]]]


class _Directory(NamedTuple):
    ino: int
    path: bytes
    state: MatchState
    size_bytes: int  # of its tree, by its parent's claim


@dataclass(slots=True)
class _ListedGroup:
    """The contents of some directories."""

    files: list[ListedEntry] = field(default_factory=list)
    directories: list[_Directory] = field(default_factory=list)
    errors: list[tuple[bytes, LodefsError]] = field(default_factory=list)


async def _once(call: Call) -> list[Outcome]:
    return await call()


def _next_group(waiting: deque[_Directory]) -> list[_Directory]:
    """Takes directories to read together: at least one."""
    group = [waiting.popleft()]
    size_bytes = group[0].size_bytes
    while waiting and len(group) < DIRECTORIES_TOGETHER:
        size_bytes += waiting[0].size_bytes
        if size_bytes > TOGETHER_SIZE_BYTES_MAX:
            break
        group.append(waiting.popleft())
    return group


class Listing:
    """One walk through a snapshot. ``errors`` are the directories that cannot be read, with
    reasons. Without ``from_store``, unknown directories count as empty."""

    def __init__(
        self,
        namespace: Namespace,
        pools: Pools,
        snapshot: Snapshot,
        selection: Selection,
        *,
        from_store: bool = True,
        repeat: Callable[[Call], Awaitable[list[Outcome]]] = _once,
    ) -> None:
        """``repeat`` runs the calls to the store, with retries."""
        self._namespace = namespace
        self._pools = pools
        self._snapshot = snapshot
        self._selection = selection
        self._from_store = from_store
        self._repeat = repeat
        self.errors: list[tuple[bytes, LodefsError]] = []

    async def files(self) -> AsyncGenerator[list[ListedEntry], None]:
        """Yields files and symlinks as they are found. Raises: Unavailable, Denied for the
        store."""
        root = self._snapshot.root
        waiting = deque([_Directory(ROOT_INO, b"", self._selection.start(), root.size_bytes)])
        reading: deque[asyncio.Task[_ListedGroup]] = deque()
        try:
            while waiting or reading:
                while waiting and len(reading) < GROUPS_AHEAD:
                    reading.append(asyncio.create_task(self._read(_next_group(waiting))))
                found = await reading[0]
                reading.popleft()
                waiting.extend(found.directories)
                self.errors += found.errors
                if found.files:
                    yield found.files
        finally:
            for task in reading:
                task.cancel()
            await asyncio.gather(*reading, return_exceptions=True)

    async def _read(self, group: Sequence[_Directory]) -> _ListedGroup:
        inos = [directory.ino for directory in group]
        outcomes = await self._repeat(
            lambda: self._namespace.directories(self._snapshot, inos, from_store=self._from_store)
        )
        return await self._pools.disk.run(self._gather, group, outcomes)

    def _gather(self, group: Sequence[_Directory], outcomes: Sequence[Outcome]) -> _ListedGroup:
        """Blocking."""
        found = _ListedGroup()
        for directory, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, LodefsError):
                found.errors.append((directory.path, outcome))
                continue
            for entry in outcome:
                self._sort_in(directory, entry, found)
        return found

    def _sort_in(self, directory: _Directory, entry: TreeEntry, found: _ListedGroup) -> None:
        state = directory.state
        if state.spots:
            state = self._selection.step(state, entry.name)
            if state.is_over:
                return
        path = join(directory.path, entry.name)
        if entry.kind is Kind.DIRECTORY:
            ino = child_ino(directory.ino, entry.name)
            found.directories.append(_Directory(ino, path, state, entry.size_bytes))
        elif state.is_whole:
            found.files.append((path, entry))

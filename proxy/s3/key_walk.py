"""The keys of a snapshot in S3's order: by the bytes of whole keys.

A tree has its entries by name: there the directory ``a`` comes before ``a-b`` and ``a.txt``. Among
keys it comes after them, since its keys begin with ``a/``. So a directory waits until no later name
sorts before it. A walk that begins in the middle looks up the few directories whose names sort
before its beginning, and whose keys do not. It never lists a whole directory at once.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.inodes import ROOT_INO
from lodefs.chunkstore.format.names import NAME_BYTES_MAX
from lodefs.chunkstore.format.tree import Kind, tree_digest
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.node import Names, SnapshotFile
from lodefs.proxy.read.symlinks import linked_file_or_none

PAGE_ENTRIES_MIN = 16
PAGE_ENTRIES_MAX = 1000
_EMPTY_DIRECTORY = tree_digest([])
_SLASH = 0x2F


class Found(NamedTuple):
    """A file with its key, or a whole directory, whose key ends in '/'. ``linked`` is a symlink's
    target."""

    key: bytes
    entry: Entry
    linked: SnapshotFile | None = None


class _Children:
    """The children of one directory in the order of keys, from ``start`` on."""

    def __init__(self, names: Names, snapshot: Snapshot, ino: int, base: bytes) -> None:
        self.base = base  # the prefix of its children's keys
        self.start = b""  # for the directory ``name``: where its keys begin
        self.first_name = b""
        self._names = names
        self._snapshot = snapshot
        self._ino = ino
        self._nodes: deque[Entry] = deque()
        self._after = b""
        self._more = True
        self._waiting: list[tuple[bytes, Entry]] = []  # directories, by name and '/'

    async def seek(self, start: bytes) -> None:
        """Begins at the first key that is not less than ``start``, relative to this directory."""
        name, slash, rest = start.partition(b"/")
        if not name:
            self._after = slash
            return
        for cut in range(1, min(len(name), NAME_BYTES_MAX + 1)):
            if name[cut] < _SLASH:
                await self._wait(name[:cut])
        if slash:
            self.first_name, self.start = name, rest
            await self._wait(name)
            self._after = name + slash
        elif name.endswith(b"\0"):  # everything greater than a name
            self._after = name[:-1]
        else:
            found = await self._child(name)
            if found is not None:
                self._nodes.append(found)
            self._after = name

    async def _child(self, name: bytes) -> Entry | None:
        if len(name) > NAME_BYTES_MAX or b"\0" in name:
            return None
        try:
            return await self._names.lookup(self._snapshot, self._ino, name)
        except NotFound:
            return None

    async def _wait(self, name: bytes) -> None:
        found = await self._child(name)
        if found is not None and found.kind == Kind.DIRECTORY:
            heappush(self._waiting, (name + b"/", found))

    async def next(self, wanted: int) -> Entry | None:
        """Returns the next child, or None after the last. ``wanted`` children are useful."""
        while True:
            if not self._nodes and self._more:
                await self._load(wanted)
            node = self._nodes[0] if self._nodes else None
            if self._waiting and (node is None or self._waiting[0][0] < node.name):
                return heappop(self._waiting)[1]
            if node is None:
                return None
            self._nodes.popleft()
            if node.kind != Kind.DIRECTORY:
                return node
            heappush(self._waiting, (node.name + b"/", node))

    async def _load(self, wanted: int) -> None:
        limit = max(PAGE_ENTRIES_MIN, min(wanted, PAGE_ENTRIES_MAX))
        page = await self._names.children(self._snapshot, self._ino, after=self._after, limit=limit)
        self._nodes.extend(page.nodes)
        self._more = page.more and bool(page.nodes)
        if page.nodes:
            self._after = page.nodes[-1].name


class KeyWalk:
    """The keys of a snapshot that begin with ``prefix``, from the first one that is not less than
    ``start``. With ``by_directory``, everything below a '/' after the prefix is one Found.

    ``left_out`` counts names that cannot be keys, and symlinks that lead to no file; ``steps``
    counts the entries that were visited.
    """

    def __init__(
        self,
        names: Names,
        snapshot: Snapshot,
        *,
        prefix: bytes = b"",
        start: bytes = b"",
        by_directory: bool = False,
    ) -> None:
        self._names = names
        self._snapshot = snapshot
        self._prefix = prefix
        self._start = max(prefix, start)
        self._by_directory = by_directory
        self._stack: list[_Children] | None = None
        self.left_out = 0
        self.steps = 0
        self.position = b""  # the last visited key

    async def next(self, wanted: int) -> Found | None:
        """Returns the next key; ``wanted`` keys are useful. Returns None after the last one, and
        after something without a key: ``is_over`` tells which."""
        if self._stack is None:
            self._stack = []
            await self._enter(ROOT_INO, b"", self._start)
        while self._stack:
            here = self._stack[-1]
            entry = await here.next(wanted)
            if entry is None:
                self._stack.pop()
                continue
            self.steps += 1
            key = here.base + entry.name
            is_directory = entry.kind == Kind.DIRECTORY
            self.position = key = key + b"/" if is_directory else key
            leads_there = is_directory and self._prefix.startswith(key)
            if not leads_there and not key.startswith(self._prefix):
                if key > self._prefix:
                    self._stack.clear()
                continue
            if not _is_text(entry.name):
                self.left_out += 1
                return None
            if is_directory:
                if entry.digest == _EMPTY_DIRECTORY:
                    return None
                if self._by_directory and not leads_there:
                    return Found(key, entry)
                start = here.start if entry.name == here.first_name else b""
                await self._enter(entry.ino, key, start)
            elif entry.kind == Kind.FILE:
                return Found(key, entry)
            else:
                return await self._linked(here.base, key, entry)
        return None

    @property
    def is_over(self) -> bool:
        """Whether there are no more keys."""
        return not self._stack

    async def _enter(self, ino: int, base: bytes, start: bytes) -> None:
        assert self._stack is not None
        directory = _Children(self._names, self._snapshot, ino, base)
        await directory.seek(start)
        self._stack.append(directory)

    async def _linked(self, base: bytes, key: bytes, entry: Entry) -> Found | None:
        found = await linked_file_or_none(self._names, self._snapshot, base, entry.target)
        if found is None:
            self.left_out += 1
            return None
        return Found(key, entry, found)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True

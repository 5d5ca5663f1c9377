"""Looking for names in a snapshot: directory by directory, nearest first, for a bounded time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodeapi.wire import CHILDREN_MAX, Node, Snapshot
from lodefs.proxy.api.views import EntryView, entry_view
from lodefs.proxy.node import Names

FOUND_MAX = 100
SEARCH_S_MAX = 3.0
DIRECTORIES_MAX = 200_000  # that wait to be looked at


class FoundView(msgspec.Struct, frozen=True):
    """Entries whose names hold a text, with their whole paths as names. ``is_complete``: these are
    all; ``looked_at``: how many names were compared."""

    entries: list[EntryView]
    is_complete: bool
    looked_at: int


async def find(
    names: Names,
    snapshot: Snapshot,
    below: bytes,
    text: str,
    *,
    clock_s: Callable[[], float] = time.monotonic,
) -> FoundView:
    """Entries below a directory whose name has ``text`` in it; letters' case does not matter.

    Raises: NotFound, NotADirectory.
    """
    ends_s = clock_s() + SEARCH_S_MAX
    wanted = text.casefold()
    found: list[EntryView] = []
    looked_at = 0
    waiting = deque([((await names.entry(snapshot, below)).ino, below)])
    while waiting:
        ino, path = waiting.popleft()
        after = b""
        more = True
        while more:
            if clock_s() > ends_s or len(found) >= FOUND_MAX:
                return FoundView(found, is_complete=False, looked_at=looked_at)
            page = await names.children(snapshot, ino, after=after, limit=CHILDREN_MAX)
            for node in page.nodes:
                at = path + b"/" + node.name if path else node.name
                if _matches(node, wanted) and len(found) < FOUND_MAX:
                    found.append(_shown(snapshot, at, node))
                if node.kind == Kind.DIRECTORY and len(waiting) < DIRECTORIES_MAX:
                    waiting.append((node.ino, at))
            looked_at += len(page.nodes)
            more = page.more
            after = page.nodes[-1].name if page.nodes else after
    return FoundView(found, is_complete=True, looked_at=looked_at)


def _matches(node: Node, wanted: str) -> bool:
    return wanted in node.name.decode("utf-8", "replace").casefold()


def _shown(snapshot: Snapshot, path: bytes, node: Node) -> EntryView:
    view = entry_view(snapshot.repo, snapshot.commit, path, node)
    return msgspec.structs.replace(view, name=path.decode("utf-8", "replace"))

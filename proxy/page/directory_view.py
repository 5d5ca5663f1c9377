"""A directory as the page shows it: directories first, a page at a time."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import msgspec

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol.wire import CHILDREN_MAX, Snapshot
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.proxy.api.views import EntryView, entry_view
from lodefs.proxy.node import Names

ORDERED_MAX = 4 * CHILDREN_MAX  # entries of a directory that are put in order
READMES = (b"README.md", b"readme.md", b"Readme.md", b"README.markdown", b"README.txt", b"README")
BY_NAME = "by-name"


class DirectoryView(msgspec.Struct, frozen=True):
    """Some entries of a directory: directories first, or, where it has more than ORDERED_MAX
    entries, all by name. ``total``: how many it has, where that is known. ``next``: the query of
    the next page, or null. ``readme``: the file that says what the directory is; with the first
    page alone."""

    commit: str
    entries: list[EntryView]
    is_ordered: bool
    total: int | None
    next: str | None
    readme: EntryView | None


async def directory(
    names: Names, snapshot: Snapshot, rev: str, path: bytes, *, after: bytes, order: str, limit: int
) -> DirectoryView:
    """Returns the entries that come after a name. ``order``: BY_NAME for the next pages of a
    directory that has too many entries to be put in order. Raises: NotFound, NotADirectory."""
    entry = await names.entry(snapshot, path)
    if entry.kind != Kind.DIRECTORY:
        raise NotADirectory("this is not a directory")
    every = None if order == BY_NAME else await _every(names, snapshot, entry.ino)
    if every is None:
        page = await names.children(snapshot, entry.ino, after=after, limit=limit)
        shown, more = page.nodes, page.more
    else:
        shown, more = ordered_page(every, after, limit)
    return DirectoryView(
        commit=snapshot.commit,
        entries=[_shown(snapshot, rev, path, one) for one in shown],
        is_ordered=every is not None,
        total=None if every is None else len(every),
        next=_query(shown[-1].name, limit, is_ordered=every is not None) if more else None,
        readme=None if after else await _readme(names, snapshot, rev, path, entry.ino),
    )


def ordered_page(nodes: list[Entry], after: bytes, limit: int) -> tuple[list[Entry], bool]:
    """Returns the entries of a directory after a name, in the order that puts directories first;
    and whether others follow. From the beginning if no entry has that name. Pure."""
    ordered = sorted(nodes, key=lambda one: one.kind != Kind.DIRECTORY)
    first = next((n for n, one in enumerate(ordered, 1) if one.name == after), 0)
    return ordered[first : first + limit], len(ordered) > first + limit


async def _every(names: Names, snapshot: Snapshot, ino: int) -> list[Entry] | None:
    """Returns all entries by name; None if there are more than ORDERED_MAX."""
    found: list[Entry] = []
    more = True
    while more:
        if len(found) >= ORDERED_MAX:
            return None
        after = found[-1].name if found else b""
        page = await names.children(snapshot, ino, after=after, limit=CHILDREN_MAX)
        found += page.nodes
        more = page.more and bool(page.nodes)
    return found


async def _readme(
    names: Names, snapshot: Snapshot, rev: str, path: bytes, ino: int
) -> EntryView | None:
    for name in READMES:
        try:
            found = await names.lookup(snapshot, ino, name)
        except NotFound:
            continue
        if found.kind == Kind.FILE:
            return _shown(snapshot, rev, path, found)
    return None


def _shown(snapshot: Snapshot, rev: str, path: bytes, node: Entry) -> EntryView:
    at = path + b"/" + node.name if path else node.name
    return entry_view(snapshot.repo, rev, at, node)


def _query(last: bytes, limit: int, *, is_ordered: bool) -> str:
    order = "" if is_ordered else f"&order={BY_NAME}"
    return f"after={quote_from_bytes(last, safe='')}&limit={limit}{order}"

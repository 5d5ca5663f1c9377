"""Entries and snapshots as JSON: the structures of /stat, /list and /snapshots."""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote_from_bytes

import msgspec

from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.protocol import wire

KindName = Literal["file", "directory", "symlink"]
_KIND_NAMES: dict[int, KindName] = {
    Kind.FILE: "file",
    Kind.DIRECTORY: "directory",
    Kind.SYMLINK: "symlink",
}
_PREFIXES: dict[int, str] = {
    Kind.FILE: wire.FILES,
    Kind.DIRECTORY: wire.LIST,
    Kind.SYMLINK: wire.STAT,
}


LIST_BYTES_MAX = 512 * 1024  # limit for the entries on one page without the first one


class EntryView(msgspec.Struct, frozen=True):
    """One entry. ``href`` is exact; other fields have U+FFFD in place of bytes that are not
    UTF-8."""

    name: str
    href: str
    kind: KindName
    size_bytes: int
    digest: str
    executable: bool
    target: str | None


class ListView(msgspec.Struct, frozen=True):
    """One page of a directory, by name. ``next`` is the URL path of the next page."""

    repo: str
    commit: str
    path: str
    entries: list[EntryView]
    next: str | None


class StatView(msgspec.Struct, frozen=True):
    """One entry, and the commit in which it was found."""

    repo: str
    commit: str
    path: str
    entry: EntryView


class SnapshotView(msgspec.Struct, frozen=True):
    """The current commit of a revision."""

    repo: str
    commit: str
    root_digest: str
    time_s: int
    files: int
    directories: int
    size_bytes: int


def entry_view(repo: str, rev: str, path: bytes, entry: wire.Entry) -> EntryView:
    return EntryView(
        name=_text(path.rpartition(b"/")[2]),
        href=wire.file_path(_PREFIXES[entry.kind], repo, rev, path),
        kind=_KIND_NAMES[entry.kind],
        size_bytes=entry.size_bytes,
        digest=entry.digest.hex(),
        executable=entry.executable,
        target=_text(entry.target) if entry.kind == Kind.SYMLINK else None,
    )


def stat_view(snapshot: wire.Snapshot, rev: str, path: bytes, entry: wire.Entry) -> StatView:
    """Returns the answer of /stat; hrefs keep the requested revision."""
    view = entry_view(snapshot.repo, rev, path, entry)
    return StatView(snapshot.repo, snapshot.commit, _text(path), view)


def list_view(
    snapshot: wire.Snapshot, rev: str, path: bytes, page: wire.Page, limit: int
) -> ListView:
    """Returns the answer of /list. The next page is of the same commit, even if the branch moves.

    Entries beyond LIST_BYTES_MAX are left to the next page, since each repeats the directory's
    path, and a byte of a name may take six.
    """
    base = path + b"/" if path else b""
    entries: list[EntryView] = []
    size_bytes = 0
    for one in page.nodes:
        entry = entry_view(snapshot.repo, rev, base + one.name, one)
        size_bytes += len(msgspec.json.encode(entry))
        if entries and size_bytes > LIST_BYTES_MAX:
            break
        entries.append(entry)
    following = None
    if entries and (page.more or len(entries) < len(page.nodes)):
        here = wire.file_path(wire.LIST, snapshot.repo, snapshot.commit, path)
        last = quote_from_bytes(page.nodes[len(entries) - 1].name, safe="")
        following = f"{here}?after={last}&limit={limit}"
    return ListView(snapshot.repo, snapshot.commit, _text(path), entries, following)


def snapshot_view(snapshot: wire.Snapshot) -> SnapshotView:
    """Returns the answer of /snapshots as JSON."""
    return SnapshotView(
        repo=snapshot.repo,
        commit=snapshot.commit,
        root_digest=snapshot.root.digest.hex(),
        time_s=snapshot.time_s,
        files=snapshot.files,
        directories=snapshot.directories,
        size_bytes=snapshot.size_bytes,
    )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")

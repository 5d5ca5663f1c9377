"""Directories in the node's index: the rows of their children, and the marks that these are
complete.

All rows of a directory's children are written before its mark, or with it. Blocking; for any
thread. Inode numbers are derived from paths (chunkstore/format/inodes.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from lodefs.chunkstore.errors import Corrupt, LodefsError, NotFound
from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.format.tree import TreeEntry as TreeEntry
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.name_rows import EntryRow
from lodefs.chunkstore.protocol.wire import Page, Snapshot
from lodefs.proxy.read.directories.write_buffer import WriteBuffer

ROWS_MAX = 4096  # in one write or lookup
DIRECTORY_ROWS_MAX = 16  # rows of children that are read for a walk: 4,096 entries


class DirectoryRows:
    """The rows of directories of one node."""

    def __init__(self, kv: WriteBuffer) -> None:
        self._kv = kv

    # --- reading

    def row(self, snapshot: Snapshot, ino: int) -> EntryRow:
        """Returns the row of an entry with segments. Raises: NotFound if the node does not know
        it."""
        row = self.find(snapshot, ino)
        if row is None:
            raise NotFound(
                f"inode {ino} of {snapshot.repo}@{snapshot.commit} is unknown to this node"
            )
        return row

    def find(self, snapshot: Snapshot, ino: int) -> EntryRow | None:
        value = self._kv.get(name_rows.entry_key(key_of(snapshot), ino))
        return None if value is None else name_rows.decode_entry_row(value)

    def rows(self, snapshot: Snapshot, inos: Sequence[int]) -> list[EntryRow]:
        """Returns the rows of entries, in order. Raises: NotFound."""
        values = self._kv.get_many(name_rows.entry_keys(key_of(snapshot), inos))
        return [
            self.row(snapshot, ino) if value is None else name_rows.decode_entry_row(value)
            for ino, value in zip(inos, values, strict=True)
        ]

    def is_loaded(self, snapshot: Snapshot, ino: int) -> bool:
        return self._kv.get(name_rows.loaded_key(key_of(snapshot), ino)) is not None

    def page(self, snapshot: Snapshot, ino: int, after: bytes, limit: int) -> Page:
        """Returns at most ``limit`` children of a loaded directory by name, after a name."""
        prefix = name_rows.children_prefix(key_of(snapshot), ino)
        rows = self._kv.scan(prefix, after=prefix + after)
        return name_rows.page_of((value for _, value in rows), after, limit)

    def unloaded(
        self, snapshot: Snapshot, inos: Sequence[int]
    ) -> tuple[list[tuple[int, TreeEntry]], list[tuple[int, list[int]]]]:
        """Splits directories into those that are not loaded, with their entries, and those that
        are, with their subdirectories."""
        key = key_of(snapshot)
        marks = self._kv.get_many([name_rows.loaded_key(key, ino) for ino in inos])
        values = self._kv.get_many(name_rows.entry_keys(key, inos))
        missing: list[tuple[int, TreeEntry]] = []
        there: list[tuple[int, list[int]]] = []
        for ino, mark, value in zip(inos, marks, values, strict=True):
            if mark is not None:
                there.append((ino, self._directories(key, ino)))
            elif value is not None:
                missing.append((ino, name_rows.entry_of(name_rows.decode_entry_row(value))))
        return missing, there

    def directories_from(self, snapshot: Snapshot, ino: int) -> list[int]:
        """Returns the directories among an entry and its next siblings, by name."""
        row = self.row(snapshot, ino)
        return self._directories(key_of(snapshot), row.parent, row.name)

    def _directories(self, key: bytes, ino: int, first: bytes = b"") -> list[int]:
        prefix = name_rows.children_prefix(key, ino)
        rows = islice(self._kv.scan(prefix, after=prefix + first), DIRECTORY_ROWS_MAX)
        nodes = (node for _, value in rows for node in name_rows.decode_page(value))
        return [node.ino for node in nodes if node.kind == Kind.DIRECTORY and node.name >= first]

    def entries(self, snapshot: Snapshot, ino: int) -> list[TreeEntry] | None:
        """Returns all entries of a directory with segments; None if it is not loaded. Raises:
        Corrupt."""
        key = key_of(snapshot)
        if not self.is_loaded(snapshot, ino):
            return None
        pages = self._kv.scan(name_rows.children_prefix(key, ino))
        inos = [node.ino for _, page in pages for node in name_rows.decode_page(page)]
        values = self._kv.get_many(name_rows.entry_keys(key, inos))
        if None in values:
            raise Corrupt(f"directory {ino} of {name_of(snapshot)} lacks rows in the cache's index")
        decode, entry_of = name_rows.decode_entry_row, name_rows.entry_of
        return [entry_of(decode(value)) for value in values if value is not None]

    def path(self, snapshot: Snapshot, ino: int, name: bytes, parent: int) -> bytes:
        """Returns the path of an entry for messages, as far as the node knows it."""
        names = [name] if ino != ROOT_INO else []
        while parent != ROOT_INO and names:
            try:
                row = self.row(snapshot, parent)
            except LodefsError:
                return b".../" + b"/".join(reversed(names))
            names.append(row.name)
            parent = row.parent
        return b"/".join(reversed(names))

    # --- writing

    def write(self, snapshot: Snapshot, found: Sequence[tuple[int, list[TreeEntry]]]) -> None:
        """Writes the rows of the children of directories, and marks these as loaded. Raises:
        Corrupt if two entries have one inode number; NoSpace, Unavailable."""
        key = key_of(snapshot)
        inos = [[child_ino(ino, entry.name) for entry in entries] for ino, entries in found]
        self._check_collisions(snapshot, found, inos)
        rows: list[Row] = []
        for (ino, entries), children in zip(found, inos, strict=True):
            for part in _child_rows(key, ino, entries, children):
                rows += part
                if len(rows) >= ROWS_MAX:
                    self._kv.write(rows)
                    rows = []
            rows.append((name_rows.loaded_key(key, ino), b""))
        if rows:
            self._kv.write(rows)

    def _check_collisions(
        self,
        snapshot: Snapshot,
        found: Sequence[tuple[int, list[TreeEntry]]],
        inos: Sequence[list[int]],
    ) -> None:
        """Raises: Corrupt, with both paths, if two entries of one snapshot have the same number."""
        seen: dict[int, tuple[int, bytes]] = {ROOT_INO: (ROOT_INO, b"")}
        for (parent, entries), children in zip(found, inos, strict=True):
            for ino, entry in zip(children, entries, strict=True):
                if ino in seen:
                    self._collision(snapshot, ino, seen[ino], (parent, entry.name))
                seen[ino] = (parent, entry.name)
        del seen[ROOT_INO]
        key, numbers = key_of(snapshot), list(seen)
        for first in range(0, len(numbers), ROWS_MAX):
            part = numbers[first : first + ROWS_MAX]
            values = self._kv.get_many(name_rows.entry_keys(key, part))
            for ino, value in zip(part, values, strict=True):
                if value is not None:
                    row = name_rows.decode_entry_row(value)
                    if (row.parent, row.name) != seen[ino]:
                        self._collision(snapshot, ino, (row.parent, row.name), seen[ino])

    def _collision(
        self, snapshot: Snapshot, ino: int, one: tuple[int, bytes], two: tuple[int, bytes]
    ) -> None:
        paths = [self.path(snapshot, 0, name, parent) for parent, name in (one, two)]
        raise Corrupt(
            f"{paths[0]!r} and {paths[1]!r} of {name_of(snapshot)} have the same inode number "
            f"{ino}: rename one of them and push again"
        )


def _child_rows(
    key: bytes, parent: int, entries: list[TreeEntry], inos: list[int]
) -> Iterator[list[Row]]:
    """Yields the rows of a directory's children, by pages."""
    keys = name_rows.entry_keys(key, inos)
    prefix = name_rows.children_prefix(key, parent)
    encode, node_of = name_rows.encode_entry_row, name_rows.node_of
    for first in range(0, len(entries), name_rows.PAGE_NODES):
        end = first + name_rows.PAGE_NODES
        part = entries[first:end]
        rows: list[Row] = list(
            zip(keys[first:end], [encode(parent, entry) for entry in part], strict=True)
        )
        nodes = [
            node_of(ino, parent, entry) for ino, entry in zip(inos[first:end], part, strict=True)
        ]
        rows.append((prefix + nodes[-1].name, name_rows.encode_page(nodes)))
        yield rows


def key_of(snapshot: Snapshot) -> bytes:
    """Returns what stands for a snapshot in the keys of its rows."""
    return name_rows.snapshot_key(bytes.fromhex(snapshot.commit))


def name_of(snapshot: Snapshot) -> str:
    """Returns the name of a snapshot for messages."""
    return f"{snapshot.repo}@{snapshot.commit[:12]}"

"""The staged changes of a transaction, as a snapshot that a file system reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from lodefs.api.transactions import Transaction
from lodefs.chunkstore.errors import LodefsError, NotADirectory, NotFound
from lodefs.chunkstore.format.names import split_path
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.chunkstore.push.changes.overlay import Item
from lodefs.reading.entries import Entries
from lodefs.reading.file_bytes import Span, bounds
from lodefs.reading.urls import decoded_path


class StagedSnapshot:
    """The present state of a transaction, with the methods of Snapshot that a file system uses."""

    commit = ""  # there is no commit yet

    def __init__(self, transaction: Transaction) -> None:
        self.repo = transaction.spec.repo
        self.time_s = int(time.time())
        self.entries = StagedEntries(transaction)
        self.bytes = StagedBytes(transaction)

    @property
    def time(self) -> datetime:
        """The time when the transaction began."""
        return datetime.fromtimestamp(self.time_s, UTC)


class StagedNode(Entry, frozen=True):
    """An entry, and the staged item that it shows."""

    entry: TreeEntry | None = None


class StagedEntries(Entries):
    """Entries of which only the root is cached, since any other may change."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._known = {b"": _node(b"", transaction.staging.overlay.root)}

    def followed(self, path: bytes) -> Entry:
        return self.entry(self._real_path(path))

    def children(self, path: bytes) -> list[Entry]:
        found = self._transaction.staging.children(_names(self._real_path(path)))
        return [_node(name, found[name]) for name in sorted(found)]

    def _child(self, directory: bytes, name: bytes, path: bytes) -> Entry:
        try:
            item = self._transaction.staging.item((*_names(directory), name))
        except NotADirectory:
            raise NotADirectory(f"{self._name(directory)} is not a directory") from None
        except NotFound:
            raise self._missing(path) from None
        return _node(name, item)

    def _name(self, path: bytes) -> str:
        spec = self._transaction.spec
        return f"{spec.repo}@{spec.rev}/{decoded_path(path)}"


class StagedBytes:
    """Reads files of a transaction from the store."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def read(self, node: Entry, first: int, end: int) -> bytes:
        """See FileBytes."""
        assert isinstance(node, StagedNode) and node.entry is not None
        return self._transaction.staging.read(node.entry, first, end)

    def tried_many(self, wanted: Sequence[tuple[Entry, Span]]) -> list[bytes | LodefsError]:
        """See FileBytes."""
        results: list[bytes | LodefsError] = []
        for node, span in wanted:
            try:
                results.append(self.read(node, *bounds(span, node.size_bytes)))
            except LodefsError as error:
                results.append(error)
        return results


def _names(path: bytes) -> tuple[bytes, ...]:
    return tuple(split_path(path))


def _node(name: bytes, item: Item) -> StagedNode:
    if not isinstance(item, TreeEntry):
        return StagedNode(0, 0, name, int(Kind.DIRECTORY), False, 0, b"", b"")  # noqa: FBT003
    kind, digest = int(item.kind), item.digest
    executable, size_bytes = item.executable, item.size_bytes
    return StagedNode(0, 0, name, kind, executable, size_bytes, digest, item.target, entry=item)

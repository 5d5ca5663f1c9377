"""A node's cache made by hand: files of a DictTree that a test completes, holds, and evicts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache import name_rows
from lodefs.chunkstore.nodecache.kv_rocks import RocksKeyValues
from lodefs.chunkstore.nodecache.layout import FileKind, FileRow, FileState
from lodefs.chunkstore.protocol.wire import CachePlace, Entry
from tests.support.mount.dict_tree import DictTree, entry_of


class NodeCache:
    """The cache in ``directory``, which is made; ``close`` gives its index up."""

    def __init__(self, directory: Path, tree: DictTree) -> None:
        for name in (layout.INDEX_DIR, layout.SLABS_DIR, layout.FLAT_DIR):
            (directory / name).mkdir(parents=True)
        (directory / layout.VERSION_FILE).write_text(layout.VERSION_TEXT)
        self.place = CachePlace(os.fsencode(directory), layout.VERSION)
        self.numbers: dict[int, int] = {}  # of the flat file of each inode
        self._directory = directory
        self._tree = tree
        self._count = 0
        self._kv = RocksKeyValues(directory / layout.INDEX_DIR)
        self._snapshot = snapshot = name_rows.snapshot_key(bytes.fromhex(tree.snapshot.commit))
        self._kv.write(
            [
                (
                    name_rows.entry_key(snapshot, ino),
                    name_rows.encode_entry_row(node.parent, entry_of(node)),
                )
                for ino, node in tree.nodes.items()
                if node.size_bytes >= layout.FLAT_SIZE_BYTES_MIN
            ]
        )

    def complete(self, ino: int) -> None:
        """From now on a file has a complete flat file."""
        node = self._tree.nodes[ino]
        self._count += 1
        number = self._count
        path = layout.flat_path(self._directory, node.content, number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self._tree.data[ino])
        size = node.size_bytes
        row = FileRow(
            FileKind.FLAT, FileState.COMPLETE, layout.DURABLE, node.content, size, size, 0
        )
        self._kv.write(
            [
                (layout.file_key(number), layout.encode_file_row(row)),
                (layout.flat_key(node.content), number.to_bytes(4, "little")),
            ]
        )
        self.numbers[ino] = number

    def hold(self, directory: int, inos: Iterable[int], *, gap_bytes: int = 0) -> None:
        """From now on a directory's children have rows, and small files of it lie in a slab, in
        that order, so many bytes apart."""
        names = [self._tree.nodes[ino] for ino in self._tree.names[directory]]
        prefix = name_rows.children_prefix(self._snapshot, directory)
        rows: list[tuple[bytes, bytes | None]] = [
            (prefix + page[-1].name, name_rows.encode_page(page)) for page in _pages(names)
        ]
        self._count += 1
        path = layout.slab_path(self._directory, self._count)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as slab:
            for ino in inos:
                node = self._tree.nodes[ino]
                place = layout.encode_chunk_row(self._count, slab.tell(), node.size_bytes)
                rows.append((layout.chunk_key(node.digest), place))
                entry = name_rows.encode_entry_row(node.parent, entry_of(node))
                rows.append((name_rows.entry_key(self._snapshot, ino), entry))
                slab.write(self._tree.data[ino] + bytes(gap_bytes))
            end = slab.tell()
        row = FileRow(FileKind.SLAB, FileState.COMPLETE, layout.DURABLE, bytes(32), end, end, 0)
        rows.append((layout.file_key(self._count), layout.encode_file_row(row)))
        self._kv.write(rows)

    def cut_slabs(self, size_bytes: int) -> None:
        """Somebody shortens all slabs."""
        for path in (self._directory / layout.SLABS_DIR).glob("*/*"):
            os.truncate(path, size_bytes)

    def cut(self, ino: int, size_bytes: int) -> None:
        """Somebody shortens the flat file of a file."""
        content = self._tree.nodes[ino].content
        os.truncate(layout.flat_path(self._directory, content, self.numbers[ino]), size_bytes)

    def evict(self, ino: int) -> None:
        """From now on it has none."""
        number, content = self.numbers.pop(ino), self._tree.nodes[ino].content
        self._kv.write([(layout.flat_key(content), None), (layout.file_key(number), None)])
        layout.flat_path(self._directory, content, number).unlink()

    def close(self) -> None:
        """Nothing is written any more."""
        self._kv.close()


def _pages(nodes: list[Entry]) -> Iterator[list[Entry]]:
    left = iter(nodes)
    while page := list(islice(left, name_rows.PAGE_NODES)):
        yield page

"""Small stores made by hand: every pack, segment and tree as a test wants it.

No processes, no index, the same bytes every time. What push makes of a real directory is tested
with push.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.index_shard import encode_shard
from lodefs.chunkstore.format.metadata import Metadata
from lodefs.chunkstore.format.names import ChunkId, CommitId, PackId, digest_of
from lodefs.chunkstore.format.tree import (
    Kind,
    Segment,
    TreeEntry,
    encode_tree,
    symlink,
    tree_digest,
)
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store, create_store
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.packs import PackBuilder


@dataclass(frozen=True, slots=True)
class Link:
    """A symlink in a Files."""

    target: bytes


@dataclass(frozen=True, slots=True)
class Program:
    """An executable file in a Files."""

    content: bytes


# Paths to contents; None: a directory (those above other paths need no mention)
Files = Mapping[bytes, bytes | Link | Program | None]


def memory_store() -> Store:
    """An empty store in memory."""
    return create_store(MemoryObjects())


class Handmade:
    """Writes snapshots into a store: chunks of ``chunk_size_bytes``, packs of ``pack_chunks``.

    Chunks that this object wrote before are used again, also inside one file.
    """

    def __init__(self, store: Store, *, chunk_size_bytes: int = 1000, pack_chunks: int = 8) -> None:
        self.store = store
        self._chunk_size_bytes = chunk_size_bytes
        self._pack_chunks = pack_chunks
        self._places: dict[ChunkId, tuple[PackId, int]] = {}
        self.metadata: Metadata = ()  # of the next commits

    def commit(
        self, repo: str, files: Files, *, branch: str = "main", message: str = "by hand"
    ) -> CommitId:
        """Commits ``files`` on top of a branch."""
        self._write_chunks(
            [content for content in map(_content, files.values()) if content is not None]
        )
        nested = _nested(files)
        root = self._directory(b"", nested)
        counts = (
            sum(1 for value in files.values() if value is not None),
            _directories(nested),
            sum(len(_content(value) or b"") for value in files.values()),
        )
        return self.commit_root(repo, root, branch=branch, message=message, counts=counts)

    def commit_root(
        self,
        repo: str,
        root: TreeEntry,
        *,
        branch: str = "main",
        message: str = "by hand",
        counts: tuple[int, int, int] = (0, 1, 0),
    ) -> CommitId:
        """Commits a root directory, right or wrong; ``counts``: files, directories, bytes."""
        refs = self.store.refs(repo)
        latest = refs.latest(BRANCHES, branch)
        parents = (latest.commit,) if latest is not None and latest.commit is not None else ()
        commit = Commit(
            root=root,
            parents=parents,
            author="nobody",
            time_s=1_700_000_000,
            message=message,
            files=counts[0],
            directories=counts[1],
            size_bytes=counts[2],
            large=Large(0, 0),
            metadata=self.metadata,
        )
        commit_id = self.store.put_commit(repo, commit)
        sequence = None if latest is None else latest.sequence
        refs.advance(BRANCHES, branch, commit_id, expected_sequence=sequence)
        return commit_id

    def entry(self, name: bytes, content: bytes, *, executable: bool = False) -> TreeEntry:
        """The entry of a file whose chunks are written."""
        segments: list[Segment] = []
        for chunk in self._cut(content):
            pack, number = self._places[ChunkId(digest_of(chunk))]
            last = segments[-1] if segments else None
            if last and last.pack == pack and last.first + last.count == number:
                grown = last.size_bytes + len(chunk)
                segments[-1] = Segment(pack, last.first, last.count + 1, grown)
            else:
                segments.append(Segment(pack, number, 1, len(chunk)))
        size_bytes = len(content)
        digest = digest_of(content)
        return TreeEntry(name, Kind.FILE, executable, size_bytes, digest, tuple(segments))

    def file(self, name: bytes, content: bytes, *, executable: bool = False) -> TreeEntry:
        """The entry of a file; its chunks are written where they are not yet."""
        self._write_chunks([content])
        return self.entry(name, content, executable=executable)

    def tree(self, name: bytes, entries: Sequence[TreeEntry]) -> TreeEntry:
        """The entry of a directory that holds ``entries``; its tree is written."""
        data = encode_tree(entries)
        self._write_chunks([data])
        entry = self.entry(name, data)
        return replace(entry, kind=Kind.DIRECTORY, digest=tree_digest(entries))

    def _directory(self, name: bytes, nested: dict[bytes, object]) -> TreeEntry:
        entries = []
        for child, value in sorted(nested.items()):
            if isinstance(value, dict):
                entries.append(self._directory(child, value))
            elif isinstance(value, Link):
                entries.append(symlink(child, value.target))
            elif isinstance(value, Program):
                entries.append(self.entry(child, value.content, executable=True))
            elif isinstance(value, bytes):
                entries.append(self.entry(child, value))
        return self.tree(name, entries)

    def _cut(self, content: bytes) -> list[bytes]:
        step = self._chunk_size_bytes
        return [content[start : start + step] for start in range(0, len(content), step)]

    def _write_chunks(self, contents: Sequence[bytes]) -> None:
        builder = PackBuilder()
        new: dict[ChunkId, int] = {}
        for content in contents:
            for chunk in self._cut(content):
                chunk_id = ChunkId(digest_of(chunk))
                if chunk_id in self._places or chunk_id in new:
                    continue
                if builder.count >= self._pack_chunks:
                    self._finish(builder, new)
                    builder, new = PackBuilder(), {}
                codec, stored = compress(chunk)
                new[chunk_id] = builder.add(chunk_id, codec, bytes(stored), len(chunk))
        if new:
            self._finish(builder, new)

    def _finish(self, builder: PackBuilder, new: dict[ChunkId, int]) -> None:
        pack = builder.finish()
        objects: ObjectStore = self.store.objects
        objects.put(keys.pack(pack.pack_id), pack.buffers)
        objects.put(keys.shard(pack.pack_id.hex()[:32]), [encode_shard([pack.index])])
        self._places |= {chunk_id: (pack.pack_id, n) for chunk_id, n in new.items()}


def _content(value: bytes | Link | Program | None) -> bytes | None:
    return (
        value.content if isinstance(value, Program) else value if isinstance(value, bytes) else None
    )


def _nested(files: Files) -> dict[bytes, object]:
    root: dict[bytes, object] = {}
    for path, value in files.items():
        *above, name = path.split(b"/")
        place = root
        for part in above:
            below = place.setdefault(part, {})
            assert isinstance(below, dict)
            place = below
        if value is None:
            place.setdefault(name, {})
        else:
            place[name] = value
    return root


def _directories(nested: dict[bytes, object]) -> int:
    return 1 + sum(_directories(below) for below in nested.values() if isinstance(below, dict))

"""Stores that somebody with write access to the bucket damaged on purpose.

Each attack is a repository of its own in a directory store, beside a good one. Huge objects are
sparse files, which take no disk.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from lodefs.chunkstore.format import keys, tree
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.names import ChunkId, CommitId, Digest, PackId, digest_of
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.chunkstore.format.tree import EMPTY_DIGEST, Kind, Segment, TreeEntry, encode_tree
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import create_store
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.packs import PackBuilder

MIB = 1024 * 1024
HUGE_SIZE_BYTES = 3 * 1024 * MIB
CHUNK_SIZE_BYTES = 16 * MIB  # the largest that a pack can hold
GOOD_REPO, GOOD_PATH, GOOD = "good", "a/b", b"right" * 100_000
ATTACKED_PATH = "d/f"  # asked of every hostile repository
NAMED = 59  # times that a bomb names its chunk


class HostileStore:
    """A directory store with a good repository; the methods add hostile ones, named ``repo``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = create_store(DirectoryObjects(root))
        self._hand = Handmade(self.store, chunk_size_bytes=100_000)
        self._hand.commit(GOOD_REPO, {GOOD_PATH.encode(): GOOD})

    def path(self, key: str) -> Path:
        """Where an object lies, its folder made."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def sparse(self, key: str, *, tail: bytes = b"", size_bytes: int = HUGE_SIZE_BYTES) -> None:
        """An object of zeros that ends with ``tail``."""
        with self.path(key).open("wb") as file:
            file.truncate(size_bytes - len(tail))
            file.seek(0, os.SEEK_END)
            file.write(tail)

    # what a revision is

    def huge_ref(self, repo: str) -> None:
        """A branch that is an object of 3 GB."""
        self.sparse(keys.ref_entry(repo, BRANCHES, "main", 0))

    def huge_commit(self, repo: str) -> None:
        """A branch at a commit of 3 GB."""
        commit_id = CommitId(digest_of(repo.encode()))
        self.store.refs(repo).advance(BRANCHES, "main", commit_id, expected_sequence=None)
        self.sparse(keys.commit(repo, commit_id))

    # packs

    def huge_pack(self, repo: str) -> None:
        """A tree in a pack of 3 GB that ends with a trailer for an index of all of that."""
        chunks = 2**32 - 1
        self.pack_that_claims(repo, chunks, min(41 * chunks, 2**32 - 1))

    def pack_that_claims(self, repo: str, chunks: int, index_size_bytes: int) -> None:
        """A tree in a pack of 3 GB with a trailer that claims so much."""
        pack_id = PackId(digest_of(repo.encode()))
        head = struct.pack("<8sHHIQII", b"LODEPACK", 1, 0, chunks, 0, index_size_bytes, 0)
        self.sparse(keys.pack(pack_id), tail=head + digest_of(head))
        self.commit(repo, [Segment(pack_id, 0, 1, 1000)])

    def most_chunks(self, repo: str) -> None:
        """A tree in a pack, right in itself, of as many chunks as a pack may have."""
        builder = PackBuilder()
        for n in range(PACK_CHUNKS_LIMIT - 1):
            data = b"%s %d" % (repo.encode(), n)
            builder.add(ChunkId(digest_of(data)), 0, data, len(data))
        finished = builder.finish()
        self.store.objects.put(keys.pack(finished.pack_id), finished.buffers)
        self.commit(repo, [Segment(finished.pack_id, 0, 1, finished.index.raw_sizes[0])])

    def fifo_pack(self, repo: str) -> None:
        """A tree in a pack that is a FIFO, which nobody writes to."""
        pack_id = PackId(digest_of(repo.encode()))
        os.mkfifo(self.path(keys.pack(pack_id)))
        self.commit(repo, [Segment(pack_id, 0, 1, 1000)])

    # trees

    def bomb(self, repo: str, named: int = NAMED) -> None:
        """A tree of two tiny zstd chunks, one of them named ``named`` times: 16 MiB each."""
        first = b"\1" + bytes(CHUNK_SIZE_BYTES - 1)
        pack_id = self.pack([first, bytes(CHUNK_SIZE_BYTES)])
        segments = [Segment(pack_id, n, 1, CHUNK_SIZE_BYTES) for n in (0, *[1] * named)]
        self.commit(repo, segments)

    def many_entries(self, repo: str) -> None:
        """A tree, right but for its number of entries, that packs well."""
        self.stored_tree(repo, _empty_files(tree.ENTRIES_MAX + 200_000))

    def long_columns(self, repo: str) -> None:
        """A tree of one group of 16 MiB that is all numbers, each two bytes."""
        numbers = (tree.GROUP_SIZE_BYTES_MAX - 100) // 3
        column = b"\xdd" + struct.pack(">I", numbers) + b"\xcd\x7f\xff" * numbers
        group = b"\x96\xc4\x01a\xc4\x01\x09\x90\xc4\x00\xc4\x00" + column
        self.stored_tree(repo, b"\1" + tree._uvarint(len(group)) + group + b"\0")

    def stored_tree(self, repo: str, data: bytes) -> None:
        """A tree of these bytes."""
        chunks = [data[at : at + CHUNK_SIZE_BYTES] for at in range(0, len(data), CHUNK_SIZE_BYTES)]
        self.commit(repo, [Segment(self.pack(chunks), 0, len(chunks), len(data))])

    def pack(self, chunks: list[bytes]) -> PackId:
        """A pack of these chunks."""
        builder = PackBuilder()
        for chunk in chunks:
            codec, stored = compress(chunk)
            builder.add(ChunkId(digest_of(chunk)), codec, bytes(stored), len(chunk))
        finished = builder.finish()
        self.store.objects.put(keys.pack(finished.pack_id), finished.buffers)
        return finished.pack_id

    def commit(self, repo: str, segments: list[Segment]) -> None:
        """A commit with a root whose directory ``d`` lies in these segments."""
        size_bytes = sum(segment.size_bytes for segment in segments)
        digest = Digest(digest_of(repo.encode()))
        below = TreeEntry(b"d", Kind.DIRECTORY, False, size_bytes, digest, tuple(segments))
        self._hand.commit_root(repo, replace(self._hand.tree(b"", [below])))

    def attacks(self) -> Iterator[tuple[str, Callable[[str], None]]]:
        """All attacks, by name."""
        yield "huge-ref", self.huge_ref
        yield "huge-commit", self.huge_commit
        yield "huge-pack", self.huge_pack
        million = 1024 * 1024
        yield "pack-of-a-million", lambda repo: self.pack_that_claims(repo, million, 41 * million)
        yield "most-chunks", self.most_chunks
        yield "fifo-pack", self.fifo_pack
        yield "bomb-960", self.bomb
        yield "bomb-128", lambda repo: self.bomb(repo, named=7)
        yield "many-entries", self.many_entries
        yield "long-columns", self.long_columns


@cache
def _empty_files(count: int) -> bytes:
    """The stored form of a directory of so many empty files: as small as entries can be."""
    groups = []
    for first in range(0, count, 2048):
        names = [b"%06x" % n for n in range(first, min(first + 2048, count))]
        found = [TreeEntry(name, Kind.FILE, digest=EMPTY_DIGEST) for name in names]
        groups.append(encode_tree(found)[1:-1])
    return b"".join((b"\1", *groups, b"\0"))

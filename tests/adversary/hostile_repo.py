"""Commits that lie: what somebody makes who may push to a store and wants others to read his bytes.

A chunk is named by its bytes and a pack by its chunks, so neither can lie. What lies is a tree: it
says which segments hold a file or directory of some digest, and the digest of the tree itself does
not cover that.

    lying_commit(
        store,
        "attacker/repo",
        {b"a": b"honest", b"d/b": b"more of it"},        # what the commit claims to hold
        {b"a": FileClaim(b"hostil"), b"d": TreeClaim({b"b": b"other"})},  # what lies behind it
    )
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import cut
from lodefs.chunkstore.format.index_shard import ShardPack, encode_shard
from lodefs.chunkstore.format.names import CommitId, PackId, digest_of
from lodefs.chunkstore.format.pack import pack_id_of_columns
from lodefs.chunkstore.format.tree import Segment, TreeEntry, symlink, tree_digest
from lodefs.chunkstore.repo.store import Store
from tests.support.chunkstore.handmade import Files, Handmade, Link, Program

CHUNK_SIZE_BYTES = 60_000
PACK_CHUNKS = 1000


@dataclass(frozen=True, slots=True)
class FileClaim:
    """A file whose entry has the digest of the honest content, and segments of ``behind``.

    Its size is that of ``behind`` (where that is another one, the directory's digest is another one
    too); with ``stretched`` that of the honest content, and the sizes of the segments lie too.
    """

    behind: bytes
    stretched: bool = False


@dataclass(frozen=True, slots=True)
class TreeClaim:
    """A directory whose entry has the digest of the honest one, and segments of the tree of
    ``behind``."""

    behind: Files


Claims = Mapping[bytes, FileClaim | TreeClaim]  # by path; b"" is the root


def lying_commit(
    store: Store, repo: str, entries: Files, claims: Claims, *, branch: str = "main"
) -> CommitId:
    """Commits to a branch what claims to be ``entries`` and is, at the paths of ``claims``, other
    bytes. Every chunk, pack, index shard and object is valid by itself."""
    liar = _Liar(Handmade(store, chunk_size_bytes=CHUNK_SIZE_BYTES, pack_chunks=PACK_CHUNKS))
    root = liar.directory(b"", b"", entries, claims)
    contents = [_content(value) for value in entries.values() if value is not None]
    counts = len(contents), 1, sum(map(len, contents))
    return liar.made.commit_root(repo, root, branch=branch, counts=counts)


def phantom_shard(store: Store, *contents: bytes) -> PackId:
    """Writes an index shard that lists the chunks of ``contents``, as a push cuts them, in a pack
    that is not in the store; its id."""
    ids, sizes = [], array("I")
    for content in contents:
        start = 0
        for end in cut(content, store.settings.chunking):
            ids.append(digest_of(content[start:end]))
            sizes.append(end - start)
            start = end
    joined = b"".join(ids)
    pack_id = pack_id_of_columns(joined, sizes)
    shard = encode_shard([ShardPack(pack_id, joined, sizes)])
    store.objects.put(keys.shard(f"phantom-{pack_id.hex()[:16]}"), [shard])
    return pack_id


@dataclass(frozen=True, slots=True)
class _Liar:
    made: Handmade

    def directory(self, path: bytes, name: bytes, entries: Files, claims: Claims) -> TreeEntry:
        """The entry of the directory at ``path``, which claims to hold ``entries``."""
        children = [
            self._child(path + b"/" + child if path else child, child, value, claims)
            for child, value in sorted(_nested(entries).items())
        ]
        claim = claims.get(path)
        if not isinstance(claim, TreeClaim):
            return self.made.tree(name, children)
        behind = self.directory(path, name, claim.behind, {})
        return replace(behind, digest=tree_digest(children))

    def _child(self, path: bytes, name: bytes, value: object, claims: Claims) -> TreeEntry:
        if isinstance(value, dict):
            return self.directory(path, name, value, claims)
        if isinstance(value, Link):
            return symlink(name, value.target)
        assert isinstance(value, bytes | Program)
        executable, content = isinstance(value, Program), _content(value)
        claim = claims.get(path)
        if claim is None:
            return self.made.file(name, content, executable=executable)
        assert isinstance(claim, FileClaim)
        behind = self.made.file(name, claim.behind, executable=executable)
        if claim.stretched:
            behind = _stretched(behind, len(content))
        return replace(behind, digest=digest_of(content))


def _stretched(entry: TreeEntry, size_bytes: int) -> TreeEntry:
    """The same segments, the last of which claims to be as long as to make up ``size_bytes``."""
    *others, last = entry.segments
    more = size_bytes - entry.size_bytes
    segments = *others, Segment(last.pack, last.first, last.count, last.size_bytes + more)
    return replace(entry, size_bytes=size_bytes, segments=segments)


def _content(value: object) -> bytes:
    if isinstance(value, Program):
        return value.content
    return value if isinstance(value, bytes) else b""


def _nested(files: Files) -> dict[bytes, object]:
    """The names of a directory: contents, and the Files of what is below."""
    found: dict[bytes, object] = {}
    for path, value in files.items():
        name, slash, below = path.partition(b"/")
        if slash:
            inner = found.setdefault(name, {})
            assert isinstance(inner, dict)
            inner[below] = value
        elif value is None:
            found.setdefault(name, {})
        else:
            found[name] = value
    return found

"""Hypothesis strategies: names, chunks, segments, entries, directories, packs, commits."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from lodefs.chunkstore.format.commit import Commit, Large
from lodefs.chunkstore.format.compression import compress
from lodefs.chunkstore.format.names import ChunkId, CommitId, Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import EMPTY_DIGEST, SAME_PACK, Kind, Segment, TreeEntry, symlink
from lodefs.chunkstore.push.fragmentation import join
from tests.support.chunkstore.packs import FinishedPack, PackBuilder

ids = st.binary(min_size=32, max_size=32)
digests = ids.map(Digest)
packs = st.one_of(
    st.just(SAME_PACK),
    st.sampled_from([PackId(bytes((n,)) * 32) for n in (1, 2, 255)]),
)

_name_bytes = st.integers(1, 255).filter(lambda byte: byte != ord("/"))
names = (
    st.one_of(
        st.sampled_from(
            [b"a", b"a.b", b"a-b", b"new\nline", b"\xff\xfe not UTF-8", b"n" * 255, "ü 漢".encode()]
        ),
        st.lists(_name_bytes, min_size=1, max_size=12).map(bytes),
    )
    .filter(lambda name: name not in (b".", b".."))
)  # fmt: skip
targets = st.lists(st.integers(1, 255), min_size=1, max_size=40).map(bytes)


_segment = st.builds(
    Segment,
    packs,
    st.one_of(st.integers(0, 9), st.integers(0, 2**20)),
    st.one_of(st.integers(1, 3), st.integers(1, 70), st.integers(1, 2**20)),
    st.one_of(st.integers(1, 300), st.integers(1, 2**60)),
)
segments = st.lists(_segment, min_size=1, max_size=4).map(join)


def _stored(
    name: st.SearchStrategy[bytes], kind: Kind, executable: st.SearchStrategy[bool]
) -> st.SearchStrategy[TreeEntry]:
    """Entries of a kind that have bytes: as many as their segments."""

    def sized(entry: TreeEntry) -> TreeEntry:
        return replace(entry, size_bytes=sum(segment.size_bytes for segment in entry.segments))

    nothing = st.just(0)
    return st.builds(TreeEntry, name, st.just(kind), executable, nothing, digests, segments).map(
        sized
    )


def files(name: st.SearchStrategy[bytes] = names) -> st.SearchStrategy[TreeEntry]:
    """Files that are not empty."""
    return _stored(name, Kind.FILE, st.booleans())


def entries(name: st.SearchStrategy[bytes] = names) -> st.SearchStrategy[TreeEntry]:
    """Entries of all kinds, in the form that decoding gives."""
    nothing = st.just(0)
    empty = st.builds(
        TreeEntry, name, st.just(Kind.FILE), st.booleans(), nothing, st.just(EMPTY_DIGEST)
    )
    directory = _stored(name, Kind.DIRECTORY, st.just(value=False))
    return st.one_of(files(name), empty, directory, st.builds(symlink, name, targets))


directories = st.lists(entries(), max_size=20, unique_by=lambda entry: entry.name).map(
    lambda found: sorted(found, key=lambda entry: entry.name)
)

# What compresses, what does not, and sizes around the limits of compression
chunks = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=9),
              st.integers(1, 400)),
)  # fmt: skip


def pack_of(raws: list[bytes]) -> FinishedPack:
    """A pack that holds these chunks in order."""
    builder = PackBuilder()
    for raw in raws:
        codec, stored = compress(raw)
        builder.add(ChunkId(digest_of(raw)), codec, stored, len(raw))
    return builder.finish()


chunk_lists = st.lists(chunks, min_size=1, max_size=8)

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_count = st.integers(0, 2**62)
commits = st.builds(
    Commit,
    root=_stored(st.just(b""), Kind.DIRECTORY, st.just(value=False)),
    parents=st.lists(ids.map(CommitId), max_size=2).map(tuple),
    author=_text,
    time_s=st.integers(-(2**40), 2**40),
    message=_text,
    files=_count,
    directories=_count,
    size_bytes=_count,
    large=st.builds(Large, _count, _count),
    metadata=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,9}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=20),
        max_size=3,
    ).map(lambda found: tuple(sorted(found.items()))),
)

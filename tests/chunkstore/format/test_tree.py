"""Trees: what goes in comes out; digests name content; hostile bytes are refused."""

from __future__ import annotations

import struct

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError, TooLarge, UnknownFormat
from lodefs.chunkstore.format import tree
from lodefs.chunkstore.format.chunking import ChunkingParams, cut
from lodefs.chunkstore.format.names import Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import (
    EMPTY_DIGEST,
    FILE_SEGMENTS_MAX,
    SAME_PACK,
    Kind,
    Segment,
    TreeEntry,
    decode_tree,
    encode_tree,
    symlink,
    tree_digest,
)
from lodefs.chunkstore.push.fragmentation import join
from tests.support.chunkstore import golden
from tests.support.chunkstore.strategies import directories, entries

OWN = PackId(b"\x09" * 32)
DATA = PackId(b"\x08" * 32)
D32 = Digest(b"d" * 32)


def moved(found: list[TreeEntry], before: PackId, after: PackId) -> list[TreeEntry]:
    """The entries with one pack's id changed in their segments."""

    def new(segment: Segment) -> Segment:
        return segment._replace(pack=after) if segment.pack == before else segment

    return [
        replace(entry, segments=join([new(segment) for segment in entry.segments]))
        for entry in found
    ]


def small_files(count: int) -> list[TreeEntry]:
    """Files of one chunk each that lie in a row in one pack."""
    return [
        TreeEntry(
            b"image_%07d.jpg" % n,
            Kind.FILE,
            size_bytes=1000 + n * 7919 % 50_000,
            digest=digest_of(b"%d" % n),
            segments=(Segment(DATA, n, 1, 1000 + n * 7919 % 50_000),),
        )
        for n in range(count)
    ]


@pytest.mark.slow
@given(directories)
def test_round_trip(found: list[TreeEntry]) -> None:
    """Entries come back by name; what lay in the tree's own pack lies in the pack told."""
    assert decode_tree(encode_tree(found[::-1]), OWN) == moved(found, SAME_PACK, OWN)


@pytest.mark.slow
@given(directories)
def test_own_pack_by_its_id(found: list[TreeEntry]) -> None:
    """Segments of the tree's own pack are stored as such, by whichever name they come."""
    own = PackId(b"\x01" * 32)
    data = encode_tree(found, own_pack=own)
    assert data == encode_tree(moved(found, own, SAME_PACK))
    assert decode_tree(data, OWN) == moved(moved(found, SAME_PACK, OWN), own, OWN)


@pytest.mark.slow
@given(st.lists(entries(st.integers(0, 10**6).map(b"%06d".__mod__)), min_size=1, max_size=2000,
                unique_by=lambda entry: entry.name))  # fmt: skip
def test_directories_of_many_groups(found: list[TreeEntry]) -> None:
    """Directories of several groups come back too."""
    ordered = sorted(found, key=lambda entry: entry.name)
    assert decode_tree(encode_tree(found), SAME_PACK) == ordered


def test_segments_that_follow_each_other_become_one() -> None:
    """Segments of a file that follow each other come back as one, of their sizes together."""
    split = TreeEntry(b"a", Kind.FILE, size_bytes=16, digest=D32,
                  segments=(Segment(DATA, 3, 2, 8), Segment(DATA, 5, 1, 1),
                            Segment(OWN, 0, 1, 3), Segment(OWN, 1, 1, 4)))  # fmt: skip
    joined = replace(split, segments=(Segment(DATA, 3, 3, 9), Segment(OWN, 0, 2, 7)))
    assert decode_tree(encode_tree([split]), OWN) == [joined]


def test_files_that_follow_each_other_keep_their_sizes() -> None:
    """Files of several segments, the second where the first ends: each has its own sizes."""
    first = TreeEntry(b"a", Kind.FILE, size_bytes=9, digest=D32,
                  segments=(Segment(DATA, 9, 1, 2), Segment(OWN, 0, 2, 7)))  # fmt: skip
    second = replace(first, name=b"b",
                     segments=(Segment(OWN, 2, 2, 5), Segment(DATA, 0, 1, 4)))  # fmt: skip
    folder = TreeEntry(b"aa", Kind.DIRECTORY, size_bytes=7, digest=D32,
                   segments=(Segment(DATA, 1, 1, 6), Segment(OWN, 7, 1, 1)))  # fmt: skip
    found = [first, folder, second]
    assert decode_tree(encode_tree(found), None) == found


@pytest.mark.slow
@given(directories)
def test_digest_is_of_the_content(found: list[TreeEntry]) -> None:
    """The digest does not depend on the order or on where bytes lie."""
    digest = tree_digest(found)
    nowhere = [replace(entry, segments=()) for entry in found]
    assert tree_digest(nowhere[::-1]) == digest
    resized = [
        replace(entry, size_bytes=1) if entry.kind is Kind.DIRECTORY else entry for entry in found
    ]
    assert tree_digest(resized) == digest


@pytest.mark.parametrize(
    "change",
    [
        {"name": b"b"},
        {"executable": True},
        {"size_bytes": 8},
        {"digest": Digest(bytes(32))},
        {"kind": Kind.DIRECTORY},
    ],
)
def test_digest_depends_on(change: dict[str, object]) -> None:
    """Name, mode, size, digest and kind of every entry are in the digest."""
    entry = TreeEntry(b"a", Kind.FILE, size_bytes=7, digest=D32)
    assert tree_digest([entry]) != tree_digest([replace(entry, **change)])


def test_digest_as_documented() -> None:
    """The digest is the BLAKE3 of what docs/format.md describes, and never changes."""
    found = golden.tree()
    encoded = b"lodefs tree 1\0"
    for entry in found:
        kind = entry.kind + 128 * entry.executable
        size = 0 if entry.kind is Kind.DIRECTORY else entry.size_bytes
        encoded += struct.pack("<BBQ", kind, len(entry.name), size) + entry.digest + entry.name
    assert tree_digest(found) == blake3(encoded).digest()
    assert (
        tree_digest(found).hex()
        == "b78e6f1061c4ed63d5ce371177f1260fdfb881dd515a9f9064a68310def3c535"
    )


def test_an_empty_directory() -> None:
    """A directory without entries takes two bytes."""
    assert encode_tree([]) == b"\x01\0"
    assert decode_tree(b"\x01\0", OWN) == []


def test_small_files_in_a_row_cost_no_segments() -> None:
    """A file costs its name, its digest, its size and two bytes; a tree 60 bytes once."""
    for count, each in ((1, 17 + 32 + 5 + 2), (400, 17 + 32 + 5 + 2), (20_000, 17 + 32 + 5 + 2)):
        assert len(encode_tree(small_files(count))) <= 60 + count * each


@pytest.mark.slow
def test_a_change_in_a_huge_directory_stays_local() -> None:
    """One file changed and one added among 50,000: a few chunks of the stored form are new."""
    params = ChunkingParams()

    def chunks(found: list[TreeEntry]) -> dict[bytes, int]:
        data = encode_tree(found)
        ends = cut(data, params)
        pieces = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return {digest_of(piece): len(piece) for piece in pieces}

    found = small_files(50_000)
    before = chunks(found)
    moved = found[30_000].segments[0]._replace(pack=OWN, first=0)
    found[30_000] = replace(found[30_000], digest=D32, segments=(moved,))
    added = TreeEntry(b"image_0010000.png", Kind.FILE, size_bytes=5, digest=D32,
                  segments=(Segment(OWN, 1, 1, 5),))  # fmt: skip
    after = chunks([*found, added])
    new = [size for digest, size in after.items() if digest not in before]
    assert sum(new) < 6 * params.size_bytes_max
    assert len(new) <= 6 < len(before) / 4


BAD_ENTRIES = [
    TreeEntry(b"", Kind.FILE, digest=EMPTY_DIGEST),
    TreeEntry(b".", Kind.FILE, digest=EMPTY_DIGEST),
    TreeEntry(b"..", Kind.FILE, digest=EMPTY_DIGEST),
    TreeEntry(b"a/b", Kind.FILE, digest=EMPTY_DIGEST),
    TreeEntry(b"a\0b", Kind.FILE, digest=EMPTY_DIGEST),
    TreeEntry(b"n" * 256, Kind.FILE, digest=EMPTY_DIGEST),
    TreeEntry(b"a", Kind.FILE, digest=D32),
    TreeEntry(b"a", Kind.FILE, size_bytes=5, digest=D32),
    TreeEntry(b"a", Kind.FILE, size_bytes=-5, digest=D32, segments=(Segment(DATA, 0, 1, -5),)),
    TreeEntry(
        b"a", Kind.FILE, size_bytes=2**63, digest=D32, segments=(Segment(DATA, 0, 1, 2**63),)
    ),
    TreeEntry(
        b"a", Kind.FILE, size_bytes=5, digest=Digest(b"x"), segments=(Segment(DATA, 0, 1, 5),)
    ),
    TreeEntry(b"a", Kind.FILE, size_bytes=5, digest=D32, segments=(Segment(DATA, -1, 1, 5),)),
    TreeEntry(b"a", Kind.FILE, size_bytes=5, digest=D32, segments=(Segment(DATA, 0, 0, 5),)),
    TreeEntry(b"a", Kind.FILE, digest=EMPTY_DIGEST, segments=(Segment(DATA, 0, 1, 0),)),
    TreeEntry(b"a", Kind.DIRECTORY, digest=D32),
    TreeEntry(b"a", Kind.DIRECTORY, executable=True, size_bytes=2, digest=D32,
          segments=(Segment(DATA, 0, 1, 2),)),
    TreeEntry(b"a", Kind.FILE, size_bytes=5, digest=D32, segments=(Segment(DATA, 0, 1, 6),)),
    TreeEntry(b"a", Kind.FILE, size_bytes=5, digest=D32,
          segments=(Segment(DATA, 0, 1, 5), Segment(OWN, 0, 1, 0))),
    replace(symlink(b"a", b"b"), digest=D32),
    replace(symlink(b"a", b"b"), executable=True),
    replace(symlink(b"a", b"b"), size_bytes=2),
    symlink(b"a", b""),
    symlink(b"a", b"b\0"),
    symlink(b"a", b"b" * 4096),
]  # fmt: skip


@pytest.mark.parametrize("entry", BAD_ENTRIES, ids=range(len(BAD_ENTRIES)))
def test_impossible_entries_are_not_encoded(entry: TreeEntry) -> None:
    """What would not come back as it was is refused before it is written."""
    with pytest.raises(InvalidInput):
        encode_tree([entry])


def test_a_name_twice() -> None:
    """A directory cannot hold a name twice."""
    entry = TreeEntry(b"a", Kind.FILE, digest=EMPTY_DIGEST)
    with pytest.raises(InvalidInput, match="twice"):
        encode_tree([entry, entry])


def group(**columns: object) -> bytes:
    """A tree of one group: an executable file b and a symlink s, some columns changed."""
    row: dict[str, object] = {
        "names": b"b\0s",
        "tags": bytes((1 | 4 | 2 << 3, 3)),
        "sizes": [70_000],
        "digests": D32,
        "packs": DATA,
        "runs": [1, 5, 2],
        "tree_runs": [],
        "counts": [],
        "parts": [],
        "targets": [b"t"],
    }
    encoded = msgspec.msgpack.encode(list((row | columns).values()))
    assert len(encoded) < 16_384
    return bytes((1, len(encoded) & 127 | 128, len(encoded) >> 7)) + encoded + b"\0"


def test_the_group_is_good_unchanged() -> None:
    """The next test changes columns of what is a right tree."""
    segments = (Segment(DATA, 5, 2, 70_000),)
    file = TreeEntry(
        b"b", Kind.FILE, executable=True, size_bytes=70_000, digest=D32, segments=segments
    )
    assert decode_tree(group(), OWN) == [file, symlink(b"s", b"t")]
    parts = (Segment(DATA, 5, 1, 69_999), Segment(OWN, 0, 1, 1))
    apart = group(runs=[1, 5, 1, 0, 0, 1], parts=[69_999])
    assert decode_tree(apart, OWN) == [replace(file, segments=parts), symlink(b"s", b"t")]


@pytest.mark.parametrize(
    "columns",
    [
        {"names": b"s\0b"},
        {"names": b"s\0s"},
        {"names": b"b"},
        {"names": b"b\0s\0t"},
        {"names": b"\0s"},
        {"names": b".\0s"},
        {"names": b"..\0s"},
        {"names": b"a/b\0s"},
        {"names": b"b\0" + b"s" * 256},
        {"names": 5},
        {"tags": bytes((1 | 4 | 2 << 3, 3 | 4))},  # an executable symlink
        {"tags": bytes((1 | 4 | 2 << 3, 3 | 8))},  # a symlink of one chunk
        {"tags": bytes((2 | 4 | 2 << 3, 3))},  # an executable directory
        {"tags": bytes((2 << 3, 3))},  # of no kind
        {"tags": bytes((1 | 31 << 3, 3))},  # no count
        {"tags": bytes((1 | 31 << 3, 3)), "counts": [3]},
        {"tags": bytes((1 | 31 << 3, 3)), "counts": [-1]},
        {"tags": bytes((1 | 31 << 3, 3)), "counts": [2**60]},
        {"tags": bytes((1, 3))},  # bytes, but no chunks
        {"tags": bytes((2, 3)), "sizes": [0]},  # a directory of no bytes
        {"tags": bytes((1 | 1 << 3, 3))},  # a chunk of no entry
        {"tags": bytes((2 | 2 << 3, 3))},  # a directory with a file's chunks
        {"sizes": []},
        {"sizes": [-1]},
        {"sizes": [0]},
        {"sizes": [2**63]},
        {"sizes": [1, 2]},
        {"sizes": ["1"]},
        {"digests": b""},
        {"digests": D32 + D32},
        {"packs": b""},
        {"packs": DATA[:-1]},
        {"packs": DATA + b"x"},
        {"runs": []},
        {"runs": [1, 5]},
        {"runs": [2, 5, 2]},
        {"runs": [-1, 5, 2]},
        {"runs": [1, -5, 2]},
        {"runs": [1, 5, 0]},
        {"runs": [1, 5, 2, 1, 0, 0]},
        {"runs": [1, 5, -2]},
        {"runs": [1, 5, 3]},
        {"runs": [1, 5, 2**62]},
        {"runs": [1, 5, 2, 1, 0, 1]},
        {"runs": [1, 5, 2**64 - 1]},
        {"tree_runs": [1, 5, 2]},
        {"counts": [1]},
        {"parts": [1]},  # of a file of one segment
        *(
            {"runs": [1, 5, 1, 0, 0, 1], "parts": parts}
            for parts in ([], [0], [-1], [70_000], [2**64 - 1], [1, 1], [69_999, 1])
        ),
        {"targets": []},
        {"targets": [b"t", b"t"]},
        {"targets": [b""]},
        {"targets": [b"t\0"]},
        {"targets": [b"t" * 4096]},
        {"more": []},
    ],
    ids=str,
)
def test_impossible_columns(columns: dict[str, object]) -> None:
    """Names, kinds, sizes, runs and counts that cannot be are Corrupt."""
    with pytest.raises(Corrupt):
        decode_tree(group(**columns), OWN)


def test_a_tree_in_several_packs_has_no_own_pack() -> None:
    """A form whose chunks lie in several packs comes back if it names all packs by their ids."""
    file = replace(small_files(1)[0], segments=(Segment(SAME_PACK, 0, 1, 1000),))
    assert decode_tree(encode_tree(small_files(3)), None) == small_files(3)
    with pytest.raises(Corrupt, match="several packs"):
        decode_tree(encode_tree([file]), None)


def test_names_must_grow_from_group_to_group() -> None:
    """A second group whose names do not follow the first's is Corrupt."""
    one = group()[1:-1]
    with pytest.raises(Corrupt, match="after"):
        decode_tree(b"\x01" + one + one + b"\0", OWN)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"\x01\x05abc", b"\x01\0x", b"\x01\xff\xff\xff\xff\xff\xff", b"\x01\x01\xc1\0"],
)
def test_bytes_that_are_no_tree(data: bytes) -> None:
    """Bytes that are cut off, go on, or are no groups are Corrupt."""
    with pytest.raises(Corrupt):
        decode_tree(data, OWN)


def test_newer_version() -> None:
    """A tree of a newer lodefs is named as such."""
    with pytest.raises(UnknownFormat, match="newer lodefs"):
        decode_tree(b"\x02" + group()[1:], OWN)


@pytest.mark.slow
@given(directories, st.data())
def test_damage_never_gives_the_same_digest(found: list[TreeEntry], data: st.DataObject) -> None:
    """A flipped bit is refused, or gives entries that differ, or are in other places."""
    encoded = bytearray(encode_tree(found))
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    try:
        changed = decode_tree(encoded, SAME_PACK)
    except LodefsError:
        return
    assert changed != found


@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    """Any bytes are a tree or raise an error of lodefs."""
    try:
        found = decode_tree(b"\x01" + data, OWN)
    except LodefsError:
        return
    assert decode_tree(encode_tree(found, own_pack=OWN), OWN) == found


def test_bounds_of_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree with more entries or bytes, or a larger group, than readers take is refused by who
    would write it, with the way out, and by who reads it, before more is held."""
    found = small_files(100)
    data = encode_tree(found)
    for name, value in (("ENTRIES_MAX", 99), ("GROUP_SIZE_BYTES_MAX", 50)):
        with monkeypatch.context() as patch:
            patch.setattr(tree, name, value)
            with pytest.raises(InvalidInput, match="spread its files over several directories"):
                encode_tree(found)
            with pytest.raises(TooLarge):
                decode_tree(data, SAME_PACK)
    monkeypatch.setattr(tree, "SIZE_BYTES_MAX", len(data) - 1)
    with pytest.raises(InvalidInput, match=rf"a tree of {len(data)} bytes"):
        encode_tree(found)


def test_a_group_ends_after_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries with very many segments are cut into several groups, each below the bound, and come
    back as they were."""
    monkeypatch.setattr(tree, "_GROUP_SEGMENTS_MAX", 20)
    names = [b"a%d" % number for number in range(8)]
    found = [
        TreeEntry(
            name,
            Kind.FILE,
            size_bytes=100,
            digest=digest_of(name),
            segments=tuple(Segment(PackId(bytes([n + 1]) * 32), 2 * n, 1, 10) for n in range(10)),
        )
        for name in names
    ]
    assert [len(group) for group in tree._groups(found)] == [2, 2, 2, 2]
    assert decode_tree(encode_tree(found), SAME_PACK) == found


def test_digest_of_many_entries() -> None:
    """The digest of more entries than are hashed at once is that of all their rows."""
    found = small_files(5000)
    rows = [(entry.name, entry.digest) for entry in found]
    expected = tree.files_digest(
        [name for name, _ in rows],
        [tree.FILE_ROW] * len(rows),
        [entry.size_bytes for entry in found],
        b"".join(digest for _, digest in rows),
        [],
    )
    assert tree_digest(found[::-1]) == expected


def test_more_parts_than_any_file_has() -> None:
    """A group of a few MB that claims millions of runs is refused before they are made, and a file
    of so many parts is not written."""
    runs = [0, 0, 1] + [0, -1, 1] * (3 * FILE_SEGMENTS_MAX)
    count = len(runs) // 3
    columns = [b"f", bytes([1 | 31 << 3]), [count], b"D" * 32, b"", runs, [], [count]]
    group = msgspec.msgpack.encode([*columns, [1] * (count - 1)])
    size = len(group)
    data = bytes([1, size & 127 | 128, size >> 7 & 127 | 128, size >> 14 & 127 | 128, size >> 21])
    with pytest.raises(TooLarge, match="runs"):
        decode_tree(data + group + b"\0", PackId(bytes(32)))
    packs = (PackId(bytes(32)), PackId(b"x" * 32))
    segments = tuple(Segment(packs[n % 2], n, 1, 1) for n in range(FILE_SEGMENTS_MAX + 1))
    entry = TreeEntry(b"f", Kind.FILE, False, len(segments), Digest(b"D" * 32), segments)
    with pytest.raises(InvalidInput, match="more parts"):
        encode_tree([entry])

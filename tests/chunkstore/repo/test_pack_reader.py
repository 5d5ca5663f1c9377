"""Reading packs: few requests, every byte verified, packs that change, what is missing."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lodefs.chunkstore.errors import Changed, Corrupt, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.compression import RAW
from lodefs.chunkstore.format.names import ChunkId, Digest, PackId, digest_of
from lodefs.chunkstore.format.tree import (
    EMPTY_DIGEST,
    SAME_PACK,
    Kind,
    Segment,
    TreeEntry,
    encode_tree,
    symlink,
    tree_digest,
)
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.repo import pack_reader
from lodefs.chunkstore.repo.pack_reader import LostPack, PackReader
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.chunkstore.packs import FinishedPack, PackBuilder
from tests.support.chunkstore.strategies import chunk_lists, pack_of

RAWS = [b"%d " % n * 50 for n in range(20)]


class Objects(MemoryObjects):
    """Notes the ranges that are read, and can spoil what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[int, int | None]] = []
        self.spoil = 0  # so many answers more have a wrong byte

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.gets.append((offset, size))
        part = super().get(key, offset=offset, size=size, if_match=if_match)
        if self.spoil:
            self.spoil -= 1
            data = bytearray(part.data)
            data[-1] ^= 1
            return structs.replace(part, data=bytes(data))
        return part

    def put_pack(self, pack: FinishedPack) -> PackId:
        self.put(keys.pack(pack.pack_id), pack.buffers)
        return pack.pack_id


def uncompressed(raws: list[bytes]) -> FinishedPack:
    """The pack of the same id as pack_of's, in other bytes."""
    builder = PackBuilder()
    for raw in raws:
        builder.add(ChunkId(digest_of(raw)), RAW, raw, len(raw))
    return builder.finish()


def file_of(raws: list[bytes], *segments: Segment) -> TreeEntry:
    content = b"".join(raws)
    return TreeEntry(b"file", Kind.FILE, size_bytes=len(content), digest=digest_of(content),
                 segments=segments)  # fmt: skip


def segment_of(pack_id: PackId, first: int, raws: list[bytes]) -> Segment:
    """Of all ``raws``, the first of which is number ``first`` in the pack."""
    return Segment(pack_id, first, len(raws), sum(len(raw) for raw in raws))


def put_tree(objects: Objects, entries: list[TreeEntry], name: bytes = b"dir") -> TreeEntry:
    """Stores a tree alone in a pack, cut into chunks of 100 bytes; gives its entry."""
    data = encode_tree(entries)
    pieces = [data[n : n + 100] for n in range(0, len(data), 100)]
    segment = segment_of(objects.put_pack(pack_of(pieces)), 0, pieces)
    return TreeEntry(name, Kind.DIRECTORY, size_bytes=len(data), digest=tree_digest(entries),
                 segments=(segment,))  # fmt: skip


@pytest.fixture
def objects() -> Objects:
    return Objects()


@given(chunk_lists, st.integers(0, 7), st.integers(0, 8))
def test_read(raws: list[bytes], first: int, count: int) -> None:
    """Consecutive chunks come back by one ranged GET."""
    objects = Objects()
    reader = PackReader(objects)
    pack_id = objects.put_pack(pack_of(raws))
    assert len(reader.index(pack_id)) == len(raws)
    objects.gets.clear()
    if first + count > len(raws):
        with pytest.raises(Corrupt, match="are not in it"):
            reader.read(pack_id, first, count)
    else:
        assert reader.read(pack_id, first, count) == raws[first : first + count]
        assert len(objects.gets) == (count > 0)


def test_indexes_are_kept(objects: Objects) -> None:
    """The index of a pack is read once; only so many are kept."""
    reader = PackReader(objects, indexes_max=2)
    packs = [objects.put_pack(pack_of([b"%d" % n])) for n in range(3)]
    for pack_id in [packs[0], packs[0], packs[1], packs[0], packs[2], packs[0]]:
        reader.index(pack_id)
    assert len(objects.gets) == 3
    reader.index(packs[1])
    assert len(objects.gets) == 4


def test_a_rewritten_pack_is_read_again(objects: Objects) -> None:
    """A pack written again under the same id is noticed by its ETag; its new index is read."""
    reader = PackReader(objects)
    pack_id = objects.put_pack(pack_of(RAWS))
    assert reader.read(pack_id, 3, 2) == RAWS[3:5]
    assert objects.put_pack(uncompressed(RAWS)) == pack_id
    assert reader.read(pack_id, 3, 2) == RAWS[3:5]
    assert reader.index(pack_id).place(3).codec == RAW


def test_an_index_that_is_rewritten_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that takes two requests, of a pack that is written again between them, is read
    again: nobody who asks for an index has to know."""

    class Rewritten(Objects):
        def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
            part = super().get(key, offset=offset, size=size, if_match=if_match)
            if len(self.gets) == 1:
                self.put_pack(uncompressed(RAWS))
            return part

    monkeypatch.setattr(pack_reader, "TAIL_SIZE_BYTES", 200)
    objects = Rewritten()
    pack_id = objects.put_pack(pack_of(RAWS))
    assert pack_reader.read_index(objects, pack_id).index.place(3).codec == RAW
    assert len(objects.gets) == 4


def test_a_pack_that_never_stays(objects: Objects) -> None:
    """A pack that changes between index and read again and again is given up."""

    class Restless(Objects):
        def get(
            self,
            key: str,
            *,
            offset: int = 0,
            size: int,
            if_match: str | None = None,
        ) -> Part:
            part = super().get(key, offset=offset, size=size, if_match=if_match)
            return structs.replace(part, etag=f'"{len(self.gets)}"')

    restless = Restless()
    pack_id = restless.put_pack(pack_of(RAWS))
    with pytest.raises(Changed):
        PackReader(restless).read(pack_id, 0, 1)
    assert len(restless.gets) == 6


def test_wrong_bytes_once(objects: Objects) -> None:
    """Wrong bytes are never handed out: they are read again, and then they are right."""
    reader = PackReader(objects)
    pack_id = objects.put_pack(pack_of(RAWS))
    reader.index(pack_id)
    objects.spoil = 1
    assert reader.read(pack_id, 3, 2) == RAWS[3:5]


@pytest.mark.parametrize("n", range(3))
def test_wrong_bytes_always(objects: Objects, n: int) -> None:
    """Bytes that stay wrong are Corrupt; chunk and pack are named, and neighbours are read."""
    pack = uncompressed(RAWS[:3])
    pack_id = objects.put_pack(pack)
    data = bytearray(objects.objects[keys.pack(pack_id)])
    data[pack.index.offsets[n]] ^= 1
    objects.put(keys.pack(pack_id), [data])
    reader = PackReader(objects)
    with pytest.raises(Corrupt, match=f"chunk {n} of packs/.*{pack_id.hex()}"):
        reader.read(pack_id, 0, 3)
    for good in {0, 1, 2} - {n}:
        assert reader.read(pack_id, good, 1) == [RAWS[good]]


def test_a_pack_cut_after_its_index_was_read(objects: Objects) -> None:
    """Half a pack is Corrupt, not a short answer."""
    reader = PackReader(objects)
    pack_id = objects.put_pack(pack_of(RAWS))
    key = keys.pack(pack_id)
    reader.index(pack_id)
    objects.objects[key] = objects.objects[key][:10]
    with pytest.raises(Corrupt):
        reader.read(pack_id, 0, len(RAWS))


def test_a_missing_pack(objects: Objects) -> None:
    """A missing pack is damage, told by its name with the way out, each time it is asked for; so
    is one that goes after its index was read."""
    reader = PackReader(objects)
    for _ in range(2):
        with pytest.raises(LostPack, match=f"pack {'00' * 32} is missing.*`lodefs repair`"):
            reader.read(PackId(bytes(32)), 0, 1)
    pack_id = objects.put_pack(pack_of(RAWS))
    reader.index(pack_id)
    del objects.objects[keys.pack(pack_id)]
    with pytest.raises(LostPack, match="is missing"):
        reader.read(pack_id, 0, 1)


@given(chunk_lists, chunk_lists)
def test_read_file(raws: list[bytes], more: list[bytes]) -> None:
    """A file comes back from its segments, wherever they lie."""
    objects = Objects()
    one, two = (objects.put_pack(pack_of(part)) for part in (raws, more))
    file = file_of(
        [*more, *raws, more[-1]],
        segment_of(two, 0, more),
        segment_of(one, 0, raws),
        segment_of(two, len(more) - 1, more[-1:]),
    )
    assert b"".join(PackReader(objects).read_file(file)) == b"".join([*more, *raws, more[-1]])


def test_an_empty_file_needs_no_store(objects: Objects) -> None:
    """An empty file has no chunks and is read without a request."""
    empty = TreeEntry(b"e", Kind.FILE, digest=EMPTY_DIGEST)
    assert list(PackReader(objects).read_file(empty)) == []
    assert objects.gets == []


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": 5},
        {"size_bytes": 5_000_000},
        {"digest": Digest(bytes(32))},
        {"segments": ()},
        {"kind": Kind.SYMLINK},
    ],
)
def test_a_file_that_is_not_what_its_entry_says(
    objects: Objects, change: dict[str, object]
) -> None:
    """A file whose chunks are not its content is Corrupt at the latest at its end."""
    pack_id = objects.put_pack(pack_of(RAWS))
    good = file_of(RAWS[2:6], segment_of(pack_id, 2, RAWS[2:6]))
    assert list(PackReader(objects).read_file(good)) == RAWS[2:6]
    with pytest.raises(Corrupt, match="'file'"):
        list(PackReader(objects).read_file(structs.replace(good, **change)))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 120))
def test_runs(sizes: list[int], limit: int) -> None:
    """Runs follow each other, are within the limit or one chunk, and as few as can be."""
    objects = Objects()
    noise = blake3(b"noise").digest(length=50)
    pack_id = objects.put_pack(pack_of([noise[:size] for size in sizes]))
    runs = PackReader(objects).runs(Segment(pack_id, 0, len(sizes), sum(sizes)), limit)
    totals = [sum(sizes[run.first : run.first + run.count]) for run in runs]
    assert [n for run in runs for n in range(run.first, run.first + run.count)] == list(
        range(len(sizes))
    )
    assert [run.size_bytes for run in runs] == totals
    assert all(total <= limit or run.count == 1 for run, total in zip(runs, totals, strict=True))
    for run, total in zip(runs[1:], totals, strict=False):
        assert total + sizes[run.first] > limit


def test_runs_beyond_the_pack(objects: Objects) -> None:
    """A segment that is longer than its pack, or has other bytes, is Corrupt."""
    pack_id = objects.put_pack(pack_of(RAWS))
    with pytest.raises(Corrupt, match="has 20 chunks: 6 from number 15 are not in it"):
        PackReader(objects).runs(Segment(pack_id, 15, 6, 1))
    good = segment_of(pack_id, 15, RAWS[15:])
    wrong = good._replace(size_bytes=good.size_bytes + 1)
    with pytest.raises(Corrupt, match=f"and should have {wrong.size_bytes}"):
        PackReader(objects).runs(wrong)


def test_read_tree_of_many_chunks(objects: Objects) -> None:
    """A tree of many chunks comes back whole, by one GET besides that of the index."""
    pack_id = objects.put_pack(pack_of(RAWS))
    entries = [
        structs.replace(file_of([raw], segment_of(pack_id, n, [raw])), name=b"%02d" % n)
        for n, raw in enumerate(RAWS)
    ]
    tree = put_tree(objects, entries)
    assert tree.segments[0].count > 5
    assert PackReader(objects).read_tree(tree) == entries
    assert len(objects.gets) == 2


def test_neighbouring_trees_come_with_one_read(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of one pack are read by windows, not one by one; few windows are kept."""
    monkeypatch.setattr(pack_reader, "WINDOW_SIZE_BYTES", 1000)
    trees = [[symlink(b"%04d" % n, b"x")] for n in range(400)]
    pack = uncompressed([encode_tree(tree) for tree in trees])
    pack_id = objects.put_pack(pack)
    windows = -(-pack.index.offsets[-1] // 1000)
    assert windows > 5
    reader = PackReader(objects, windows_max=2)
    for n, tree in enumerate(trees):
        size = pack.index.raw_sizes[n]
        entry = TreeEntry(b"d", Kind.DIRECTORY, size_bytes=size, digest=tree_digest(tree),
                      segments=(Segment(pack_id, n, 1, size),))  # fmt: skip
        assert reader.read_tree(entry) == tree
    assert len(objects.gets) == 1 + windows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"digest": Digest(bytes(32))}, "does not match its digest"),
        ({"size_bytes": 5}, "size is not 5 bytes"),
        ({"size_bytes": 999_999}, "size is not 999999"),
        ({"size_bytes": 2**62}, "claims a tree of"),
        ({"segments": ()}, "has no tree"),
        ({"kind": Kind.FILE}, "has no tree"),
    ],
)
def test_a_tree_that_is_not_what_its_entry_says(
    objects: Objects, change: dict[str, object], words: str
) -> None:
    """A tree of another size, digest or kind is Corrupt."""
    tree = put_tree(objects, [symlink(b"s%d" % n, b"target") for n in range(30)])
    with pytest.raises(Corrupt, match=f"directory b'dir'.*{words}"):
        PackReader(objects).read_tree(structs.replace(tree, **change))


@pytest.mark.parametrize(
    ("data", "error"), [(b"\x01\x05", Corrupt), (b"\x02\0", UnknownFormat), (b"\x01", Corrupt)]
)
def test_bytes_that_are_no_tree(objects: Objects, data: bytes, error: type[Exception]) -> None:
    """A chunk that is no tree is refused; directory, chunk and pack are named."""
    pack_id = objects.put_pack(pack_of([data]))
    entry = TreeEntry(b"dir", Kind.DIRECTORY, size_bytes=len(data), digest=tree_digest([]),
                  segments=(segment_of(pack_id, 0, [data]),))  # fmt: skip
    with pytest.raises(error, match=f"'dir', in chunks 0 to 0 of packs/.*{pack_id.hex()}"):
        PackReader(objects).read_tree(entry)


def test_a_spoiled_tree_is_read_again(objects: Objects) -> None:
    """Wrong bytes in a window are noticed, read again, and not kept."""
    tree = put_tree(objects, [symlink(b"s", b"target")])
    reader = PackReader(objects)
    reader.index(tree.segments[0].pack)
    objects.spoil = 1
    assert reader.read_tree(tree) == [symlink(b"s", b"target")]


def test_walk(objects: Objects) -> None:
    """A walk gives all entries with their paths, by name, a directory before what it holds."""
    inner = put_tree(objects, [symlink(b"x", b"y"), symlink(b"z", b"y")], b"b")
    empty = put_tree(objects, [], b"e")
    root = put_tree(objects, [symlink(b"a", b"y"), inner, symlink(b"c", b"y"), empty], b"")
    reader = PackReader(objects)
    assert [path for path, _ in reader.walk(root)] == [b"a", b"b", b"b/x", b"b/z", b"c", b"e"]
    assert [path for path, _ in reader.walk(inner, b"b")] == [b"b/x", b"b/z"]
    assert dict(reader.walk(root))[b"e"] == empty


@pytest.mark.slow
def test_walk_is_as_deep_as_a_path_may_be(objects: Objects) -> None:
    """Directories nested deeper than Python's stack are walked."""
    tree = put_tree(objects, [], b"d")
    for _ in range(2047):
        tree = put_tree(objects, [tree], b"d")
    paths = [path for path, _ in PackReader(objects).walk(tree)]
    assert len(paths) == 2047
    assert paths[-1] == b"/".join([b"d"] * 2047)


def test_a_tree_in_its_own_pack(objects: Objects) -> None:
    """Segments of "the pack that holds this tree" are read from there."""
    leaf = encode_tree([symlink(b"s", b"t")])
    child = TreeEntry(b"child", Kind.DIRECTORY, size_bytes=len(leaf),
                  digest=tree_digest([symlink(b"s", b"t")]),
                  segments=(segment_of(SAME_PACK, 0, [leaf]),))  # fmt: skip
    data = encode_tree([child])
    pack_id = objects.put_pack(pack_of([leaf, data]))
    root = TreeEntry(b"", Kind.DIRECTORY, size_bytes=len(data), digest=tree_digest([child]),
                 segments=(segment_of(pack_id, 1, [data]),))  # fmt: skip
    assert [path for path, _ in PackReader(objects).walk(root)] == [b"child", b"child/s"]


def test_a_tree_in_two_packs(objects: Objects) -> None:
    """A tree may reuse chunks of another pack, but then may not speak of its own pack."""
    for target, good in ((PackId(b"p" * 32), True), (SAME_PACK, False)):
        entries = [file_of([b"x"], segment_of(target, 0, [b"x"]))]
        data = encode_tree(entries)
        pieces = (data[:30], data[30:])
        segments = tuple(segment_of(objects.put_pack(pack_of([p])), 0, [p]) for p in pieces)
        tree = TreeEntry(b"dir", Kind.DIRECTORY, size_bytes=len(data), digest=tree_digest(entries),
                     segments=segments)  # fmt: skip
        if good:
            assert PackReader(objects).read_tree(tree) == entries
        else:
            with pytest.raises(Corrupt, match="several packs"):
                PackReader(objects).read_tree(tree)

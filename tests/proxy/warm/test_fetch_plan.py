"""What is fetched for many files: every chunk that is wanted, once, and put where it belongs."""

from __future__ import annotations

import random
from array import array

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.names import Digest, PackId, digest_of
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.nodecache.layout import FLAT_SIZE_BYTES_MIN
from lodefs.chunkstore.nodecache.name_rows import content_id
from lodefs.chunkstore.repo.range_planner import UNIT_STORED_BYTES_MAX
from lodefs.proxy.warm.fetch_plan import PendingFile, plan_fetches, segments_by_pack, shuffled

CHUNK_BYTES = 100_000
CHUNKS = 300


def index_of(seed: int = 0) -> PackIndex:
    """A pack of equal chunks."""
    ids = b"".join(digest_of(b"%d %d" % (seed, n)) for n in range(CHUNKS))
    sizes = array("I", [CHUNK_BYTES] * CHUNKS)
    return PackIndex(ids, sizes, sizes, bytes(CHUNKS))


INDEX = index_of()


def pending_file(first: int, count: int) -> PendingFile:
    """A file that is a run of the pack's chunks."""
    size_bytes = count * CHUNK_BYTES
    digest = Digest(digest_of(b"%d %d" % (first, count)))
    segment = Segment(INDEX.pack_id, first, count, size_bytes)
    entry = TreeEntry(b"f", Kind.FILE, False, size_bytes, digest, (segment,))
    return PendingFile(b"f", entry, size_bytes)


runs = st.tuples(st.integers(0, CHUNKS - 1), st.integers(1, 40)).map(
    lambda run: (run[0], min(run[1], CHUNKS - run[0]))
)


@given(st.lists(runs, min_size=1, max_size=30))
def test_every_file_comes_whole(wanted: list[tuple[int, int]]) -> None:
    """The parts of all units hold just the chunks that files have; each file gets all its bytes,
    its own chunks at their own offsets; units are in the pack's order, apart, and not too large."""
    pending = [pending_file(*run) for run in wanted]
    found = list(plan_fetches(INDEX, segments_by_pack(pending)[INDEX.pack_id]))
    covered: set[int] = set()
    end = 0
    for fetch in found:
        unit = fetch.unit
        assert unit.first >= end
        end = unit.end
        assert fetch.size_bytes == unit.count * CHUNK_BYTES <= UNIT_STORED_BYTES_MAX
        for part in unit.destinations:
            assert unit.first <= part.first < part.end <= unit.end
            covered.update(range(part.first, part.end))
            if part.flat is not None:
                assert part.flat.size_bytes >= FLAT_SIZE_BYTES_MIN
        for one, size_bytes in fetch.gains:
            one.left_bytes -= size_bytes
    assert covered == {n for first, count in wanted for n in range(first, first + count)}
    assert all(one.left_bytes == 0 for one in pending)
    for one in pending:
        if one.entry.size_bytes >= FLAT_SIZE_BYTES_MIN:
            (segment,) = one.entry.segments
            mine = {
                (n, part.shift + INDEX.raw_offsets[n])
                for fetch in found
                for part in fetch.unit.destinations
                if part.flat is not None and part.flat.content == content_id(one.entry)
                for n in range(part.first, part.end)
            }
            chunks = range(segment.first, segment.first + segment.count)
            assert mine == {(n, (n - segment.first) * CHUNK_BYTES) for n in chunks}


def test_small_files_that_touch_are_one_part() -> None:
    """However many they are, they are stored together."""
    (fetch,) = plan_fetches(
        INDEX, segments_by_pack([pending_file(n, 1) for n in range(50)])[INDEX.pack_id]
    )
    assert [(part.first, part.end, part.flat) for part in fetch.unit.destinations] == [
        (0, 50, None)
    ]
    assert len(fetch.gains) == 50


def test_nodes_begin_with_different_packs() -> None:
    """The order is the same for the same seed, and another for another; no pack is lost."""
    packs = [PackId(digest_of(b"%d" % n)) for n in range(64)]
    orders = [shuffled(b"%d" % node)(packs) for node in range(8)]
    assert orders[0] == shuffled(b"0")(random.Random(1).sample(packs, 64))
    assert all(set(order) == set(packs) for order in orders)
    assert len({order[0] for order in orders}) >= 6

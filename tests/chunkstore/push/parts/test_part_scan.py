"""A scan is cut into parts, and comes out of them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.format.push_plan import PlannedPiece
from lodefs.chunkstore.push.parts.part_scan import PartLimits, PartScan, parts_of
from lodefs.chunkstore.push.scanner import FILE, Columns, ScannedDirectory, walk

Tree = dict[bytes, Any]  # by name: the size of a file, or the Tree of a directory

NAMES = st.sampled_from([b"a", b"a!", b"b", b"\xff", b"0"])
TREES = st.recursive(
    st.dictionaries(NAMES, st.integers(0, 50), max_size=4),
    lambda below: st.dictionaries(NAMES, st.integers(0, 50) | below, max_size=4),
    max_leaves=12,
)


def _scan(tree: Tree) -> Iterator[ScannedDirectory]:
    def visit(path: bytes, depth: int) -> ScannedDirectory:
        here: object = tree
        for name in path.split(b"/") if path else []:
            assert isinstance(here, dict)
            here = here[name]
        assert isinstance(here, dict)
        rows = [(name, FILE, size, 1, 2, 3) for name, size in here.items() if isinstance(size, int)]
        below = sorted(name for name, one in here.items() if isinstance(one, dict))
        return ScannedDirectory(path, depth, Columns(rows), below, 0)

    return walk(visit)


def _files(scan: Iterator[ScannedDirectory]) -> list[tuple[bytes, bytes, int]]:
    return [
        (one.path, name, size)
        for one in scan
        for name, size in zip(one.columns.names, one.columns.sizes, strict=True)
    ]


@given(TREES, st.integers(1, 4), st.integers(1, 120), st.integers(1, 3))
def test_parts_have_what_the_scan_has(tree: Tree, files: int, size: int, step: int) -> None:
    """In the same order, within the limits; each directory comes after those above it, and at its
    own depth."""
    limits = PartLimits(files, size, files_step=step, size_bytes_step=40)
    parts = list(parts_of(_scan(tree), limits))
    assert [part.number for part in parts] == list(range(len(parts))) and parts
    found: list[tuple[bytes, bytes, int]] = []
    seen: set[bytes] = set()
    for part in parts:
        scanned = list(PartScan(part.directories))
        some = _files(iter(scanned))
        own = limits.of(part.number)
        assert len(some) <= own.files
        assert len(some) == 1 or sum(one[2] for one in some) <= own.size_bytes
        found += some
        paths = [one.path for one in scanned]
        assert len(set(paths)) == len(paths)
        for one in scanned:
            above = one.path.rpartition(b"/")[0]
            assert not one.path or above in paths[: paths.index(one.path)]
            assert one.depth == (one.path.count(b"/") + 1 if one.path else 0)
        seen.update(paths)
    assert found == _files(_scan(tree))
    assert seen == {one.path for one in _scan(tree)}


@given(TREES, st.integers(1, 40), st.integers(1, 20))
def test_large_files_are_in_pieces(tree: Tree, whole: int, step: int) -> None:
    """Each has a part for its digest and parts for all its bytes, and nothing else lies in them;
    what is left is in the order of the scan."""
    limits = PartLimits(3, 120, whole_bytes=whole, piece_bytes=step)
    parts = list(parts_of(_scan(tree), limits))
    assert [part.number for part in parts] == list(range(len(parts))) and parts
    found, pieces = [], []
    for part in parts:
        some = _files(iter(PartScan(part.directories)))
        if part.piece is None:
            found += some
        else:
            ((path, name, size),) = some
            pieces.append((path, name, size, part.piece))
    expected = []
    for path, name, size in _files(_scan(tree)):
        if size <= whole:
            continue
        expected.append((path, name, size, PlannedPiece(0, size, is_digest=True)))
        for begin in range(0, size, step):
            piece = PlannedPiece(begin, min(begin + step, size), is_digest=False)
            expected.append((path, name, size, piece))
    assert pieces == expected
    assert found == [one for one in _files(_scan(tree)) if one[2] <= whole]
    seen = {one.path for part in parts for one in PartScan(part.directories)}
    assert seen == {one.path for one in _scan(tree)}


def test_parts_grow() -> None:
    """A source of many files has more than one part early, and few large ones later."""
    limits = PartLimits()
    assert (limits.of(0).files, limits.of(0).size_bytes) == (500, 64 << 20)
    assert limits.of(200) == limits

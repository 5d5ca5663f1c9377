"""Paths of thousands of names, such as any user of a writable mount may make: work and memory grow
with their length, and not with its square for each of them."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any, SupportsIndex

from lodefs.chunkstore.push.changes.change import MakeDirectory, Put
from lodefs.chunkstore.push.changes.overlay import Names, Overlay
from lodefs.chunkstore.push.changes.stored_changes import _staying

DEPTH = 3000
BYTES_MAX = 4 << 20  # 3,000 beginnings of a path have 36 MB


class Path(tuple[bytes, ...]):
    """A path that counts how often a part of it is copied."""

    __slots__ = ()
    copies = 0

    def __getitem__(self, key: SupportsIndex | slice) -> Any:
        Path.copies += isinstance(key, slice)
        return super().__getitem__(key)


def test_which_changes_stay_is_known_without_all_beginnings_of_a_path() -> None:
    """Its memory is that of the path, since the beginnings of a path share their names."""
    changes = [Put(b"/".join([b"d"] * DEPTH), b"")]
    tracemalloc.start()
    try:
        assert _staying(changes) == {0}
        assert tracemalloc.get_traced_memory()[1] < BYTES_MAX
    finally:
        tracemalloc.stop()


def test_a_new_directory_is_found_without_copies_of_its_path() -> None:
    """Neither to look at it nor to change it."""
    overlay = Overlay(lambda _entry: [], None)
    names = Path([b"d"] * DEPTH)
    overlay.make_directory(names)
    before = Path.copies
    assert overlay.get(names) is not None
    assert overlay._opened(names) is overlay.get(names)
    assert Path.copies == before


def test_which_changes_stay() -> None:
    """As by a comparison of each change with each later one."""
    chance = random.Random(1)
    for _ in range(300):
        paths = [tuple(chance.choices((b"a", b"b"), k=chance.randint(1, 3))) for _ in range(5)]
        changes = [chance.choice((Put, MakeDirectory)) for _ in paths]
        made = [one(b"/".join(path), b"") if one is Put else one(b"/".join(path))  # type: ignore[call-arg]
                for one, path in zip(changes, paths, strict=True)]  # fmt: skip
        expected = {
            n
            for n, path in enumerate(paths)
            if changes[n] is Put and not any(_meet(path, other) for other in paths[n + 1 :])
        }
        assert _staying(made) == expected


def _meet(one: Names, other: Names) -> bool:
    """Whether one path is the other, or lies above it."""
    return one[: len(other)] == other[: len(one)]

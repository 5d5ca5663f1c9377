"""Finds the chunks of packs that a directory names, at all depths, but another directory does
not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.repo.entry_set import EntrySet, stored
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.tree_walk import BAD_TREE, walk

REQUESTS_MAX = 16  # concurrent requests


class NamedPacks(NamedTuple):
    """``found`` are all packs, with bits of chunk numbers; ``unreadable`` are packs of trees that
    cannot be read or are missing."""

    found: dict[PackId, int]
    unreadable: set[PackId]


def named_packs(packs: PackReader, root: TreeEntry, base: TreeEntry | None) -> NamedPacks:
    """Returns the packs to which ``root`` (a directory) leads. It skips everything below a
    directory that ``base`` has at the same path, stored in the same place.

    Raises: Unavailable, Denied.
    """
    found: dict[PackId, int] = {}
    unreadable: set[PackId] = set()
    add_named(found, [root])
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-names") as executor, EntrySet() as seen:

        def is_new(pair: _Pair) -> bool:
            entry, other = pair
            return (other is None or stored(other) != stored(entry)) and seen.add(entry)

        for tree in walk(partial(_read, packs), [(root, base)], executor, is_new):
            if tree.error is None:
                add_named(found, tree.content)
            else:
                unreadable.update(segment.pack for segment in tree.node[0].segments)
    return NamedPacks(found, unreadable)


_Pair = tuple[TreeEntry, TreeEntry | None]  # a directory, and the one of base at its path


def _read(packs: PackReader, pair: _Pair) -> tuple[list[TreeEntry], list[_Pair]]:
    """Returns the entries of a directory, and its subdirectories with those of base. An unreadable
    directory of base counts as empty."""
    entry, other = pair
    entries, others = packs.read_tree(entry), dict[bytes, TreeEntry]()
    if other is not None and other.kind is Kind.DIRECTORY:
        with contextlib.suppress(*BAD_TREE):
            others = {one.name: one for one in packs.read_tree(other)}
    return entries, [(one, others.get(one.name)) for one in entries if one.kind is Kind.DIRECTORY]


def add_named(found: dict[PackId, int], entries: Iterable[TreeEntry]) -> None:
    """Adds the chunks that entries name to ``found`` (bits of chunk numbers by pack). Consecutive
    chunks are added at once, since a pack has many bits."""
    add_segments(found, (segment for entry in entries for segment in entry.segments))


def add_segments(found: dict[PackId, int], segments: Iterable[Segment]) -> None:
    """Does what ``add_named`` does for segments."""
    runs: dict[PackId, tuple[int, int]] = {}
    for pack, first, count, _ in segments:
        begin, end = runs.get(pack, (first, first))
        if first == end:
            runs[pack] = (begin, first + count)
            continue
        found[pack] = found.get(pack, 0) | _bits(begin, end)
        runs[pack] = (first, first + count)
    for pack, (begin, end) in runs.items():
        found[pack] = found.get(pack, 0) | _bits(begin, end)


def _bits(first: int, end: int) -> int:
    return ((1 << (end - first)) - 1) << first

"""Which chunks of packs a directory names, all the way down, besides those of another one."""

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

REQUESTS_MAX = 16  # at once


class NamedPacks(NamedTuple):
    """``found``: all packs, with the bits of the chunks' numbers; ``unreadable``: those of trees
    that cannot be read, or are missing."""

    found: dict[PackId, int]
    unreadable: set[PackId]


def named_packs(packs: PackReader, root: TreeEntry, base: TreeEntry | None) -> NamedPacks:
    """The packs that ``root`` (a directory) leads to. Nothing below a directory that ``base`` has
    in the same place, stored in the same place, is looked at.

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


_Pair = tuple[TreeEntry, TreeEntry | None]  # a directory, and what base has there


def _read(packs: PackReader, pair: _Pair) -> tuple[list[TreeEntry], list[_Pair]]:
    """What is in a directory, and the directories there with those of base. One of base that cannot
    be read has nothing."""
    entry, other = pair
    entries, others = packs.read_tree(entry), dict[bytes, TreeEntry]()
    if other is not None and other.kind is Kind.DIRECTORY:
        with contextlib.suppress(*BAD_TREE):
            others = {one.name: one for one in packs.read_tree(other)}
    return entries, [(one, others.get(one.name)) for one in entries if one.kind is Kind.DIRECTORY]


def add_named(found: dict[PackId, int], entries: Iterable[TreeEntry]) -> None:
    """Adds the chunks that entries name to bits of chunks' numbers by pack. Those that follow each
    other, as neighbours' do, are added at once: the bits of a pack are many."""
    add_segments(found, (segment for entry in entries for segment in entry.segments))


def add_segments(found: dict[PackId, int], segments: Iterable[Segment]) -> None:
    """As ``add_named``, of what they name."""
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

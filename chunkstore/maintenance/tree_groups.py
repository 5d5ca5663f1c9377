"""Walks the trees of commits when other processes read them, many in one call.

The process that walks decides which directories are new, as any walk does (tree_walk.py), so the
others only read, and the result is the same. It sends the newest directories first, a wave at a
time, so that few directories wait, whatever there is below them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.journal.named_packs import add_named
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.tree_walk import BAD_TREE, Place

GROUP_TREES = 64  # of one call: up to a second of work
WAVE_TREES = 64 * GROUP_TREES


class GroupNames(NamedTuple):
    """What some directories name: ``packs``, with bits of chunk numbers, and ``directories``, each
    after the number of the one that it is in. ``unreadable`` is the number of one that cannot be
    read, if there is any, and why; the rest is incomplete then."""

    packs: dict[PackId, int]
    directories: list[tuple[int, TreeEntry]]
    unreadable: tuple[int, str] | None


ReadGroups = Callable[[Iterable[Sequence[TreeEntry]]], Iterator[GroupNames]]


def read_group(packs: PackReader, group: Sequence[TreeEntry], workers: int) -> GroupNames:
    """Returns what directories name; ``workers`` are concurrent requests. Raises: Unavailable,
    Denied."""

    def read(entry: TreeEntry) -> list[TreeEntry] | LodefsError:
        try:
            return packs.read_tree(entry)
        except BAD_TREE as error:
            return error

    found: dict[PackId, int] = {}
    directories: list[tuple[int, TreeEntry]] = []
    with ThreadPoolExecutor(workers, "lodefs-trees") as executor:
        for number, tree in enumerate(executor.map(read, group)):
            if isinstance(tree, LodefsError):
                return GroupNames(found, directories, (number, str(tree)))
            below = [entry for entry in tree if entry.kind is Kind.DIRECTORY]
            add_named(found, [group[number]])  # those below are added when they are read
            add_named(found, (entry for entry in tree if entry.kind is not Kind.DIRECTORY))
            directories += [(number, entry) for entry in below]
    return GroupNames(found, directories, None)


def walk_groups(
    read: ReadGroups, roots: Iterable[Place[str]], is_new: Callable[[Place[str]], bool]
) -> Iterator[tuple[list[Place[str]], GroupNames]]:
    """Yields ``roots`` and all directories below them in groups, with what each group names. It
    skips directories that are not new, with all below them. ``read`` returns the names of groups,
    in their order. Paths are those of the roots. Raises: what ``read`` raises."""
    beginnings = filter(is_new, roots)
    waiting: list[Place[str]] = []  # the next ones are last
    while True:
        wave = waiting[-WAVE_TREES:][::-1]
        del waiting[-WAVE_TREES:]
        wave += islice(beginnings, WAVE_TREES - len(wave))
        if not wave:
            return
        groups = [wave[at : at + GROUP_TREES] for at in range(0, len(wave), GROUP_TREES)]
        found = read([place.entry for place in group] for group in groups)
        below: list[Place[str]] = []
        for group, names in zip(groups, found, strict=True):
            places = (group[number]._replace(entry=entry) for number, entry in names.directories)
            below += filter(is_new, places)
            yield group, names
        waiting += reversed(below)

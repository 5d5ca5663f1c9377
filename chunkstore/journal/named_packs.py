"""Which chunks of packs a directory names, all the way down, besides those of another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.tree import Entry, Kind, Segment
from lodefs.chunkstore.repo.pack_reader import PackReader

REQUESTS_MAX = 16  # at once
TREES_AHEAD = 64  # directories that are read at once; bounds memory


class NamedPacks(NamedTuple):
    """``found``: all packs, with the bits of the chunks' numbers; ``unreadable``: those of trees
    that cannot be read, or are missing."""

    found: dict[PackId, int]
    unreadable: set[PackId]


def named_packs(packs: PackReader, root: Entry, base: Entry | None) -> NamedPacks:
    """The packs that ``root`` (a directory) leads to. Nothing below a directory that ``base`` has
    in the same place, stored in the same place, is looked at.

    Raises: Unavailable, Denied.
    """
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-names") as executor:
        return _NamesWalk(packs, executor).run(root, base)


_Pair = tuple[Entry, Entry | None]  # a directory, and what base has there


def add_named(found: dict[PackId, int], entries: Iterable[Entry]) -> None:
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


class _NamesWalk:
    def __init__(self, packs: PackReader, executor: Executor) -> None:
        self._packs = packs
        self._executor = executor
        self._seen: set[tuple[Digest, tuple[Segment, ...]]] = set()
        self._result = NamedPacks({}, set())

    def run(self, root: Entry, base: Entry | None) -> NamedPacks:
        stack = self._new([(root, base)])
        while stack:
            some, stack = stack[-TREES_AHEAD:], stack[:-TREES_AHEAD]
            read = self._executor.map(self._read_both, some)
            for (entry, _), (children, others) in zip(some, read, strict=True):
                if children is None:
                    self._result.unreadable.update(segment.pack for segment in entry.segments)
                    continue
                directories = {child.name: child for child in others or ()}
                self._name(children)
                stack += self._new(
                    [
                        (child, directories.get(child.name))
                        for child in children
                        if child.kind is Kind.DIRECTORY
                    ]
                )
        return self._result

    def _new(self, pairs: Sequence[_Pair]) -> list[_Pair]:
        """Those that have to be read."""
        self._name([entry for entry, _ in pairs])
        found: list[_Pair] = []
        for entry, other in pairs:
            place = entry.digest, entry.segments
            if other is not None and (other.digest, other.segments) == place:
                continue
            if place not in self._seen:
                self._seen.add(place)
                found.append((entry, other))
        return found

    def _name(self, entries: Sequence[Entry]) -> None:
        add_named(self._result.found, entries)

    def _read_both(self, pair: _Pair) -> tuple[list[Entry] | None, list[Entry] | None]:
        entry, other = pair
        is_tree = other is not None and other.kind is Kind.DIRECTORY
        return self._read(entry), self._read(other) if is_tree and other is not None else None

    def _read(self, entry: Entry) -> list[Entry] | None:
        try:
            return self._packs.read_tree(entry)
        except (Corrupt, NotFound, UnknownFormat):
            return None

"""Which of the packs that a commit will name the store has lost.

A push that builds on what the store has would otherwise name packs that are not there, although the
source has their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import Digest, PackId
from lodefs.chunkstore.format.pack import DROPPED
from lodefs.chunkstore.format.tree import Entry, Kind, Segment
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repo.pack_reader import PackReader, read_index

REQUESTS_MAX = 16  # at once
TREES_AHEAD = 64  # directories that are read at once; bounds memory


class PacksLost(Corrupt):
    """Packs that a commit would name are missing in the store, or cut off."""

    def __init__(self, message: str, packs: set[PackId]) -> None:
        super().__init__(message)
        self.packs = packs


class PacksCollected(PacksLost):
    """They were deleted by a collection, or ``chunks`` of them (bits of their numbers): what they
    held has to be stored under other ids, since a collection that stood still may delete it again
    where it was."""

    def __init__(self, message: str, packs: set[PackId], chunks: Mapping[PackId, int]) -> None:
        super().__init__(message, packs)
        self.chunks = chunks


def missing_packs(objects: ObjectStore, pack_ids: Collection[PackId]) -> set[PackId]:
    """Those of the packs that are not in the store: a HEAD for each, several at once."""
    if not pack_ids:
        return set()
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        return _failing(executor, partial(_is_there, objects), pack_ids)


def packs_lacking(objects: ObjectStore, named: Mapping[PackId, int]) -> set[PackId]:
    """Those of the packs that are not in the store, or lack bytes of chunks (bits of their
    numbers): reads the index of each."""
    if not named:
        return set()

    def has(pack_id: PackId) -> bool:
        try:
            index = read_index(objects, pack_id).index
        except (NotFound, Corrupt):
            return False
        dropped = (n for n in range(len(index)) if index.codecs[n] == DROPPED)
        return not index.has_gone or not any(named[pack_id] >> n & 1 for n in dropped)

    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        return _failing(executor, has, named)


def missing_below(objects: ObjectStore, root: Entry, own: Collection[PackId]) -> set[PackId]:
    """Packs that a directory's tree, or one below it, names and that are missing, cut off, or hold
    no such tree: reads all trees, and the index of each pack but ``own``.

    What lies below a tree that cannot be read is not looked at.
    """
    packs = PackReader(objects)  # not one that still knows what was there
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-check") as executor:
        return _Walk(packs, objects, executor, set(own)).run(root)


class _Walk:
    def __init__(
        self, packs: PackReader, objects: ObjectStore, executor: Executor, seen: set[PackId]
    ) -> None:
        self._packs = packs
        self._objects = objects
        self._executor = executor
        self._seen = seen  # packs that were looked at
        self._trees: set[tuple[Digest, tuple[Segment, ...]]] = set()
        self._lost: set[PackId] = set()

    def run(self, root: Entry) -> set[PackId]:
        stack = [root]
        while stack:
            some, stack = stack[-TREES_AHEAD:], stack[:-TREES_AHEAD]
            self._look_at(some)
            whole = [entry for entry in some if self._lost.isdisjoint(_packs_of([entry]))]
            for entry, children in zip(whole, self._executor.map(self._read, whole), strict=True):
                if children is None:
                    self._lost |= _packs_of([entry])
                    continue
                self._look_at(children)
                stack += [child for child in reversed(children) if self._is_new_tree(child)]
        return self._lost

    def _is_new_tree(self, entry: Entry) -> bool:
        tree = (entry.digest, entry.segments)  # trees of one digest may lie in other packs
        if entry.kind is not Kind.DIRECTORY or tree in self._trees:
            return False
        self._trees.add(tree)
        return True

    def _read(self, entry: Entry) -> list[Entry] | None:
        try:
            return self._packs.read_tree(entry)
        except (Corrupt, NotFound, UnknownFormat):
            return None

    def _look_at(self, entries: Sequence[Entry]) -> None:
        new = _packs_of(entries) - self._seen
        self._seen |= new
        self._lost |= _failing(self._executor, partial(is_whole, self._objects), new)


def _packs_of(entries: Iterable[Entry]) -> set[PackId]:
    return {segment.pack for entry in entries for segment in entry.segments}


def _failing(
    executor: Executor, check: Callable[[PackId], bool], packs: Collection[PackId]
) -> set[PackId]:
    return {pack for pack, fine in zip(packs, executor.map(check, packs), strict=True) if not fine}


def _is_there(objects: ObjectStore, pack_id: PackId) -> bool:
    try:
        return objects.head(keys.pack(pack_id)).size_bytes > 0
    except NotFound:
        return False


def gone_chunks(objects: ObjectStore, pack_id: PackId) -> int | None:
    """The chunks whose bytes a pack does not have any more, by the bits of their numbers; None if
    it is not whole otherwise."""
    try:
        index = read_index(objects, pack_id).index
    except (Corrupt, NotFound):
        return None
    except UnknownFormat:  # of a newer lodefs, which knows what it wrote
        return 0
    return sum(1 << n for n in range(len(index)) if index.is_gone(n)) if index.has_gone else 0


def is_whole(objects: ObjectStore, pack_id: PackId) -> bool:
    """Whether the object ends with the index of that pack, and is as long as this says."""
    try:
        read_index(objects, pack_id)
    except (Corrupt, NotFound):
        return False
    except UnknownFormat:  # of a newer lodefs, which knows what it wrote
        return True
    return True

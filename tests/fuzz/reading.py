"""What a fresh machine reads in a store: every byte of all that branches and tags lead to.

What was read of a commit is remembered together with the very objects that it came from, and holds
as long as these are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import Corrupt, Expired, NotFound, Purged, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.chunking import ChunkingParams
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.objects.interface import ObjectInfo, ObjectStore, Part
from lodefs.chunkstore.objects.pack_locations import PackLocations
from lodefs.chunkstore.repair.packs import examine
from lodefs.chunkstore.repo.refs import Refs
from lodefs.chunkstore.repo.store import Settings, Store
from lodefs.chunkstore.repo.tree_walk import join
from lodefs.chunkstore.types import Buffer
from tests.support.chunkstore.memory_objects import MemoryObjects

KNOWN_MAX = 6  # states of one commit that are remembered
UNREADABLE = (NotFound, Corrupt, UnknownFormat)

Files = dict[bytes, bytes | None]  # by path; None: purged


@dataclass(frozen=True)
class SeenCommit:
    """What is there of a commit. ``lost``: what cannot be read, by path ("" is the root, or the
    commit itself), and why."""

    parents: tuple[CommitId, ...] = ()
    files: Files = field(default_factory=dict)
    lost: dict[bytes, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether every byte is there."""
        return bool(self.files) and not self.lost and None not in self.files.values()

    @property
    def is_damaged(self) -> bool:
        """Whether something of it is not there, or was purged."""
        return bool(self.lost) or None in self.files.values()


At = tuple[str, CommitId]
Locate = Callable[[ObjectStore], PackLocations]  # a store as commands see it, with its buckets


@dataclass(frozen=True)
class Seen:
    """A store: where its refs are (None: their newest entry cannot be read), and all that these
    lead to. ``expired``: commits that history ends at."""

    heads: dict[RefName, CommitId | None]
    commits: dict[At, SeenCommit]
    expired: frozenset[At]

    @property
    def lost(self) -> dict[str, str]:
        """All that cannot be read, and why."""
        broken = {str(ref): "its entry" for ref, at in self.heads.items() if at is None}
        return broken | {
            f"{repo}@{at.hex()[:8]}:{path.decode()}": why
            for (repo, at), commit in self.commits.items()
            for path, why in commit.lost.items()
        }


class _Recorder:
    """A store of which it is remembered what was asked."""

    url = "memory:"

    def __init__(self, inner: MemoryObjects) -> None:
        self._inner = inner
        self.gets: dict[str, bytes | None] = {}
        self.lists: dict[tuple[str, str, int | None], Sequence[str]] = {}

    def get(self, key: str, *, offset: int = 0, size: int, if_match: str | None = None) -> Part:
        self.gets[key] = self._inner.objects.get(key)
        return self._inner.get(key, offset=offset, size=size, if_match=if_match)

    def head(self, key: str) -> ObjectInfo:
        self.gets[key] = self._inner.objects.get(key)
        return self._inner.head(key)

    def list(
        self, prefix: str, *, after: str = "", limit: int | None = None
    ) -> Iterator[ObjectInfo]:
        found = list(MemoryObjects.list(self._inner, prefix, after=after, limit=limit))
        self.lists[prefix, after, limit] = [info.key for info in found]
        return iter(found)

    def put(self, key: str, data: Sequence[Buffer], *, if_absent: bool = False) -> str:
        raise AssertionError(f"a reader writes {key}")

    def delete(self, key: str) -> None:
        raise AssertionError(f"a reader deletes {key}")

    def close(self) -> None:
        """Nothing to free."""

    def holds(self, objects: MemoryObjects) -> bool:
        """Whether the same questions have the same answers there."""
        there = objects.objects
        if any(there.get(key) is not data for key, data in self.gets.items()):
            return False
        return all(
            _listed(there, prefix, after, limit) == found
            for (prefix, after, limit), found in self.lists.items()
        )


def _listed(objects: dict[str, bytes], prefix: str, after: str, limit: int | None) -> Sequence[str]:
    found = sorted(key for key in objects if key.startswith(prefix) and key > after)
    return found[:limit]


class FreshMachine:
    """Reads stores, from scratch as far as one can tell. ``foreign_reads`` counts what was read in
    buckets, which have another state after ``forget``."""

    def __init__(
        self,
        chunking: ChunkingParams,
        locate: Locate = PackLocations,
        foreign_reads: Callable[[], int] = lambda: 0,
    ) -> None:
        self._settings = Settings("", chunking)
        self._locate = locate
        self._foreign_reads = foreign_reads
        self._known: dict[At, list[tuple[_Recorder, SeenCommit | None]]] = {}
        self._in_place: set[At] = set()
        self._entries: dict[int, tuple[bytes, CommitId | None, bool]] = {}

    def look(self, objects: MemoryObjects) -> Seen:
        """What is there in a store now."""
        heads = dict(self._heads(objects))
        commits: dict[At, SeenCommit] = {}
        expired: set[At] = set()
        waiting = [(ref.repo, head) for ref, head in heads.items() if head is not None]
        while waiting:
            at = waiting.pop()
            if at in commits or at in expired:
                continue
            found = self._commit(objects, at)
            if found is None:
                expired.add(at)
                continue
            commits[at] = found
            waiting += [(at[0], parent) for parent in found.parents]
        return Seen(heads, commits, frozenset(expired))

    def forget(self) -> None:
        """Forgets commits of which bytes lie in buckets."""
        for at in self._in_place:
            self._known.pop(at, None)
        self._in_place.clear()

    def _heads(self, objects: MemoryObjects) -> Iterator[tuple[RefName, CommitId | None]]:
        newest: dict[RefName, int] = {}
        for key in objects.objects:
            if (ref := keys.ref_of_entry(key)) is not None and ref[1] in ("branches", "tags"):
                name = RefName(*ref[:3])
                newest[name] = max(ref[3], newest.get(name, 0))
        for name, sequence in sorted(newest.items()):
            commit, is_there = self._entry(objects, name, sequence)
            if is_there:
                yield name, commit

    def _entry(
        self, objects: MemoryObjects, name: RefName, sequence: int
    ) -> tuple[CommitId | None, bool]:
        """Where an entry leads to, and whether it is no deletion."""
        data = objects.objects[keys.ref_entry(*name, sequence)]
        known = self._entries.get(id(data))
        if known is None or known[0] is not data:
            try:
                commit = Refs(objects, name.repo).entry(name.kind, name.name, sequence).commit
                known = data, commit, commit is not None
            except UNREADABLE:
                known = data, None, True
            self._entries[id(data)] = known
        return known[1:]

    def _commit(self, objects: MemoryObjects, at: At) -> SeenCommit | None:
        known = self._known.setdefault(at, [])
        for recorder, seen in known:
            if recorder.holds(objects):
                return seen
        recorder = _Recorder(objects)
        before = self._foreign_reads()
        found = read_commit(Store(self._locate(recorder), self._settings), at)
        if self._foreign_reads() > before:
            self._in_place.add(at)
        known.insert(0, (recorder, found))
        del known[KNOWN_MAX:]
        return found


def read_commit(store: Store, at: At) -> SeenCommit | None:
    """What is there of a commit; None if its retention policy has deleted it."""
    try:
        commit = store.commit(*at)
    except Expired:
        return None
    except UNREADABLE as error:
        return SeenCommit(lost={b"": repr(error)})
    seen = SeenCommit(commit.parents)
    waiting = [(b"", commit.root)]
    while waiting:
        path, entry = waiting.pop()
        try:
            if entry.kind is Kind.DIRECTORY:
                children = store.packs.read_tree(entry)
                waiting += [(join(path, child.name), child) for child in children]
            elif entry.kind is Kind.FILE:
                seen.files[path] = read_file(store, entry)
        except UNREADABLE as error:
            seen.lost[path] = repr(error)
    return seen


def read_file(store: Store, entry: TreeEntry) -> bytes | None:
    """The bytes of a file; None if some of them were purged, whatever is left of the others."""
    try:
        for pack, first, count, _ in entry.segments:
            store.packs.index(pack).check_there(first, count)
        return b"".join(store.packs.read_file(entry))
    except Purged:
        return None


def is_away(why: str) -> bool:
    """Whether something cannot be read since an object of a bucket is not what it was."""
    return "imported in place" in why


def is_rotten(there: PackLocations) -> bool:
    """Whether any pack that is there has wrong bytes, or it cannot be seen which are there."""
    try:
        packs = [keys.pack_of(info.key) for info in there.list(keys.PACKS)]
    except UNREADABLE:
        return True
    found = [examine(there, pack, data=True, in_place=False) for pack in packs if pack is not None]
    return any(damage is not None and damage.chunks is not None for damage in found)


class StoredProxy:
    """Answers as a node's proxy that reads a store: a DatasetReader."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def file_range(self, repo: str, rev: str, path: bytes, first: int, size_bytes: int) -> bytes:
        entry = self._find(repo, rev, path)
        return b"".join(self._store.packs.read_file(entry))[first : first + size_bytes]

    def tree(self, repo: str, rev: str, path: bytes) -> bytes:
        entry = self._find(repo, rev, path)
        chunks = (self._store.packs.read(*one[:3]) for one in entry.segments)
        return b"".join(bytes(chunk) for some in chunks for chunk in some)

    def _find(self, repo: str, rev: str, path: bytes) -> TreeEntry:
        entry = self._store.commit(repo, CommitId(bytes.fromhex(rev))).root
        for name in path.split(b"/") if path else ():
            children = {child.name: child for child in self._store.packs.read_tree(entry)}
            if name not in children:
                raise NotFound(f"there is no {path!r}")
            entry = children[name]
        return entry

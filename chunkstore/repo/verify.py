"""Verify: checks that every reference of a store resolves, and with ``data`` every byte.

It goes from refs to commits, trees, pack indexes and chunks. It never stops at a problem: it lists
the problem with repository, commit, path, pack and chunk, and checks the rest. A source that the
settings do not name is one problem of all files that lie there. If the store, or a source, cannot
be reached or read, verify ends with that error, since its bytes may be fine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, TypeVar

from blake3 import blake3

from lodefs.chunkstore.errors import (
    Corrupt,
    Expired,
    LodefsError,
    NotFound,
    Purged,
    SourceUnknown,
)
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId, PackId, Spec
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.format.virtual_pack import SourceObject
from lodefs.chunkstore.objects.interface import exists
from lodefs.chunkstore.repo.entry_set import EntrySet, Stored, stored
from lodefs.chunkstore.repo.file_places import Places, find_places
from lodefs.chunkstore.repo.range_planner import Unit, Wanted, units
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.sources_check import InPlace, add_objects, check_object
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import BAD_TREE, Place, join, walk_trees
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.types import Buffer

WORKERS = 8
FILES_TOGETHER_MAX = 32_768  # files checked at once; bounds memory
PLACED_MAX = 10_000  # contents whose places are all listed; bounds memory
AHEAD = 4  # unprocessed results for each worker; bounds memory

T = TypeVar("T")
U = TypeVar("U")
_PROBLEMS = (*BAD_TREE, SourceUnknown)


@dataclass(slots=True)
class VerifyResult:
    """Counts of the checked objects, each counted once, and the problems, one line each. ``purged``
    lists purged files, which are no problem. ``commits_without_files`` counts older commits of one
    revision whose files were not checked. ``source_objects`` is how many requests asked for objects
    in place: one for each object and FILES_TOGETHER_MAX files."""

    problems: list[str] = field(default_factory=list)
    purged: list[str] = field(default_factory=list)
    commits: int = 0
    commits_without_files: int = 0
    source_objects: int = 0
    directories: int = 0
    files: int = 0
    data_bytes: int = 0  # bytes of files that were checked completely


class _Where(NamedTuple):
    """The first commit and path at which an entry was found."""

    repo: str
    commit: CommitId
    path: bytes
    entry: TreeEntry

    def __str__(self) -> str:
        return f"{Spec(self.repo, self.commit.hex()[:12], self.path)}"


_Checked = tuple[list[tuple[_Where, object]], int]  # (file, problem) of each problem; bytes


def verify(
    store: Store,
    spec: Spec | None = None,
    *,
    data: bool = False,
    sources: bool = False,
    workers: int = WORKERS,
    progress: Progress | None = None,
) -> VerifyResult:
    """Checks one revision (``spec``, whose path is ignored), or all that the store's branches and
    tags lead to, with older commits, and the index shards. With ``sources`` it also asks whether
    the objects of sources in which files lie are what they were.

    Raises: NotFound if the revision does not exist; Unavailable, Denied.
    """
    executor = ThreadPoolExecutor(workers, thread_name_prefix="verify")
    try:
        with EntrySet() as seen:
            work = _Verify(
                store,
                executor,
                seen,
                progress or Progress(),
                data=data,
                sources=sources,
                ahead=AHEAD * workers,
            )
            if spec is None:
                work.shards()
                heads = list(work.heads())
            else:
                spec, commit_id = store.locate(spec)
                heads = [(spec.repo, commit_id)]
            work.commits(heads, with_trees_of_parents=spec is None)
            work.places()
            work.unknown_sources()
            return work.result
    finally:
        executor.shutdown(cancel_futures=True)


class _Verify:
    """One verification. Results are collected in the calling thread."""

    def __init__(
        self,
        store: Store,
        executor: ThreadPoolExecutor,
        seen: EntrySet,
        progress: Progress,
        *,
        data: bool,
        sources: bool = False,
        ahead: int,
    ) -> None:
        self.result = VerifyResult()
        self._store = store
        self._packs = store.packs
        self._executor = executor
        self._progress = progress
        self._data = data
        self._sources = sources
        self._ahead = ahead
        self._seen = seen  # files and directories
        self._names: dict[tuple[str, CommitId], list[str]] = defaultdict(list)  # refs
        self._looked: list[tuple[str, CommitId]] = []  # commits whose files were checked
        # For each content, its lines among the problems
        self._bad: dict[Stored, list[tuple[list[str], int]]] = {}
        self._unknown: dict[str, _Where] = {}  # by error: the first file that was not checked

    def shards(self) -> None:
        """Checks that every index shard decodes and its packs exist, since pushes rely on that."""
        self._progress.phase = "checking index shards"
        for info in self._store.objects.list(keys.INDEX):
            try:
                ids = [pack.pack_id for pack in read_shard(self._store.objects, info.key)]
            except NotFound:  # a gc run has rewritten it since it was listed
                continue
            except _PROBLEMS as error:
                self._problem(str(error))
                continue
            for _, missing in self._map(self._packs.index, ids):
                # if the shard is gone, too, a gc run has deleted both
                if missing and exists(self._store.objects, info.key):
                    self._problem(f"{info.key}: {missing}")

    def heads(self) -> Iterator[tuple[str, CommitId]]:
        """Returns the commits of all branches and tags."""
        self._progress.phase = "checking refs"
        for repo in self._store.repos():
            refs = self._store.refs(repo)
            for kind in (BRANCHES, TAGS):
                for name in refs.names(kind):
                    try:
                        entry = refs.latest(kind, name)
                    except _PROBLEMS as error:
                        self._problem(f"{repo}, {kind}/{name}: {error}")
                        continue
                    if entry is not None and entry.commit is not None:
                        self._names[repo, entry.commit].append(f"{repo}@{name}")
                        yield repo, entry.commit

    def commits(
        self, heads: Sequence[tuple[str, CommitId]], *, with_trees_of_parents: bool
    ) -> None:
        """Checks all commits from ``heads`` back, along all parents, and their trees."""
        waiting = list(reversed(heads))
        seen = set()
        first = set(heads)
        while waiting:
            repo, commit_id = at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            try:
                commit = self._store.commit(repo, commit_id)
            except _PROBLEMS as error:
                # A branch or tag names it, or it has not expired
                if not isinstance(error, Expired) or at in first:
                    self._problem(f"{repo}@{commit_id.hex()}: {error}")
                continue
            self.result.commits += 1
            waiting.extend((repo, parent) for parent in commit.parents)
            if with_trees_of_parents or at in first:
                self._looked.append(at)
                self._commit(repo, commit_id, commit)
            else:
                self.result.commits_without_files += 1

    def places(self) -> None:
        """Adds to the line of each damaged or purged file which versions it is in, and under which
        other names, since each content was checked once."""
        if not self._bad:
            return
        self._progress.phase = "looking for the versions with these files"
        found = {key: Places() for key in self._bad}
        find_places(self._store, self._looked, self._names, found)
        for key, lines in self._bad.items():
            if found[key].commits:
                for told, at in lines:
                    told[at] += f"; {found[key]}"

    def unknown_sources(self) -> None:
        """Adds a line for each source that the settings do not name."""
        for error, first in self._unknown.items():
            self._problem(f"{first}, and all else that lies there, was not checked: {error}")

    def _commit(self, repo: str, commit_id: CommitId, commit: Commit) -> None:
        self._progress.phase = f"checking {repo}@{commit_id.hex()[:12]}"
        files = self._files(_Where(repo, commit_id, b"", commit.root))
        while batch := list(islice(files, FILES_TOGETHER_MAX)):
            self._check_files(batch)
            self.result.files += len(batch)
            self._progress.files_done += len(batch)

    def _files(self, root: _Where) -> Iterator[_Where]:
        """Yields new files below a directory, and checks the trees on the way."""
        roots = [Place(root, root.path, root.entry)]
        trees = walk_trees(
            self._packs, roots, self._executor, lambda place: self._seen.add(place.entry)
        )
        for tree in trees:
            self.result.directories += 1
            if tree.error is not None:
                where = root._replace(path=tree.node.path, entry=tree.node.entry)
                self._problem(f"{where}: {tree.error}")
                continue
            for child in tree.content:
                if child.kind is Kind.FILE and self._seen.add(child):
                    yield root._replace(path=join(tree.node.path, child.name), entry=child)

    def _check_files(self, batch: Sequence[_Where]) -> None:
        """Checks segments against pack indexes, pack by pack; then the bytes."""
        wanted: dict[PackId, list[tuple[Segment, _Where]]] = defaultdict(list)
        for where in batch:
            for segment in where.entry.segments:
                wanted[segment.pack].append((segment, where))
        broken: set[_Where] = set()
        whole: dict[PackId, list[Wanted[_Where]]] = {}
        packs = list(wanted)
        for pack, (index, error) in zip(packs, self._map(self._packs.index, packs), strict=True):
            whole[pack] = good = []
            for segment, where in wanted[pack]:
                reason = error or (_misfit(index, segment) if index else None)
                if isinstance(reason, Purged):
                    if where not in broken:
                        self._of_file(where, reason, self.result.purged)
                    broken.add(where)
                elif reason:
                    self._of_file(where, reason, self.result.problems)
                    broken.add(where)
                elif len(where.entry.segments) == 1:
                    good.append(Wanted(segment.first, segment.count, where))
        if self._sources:
            self._check_sources(wanted)
        if self._data:
            self._check_data(batch, whole, broken)

    def _check_sources(self, wanted: Mapping[PackId, Sequence[tuple[Segment, _Where]]]) -> None:
        """Asks for the objects of sources in which files lie, each once."""
        found: dict[SourceObject, InPlace[_Where]] = {}
        packs = list(wanted)
        for pack, (one, _) in zip(packs, self._map(self._packs.virtual, packs), strict=True):
            if one is not None:  # what cannot be read is told already
                add_objects(found, one, wanted[pack])
        self.result.source_objects += len(found)
        phase, check = self._progress.phase, partial(check_object, self._store.objects)
        asked = zip(found.values(), self._map(check, found.values()), strict=True)
        for number, (place, (_, error)) in enumerate(asked, 1):
            self._progress.phase = f"{phase}: {number:,} of {len(found):,} objects in place"
            for where in place.files if error else ():
                self._of_file(where, error, self.result.problems)
        self._progress.phase = phase

    def _check_data(
        self,
        batch: Sequence[_Where],
        whole: dict[PackId, list[Wanted[_Where]]],
        broken: set[_Where],
    ) -> None:
        """Checks the bytes of files: small neighbours by unit, others file by file."""
        alone = [where for where in batch if len(where.entry.segments) > 1]
        jobs: list[tuple[PackId, Unit[_Where]]] = []
        for pack, runs in whole.items():
            fine = [run for run in runs if run.what not in broken]
            for unit in units(self._packs.index(pack), fine) if fine else ():
                kept = [part for part in unit.parts if part[1] == part[2].entry.segments[0].count]
                alone.extend(part[2] for part in unit.parts if part not in kept and not part[3])
                if kept:
                    jobs.append((pack, unit._replace(parts=kept)))
        for found, error in self._map(self._check_unit, jobs):
            self._add(found, error)
        for found, error in self._map(self._check_alone, [w for w in alone if w not in broken]):
            self._add(found, error)

    def _of_file(self, where: _Where, reason: object, told: list[str]) -> None:
        """Adds one line for each problem: several segments of a file may have the same problem."""
        if isinstance(reason, SourceUnknown):
            self._unknown.setdefault(str(reason), where)
            return
        text = f"{where}: {reason}"
        lines = self._bad.get(key := stored(where.entry), [])
        if any(told[at] == text for one, at in lines if one is told):
            return
        if lines or len(self._bad) < PLACED_MAX:
            self._bad.setdefault(key, []).append((told, len(told)))
        told.append(text)

    def _add(self, found: _Checked | None, error: LodefsError | None) -> None:
        if error or not found:
            self._problem(str(error))
            return
        problems, data_bytes = found
        for where, reason in problems:
            self._of_file(where, reason, self.result.problems)
        self.result.data_bytes += data_bytes
        self._progress.bytes_done += data_bytes

    def _check_unit(self, job: tuple[PackId, Unit[_Where]]) -> _Checked:
        """Checks files that lie wholly in a unit. Returns their problems and bytes."""
        pack, unit = job
        try:
            chunks: list[Buffer | LodefsError] = [
                *self._packs.read_span(pack, unit.first, unit.count)
            ]
        except _PROBLEMS:
            numbers = range(unit.first, unit.first + unit.count)
            chunks = [self._chunk(pack, number) for number in numbers]
        problems: list[tuple[_Where, object]] = []
        for first, count, where, _ in unit.parts:
            start = first - unit.first
            for n in range(start, start + count):
                if not chunks[n]:
                    chunks[n] = self._chunk(pack, unit.first + n)  # the error says why it is gone
            problems += _wrong(where, chunks[start : start + count])
        return problems, sum(part[2].entry.size_bytes for part in unit.parts)

    def _check_alone(self, where: _Where) -> _Checked:
        """Checks one file whose bytes lie in several places or are many."""
        entry = where.entry
        try:
            for _ in self._packs.read_file(entry):
                pass
        except _PROBLEMS as error:
            problems: list[tuple[_Where, object]] = [
                (where, chunk)
                for segment in entry.segments
                for number in range(segment.first, segment.first + segment.count)
                if isinstance(chunk := self._chunk(segment.pack, number), LodefsError)
            ]
            return problems or [(where, error)], entry.size_bytes
        return [], entry.size_bytes

    def _chunk(self, pack: PackId, number: int) -> Buffer | LodefsError:
        """Returns one chunk, or its problem."""
        try:
            return self._packs.read(pack, number, 1)[0]
        except _PROBLEMS as error:
            return error

    def _map(
        self, function: Callable[[T], U], items: Iterable[T]
    ) -> Iterator[tuple[U | None, LodefsError | None]]:
        """Yields the results of a function in the order of the items, or the problems."""

        def caught(item: T) -> tuple[U | None, LodefsError | None]:
            try:
                return function(item), None
            except _PROBLEMS as error:
                return None, error

        return map_ahead(self._executor, caught, items, self._ahead)

    def _problem(self, text: str) -> None:
        self.result.problems.append(text)


def _misfit(index: PackIndex, segment: Segment) -> LodefsError | None:
    """Returns an error if a segment names chunks that its pack does not have."""
    try:
        index.check_run(*segment[1:])
        index.check_there(segment.first, segment.count)
    except (Corrupt, Purged) as error:
        return error
    return None


def _wrong(where: _Where, chunks: Sequence[Buffer | LodefsError]) -> list[tuple[_Where, object]]:
    """Returns the problem of a file whose chunks were all read."""
    errors: list[tuple[_Where, object]]
    errors = [(where, chunk) for chunk in chunks if isinstance(chunk, LodefsError)]
    if errors:
        return errors
    hashed = blake3()
    for chunk in chunks:
        if not isinstance(chunk, LodefsError):
            hashed.update(chunk)
    if hashed.digest() != where.entry.digest:
        return [(where, "its chunks are right, but they do not match the file's digest")]
    return []

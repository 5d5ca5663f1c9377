"""Verify: checks that every reference of a store resolves, and with ``data`` every byte.

It goes from refs to commits, trees, pack indexes and chunks. It never stops at a problem: it lists
the problem with repository, commit, path, pack and chunk, and checks the rest. A source that the
settings do not name is one problem of all files that lie there. If the store, or a source, cannot
be reached or read, verify ends with that error, since its bytes may be fine.

Many machines verify at once in one of two ways. One process walks and reports, and tasks of an
executor read the files (``check_data``). Or each machine checks the files whose first pack is in
its share, after a walk of its own: the shares of all have the problems of one verification.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

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
from lodefs.chunkstore.repo.checks.data_check import (
    PROBLEMS,
    CheckData,
    Checked,
    DataCheck,
    DataJob,
    FoundFile,
)
from lodefs.chunkstore.repo.checks.sources_check import InPlace, add_objects, check_object
from lodefs.chunkstore.repo.entry_set import EntrySet, Stored, stored
from lodefs.chunkstore.repo.file_places import Places, find_places
from lodefs.chunkstore.repo.range_planner import Wanted, units
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.chunkstore.repo.shard_reader import read_shard
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import Place, join, walk_trees
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.task_share import TaskShare

WORKERS = 8
FILES_TOGETHER_MAX = 32_768  # files checked at once; bounds memory
PLACED_MAX = 10_000  # contents whose places are all listed; bounds memory
AHEAD = 4  # unprocessed results for each worker; bounds memory

T = TypeVar("T")
U = TypeVar("U")


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


class _Line:
    """A line of the report. Those of an earlier batch of files come first."""

    __slots__ = ("batch", "text")

    def __init__(self, batch: int, text: str) -> None:
        self.batch = batch
        self.text = text


def verify(
    store: Store,
    spec: Spec | None = None,
    *,
    data: bool = False,
    sources: bool = False,
    workers: int = WORKERS,
    progress: Progress | None = None,
    share: TaskShare | None = None,
    check_data: CheckData | None = None,
) -> VerifyResult:
    """Checks one revision (``spec``, whose path is ignored), or all that the store's branches and
    tags lead to, with older commits, and the index shards. With ``sources`` it also asks whether
    the objects of sources in which files lie are what they were. ``share``: check only the files
    and index shards of one task, but all trees. ``check_data`` reads the files, by default with
    threads.

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
                share=share,
            )
            if spec is None:
                work.shards()
                heads = list(work.heads())
            else:
                spec, commit_id = store.locate(spec)
                heads = [(spec.repo, commit_id)]
            jobs = work.commits(heads, with_trees_of_parents=spec is None)
            for checked in (check_data or work.by_threads)(jobs):
                work.add(checked)
            work.places()
            work.unknown_sources()
            return work.ended()
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
        share: TaskShare | None = None,
    ) -> None:
        self.result = VerifyResult()
        self._batch = 0  # of files, of the next lines
        self._problems: list[_Line] = []
        self._purged: list[_Line] = []
        self._store = store
        self._packs = store.packs
        self._executor = executor
        self._progress = progress
        self._data = data
        self._sources = sources
        self._ahead = ahead
        self._share = share
        self._seen = seen  # files and directories
        self._names: dict[tuple[str, CommitId], list[str]] = defaultdict(list)  # refs
        self._looked: list[tuple[str, CommitId]] = []  # commits whose files were checked
        # For each content, its lines among the problems
        self._bad: dict[Stored, list[tuple[list[_Line], _Line]]] = {}
        self._unknown: dict[str, FoundFile] = {}  # by error: the first file that was not checked

    def shards(self) -> None:
        """Checks that every index shard decodes and its packs exist, since pushes rely on that."""
        self._progress.phase = "checking index shards"
        for info in self._store.objects.list(keys.INDEX):
            if self._share is not None and not self._share.has(blake3(info.key.encode()).digest()):
                continue
            try:
                ids = [pack.pack_id for pack in read_shard(self._store.objects, info.key)]
            except NotFound:  # a gc run has rewritten it since it was listed
                continue
            except PROBLEMS as error:
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
                    except PROBLEMS as error:
                        self._problem(f"{repo}, {kind}/{name}: {error}")
                        continue
                    if entry is not None and entry.commit is not None:
                        self._names[repo, entry.commit].append(f"{repo}@{name}")
                        yield repo, entry.commit

    def commits(
        self, heads: Sequence[tuple[str, CommitId]], *, with_trees_of_parents: bool
    ) -> Iterator[DataJob]:
        """Checks all commits from ``heads`` back, along all parents, and their trees, and yields
        the jobs that remain: to read their files."""
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
            except PROBLEMS as error:
                # A branch or tag names it, or it has not expired
                if not isinstance(error, Expired) or at in first:
                    self._problem(f"{repo}@{commit_id.hex()}: {error}")
                continue
            self.result.commits += 1
            waiting.extend((repo, parent) for parent in commit.parents)
            if with_trees_of_parents or at in first:
                self._looked.append(at)
                yield from self._commit(repo, commit_id, commit)
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
                for _, line in lines:
                    line.text += f"; {found[key]}"

    def unknown_sources(self) -> None:
        """Adds a line for each source that the settings do not name."""
        for error, first in self._unknown.items():
            self._problem(f"{first}, and all else that lies there, was not checked: {error}")

    def by_threads(self, jobs: Iterable[DataJob]) -> Iterator[Checked]:
        """Does jobs with the threads of this process."""
        return map_ahead(self._executor, DataCheck(self._packs), jobs, self._ahead)

    def add(self, checked: Checked) -> None:
        """Adds what a job has found."""
        if checked.failed is not None:
            self._problems.append(_Line(checked.batch, str(checked.failed)))
            return
        for file, reason in checked.problems:
            self._of_file(file, reason, self._problems, checked.batch)
        self.result.data_bytes += checked.size_bytes
        self._progress.bytes_done += checked.size_bytes

    def ended(self) -> VerifyResult:
        """Returns the result, whose lines are in the order of the walk."""
        self.result.problems = _texts(self._problems)
        self.result.purged = _texts(self._purged)
        return self.result

    def _commit(self, repo: str, commit_id: CommitId, commit: Commit) -> Iterator[DataJob]:
        self._progress.phase = f"checking {repo}@{commit_id.hex()[:12]}"
        files = self._files(FoundFile(repo, commit_id, b"", commit.root))
        while batch := list(islice(files, FILES_TOGETHER_MAX)):
            yield from self._check_files(batch)
            self.result.files += len(batch)
            self._progress.files_done += len(batch)
            self._batch += 1

    def _files(self, root: FoundFile) -> Iterator[FoundFile]:
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
                if child.kind is Kind.FILE and self._is_ours(child) and self._seen.add(child):
                    yield root._replace(path=join(tree.node.path, child.name), entry=child)

    def _is_ours(self, file: TreeEntry) -> bool:
        if self._share is None:
            return True
        return self._share.has(file.segments[0].pack if file.segments else file.digest)

    def _check_files(self, batch: Sequence[FoundFile]) -> Iterator[DataJob]:
        """Checks segments against pack indexes, pack by pack, and yields jobs for the bytes."""
        wanted: dict[PackId, list[tuple[Segment, FoundFile]]] = defaultdict(list)
        for where in batch:
            for segment in where.entry.segments:
                wanted[segment.pack].append((segment, where))
        broken: set[FoundFile] = set()
        whole: dict[PackId, list[Wanted[FoundFile]]] = {}
        packs = list(wanted)
        for pack, (index, error) in zip(packs, self._map(self._packs.index, packs), strict=True):
            whole[pack] = good = []
            for segment, where in wanted[pack]:
                reason = error or (_misfit(index, segment) if index else None)
                if isinstance(reason, Purged):
                    if where not in broken:
                        self._of_file(where, reason, self._purged, self._batch)
                    broken.add(where)
                elif reason:
                    self._of_file(where, reason, self._problems, self._batch)
                    broken.add(where)
                elif len(where.entry.segments) == 1:
                    good.append(Wanted(segment.first, segment.count, where))
        if self._sources:
            self._check_sources(wanted)
        if self._data:
            yield from self._data_jobs(batch, whole, broken)

    def _check_sources(self, wanted: Mapping[PackId, Sequence[tuple[Segment, FoundFile]]]) -> None:
        """Asks for the objects of sources in which files lie, each once."""
        found: dict[SourceObject, InPlace[FoundFile]] = {}
        packs = list(wanted)
        for pack, (one, _) in zip(packs, self._map(self._packs.virtual, packs), strict=True):
            if one is not None:  # what cannot be read is told already
                add_objects(found, one, wanted[pack])
        self.result.source_objects += len(found)
        phase, check = self._progress.phase, partial(check_object, self._store.objects)
        asked = zip(found.values(), self._map(check, found.values()), strict=True)
        for number, (place, (_, error)) in enumerate(asked, 1):
            self._progress.phase = f"{phase}: {number:,} of {len(found):,} objects in place"
            if error is not None:
                for where in place.files:
                    self._of_file(where, error, self._problems, self._batch)
        self._progress.phase = phase

    def _data_jobs(
        self,
        batch: Sequence[FoundFile],
        whole: dict[PackId, list[Wanted[FoundFile]]],
        broken: set[FoundFile],
    ) -> Iterator[DataJob]:
        """Yields jobs for the bytes of files: small neighbours by unit, others file by file."""
        alone = [where for where in batch if len(where.entry.segments) > 1]
        for pack, runs in whole.items():
            fine = [run for run in runs if run.what not in broken]
            for unit in units(self._packs.index(pack), fine) if fine else ():
                kept = [part for part in unit.parts if part[1] == part[2].entry.segments[0].count]
                alone.extend(part[2] for part in unit.parts if part not in kept and not part[3])
                if kept:
                    yield DataJob(self._batch, (pack, unit._replace(parts=kept)))
        for where in alone:
            if where not in broken:
                yield DataJob(self._batch, where)

    def _of_file(
        self, where: FoundFile, reason: LodefsError, told: list[_Line], batch: int
    ) -> None:
        """Adds one line for each problem: several segments of a file may have the same problem."""
        if isinstance(reason, SourceUnknown):
            self._unknown.setdefault(str(reason), where)
            return
        text = f"{where}: {reason}"
        lines = self._bad.get(key := stored(where.entry), [])
        if any(line.text == text for one, line in lines if one is told):
            return
        line = _Line(batch, text)
        if lines or len(self._bad) < PLACED_MAX:
            self._bad.setdefault(key, []).append((told, line))
        told.append(line)

    def _map(
        self, function: Callable[[T], U], items: Iterable[T]
    ) -> Iterator[tuple[U | None, LodefsError | None]]:
        """Yields the results of a function in the order of the items, or the problems."""

        def caught(item: T) -> tuple[U | None, LodefsError | None]:
            try:
                return function(item), None
            except PROBLEMS as error:
                return None, error

        return map_ahead(self._executor, caught, items, self._ahead)

    def _problem(self, text: str) -> None:
        self._problems.append(_Line(self._batch, text))


def _misfit(index: PackIndex, segment: Segment) -> LodefsError | None:
    """Returns an error if a segment names chunks that its pack does not have."""
    try:
        index.check_run(*segment[1:])
        index.check_there(segment.first, segment.count)
    except (Corrupt, Purged) as error:
        return error
    return None


def _texts(lines: Sequence[_Line]) -> list[str]:
    return [line.text for line in sorted(lines, key=lambda one: one.batch)]

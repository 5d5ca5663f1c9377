"""Pull: a full copy of a revision into a directory, parallel, verified, resumable.

Chunks that lie together in a pack are read with one GET of about 8 MiB, and written with one
pwritev for each file that they belong to. Every chunk is checked against its BLAKE3 before it is
written; if a file came with one GET, its digest is checked, too. A file whose bytes are lost or
damaged does not stop the others: the pull ends with an error that names all such files.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError, Purged
from lodefs.chunkstore.format.names import CommitId, PackId, Spec, parse_id
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.format.tree import Kind, Segment, TreeEntry
from lodefs.chunkstore.pull.compare import first_difference, is_filled
from lodefs.chunkstore.pull.target import (
    DirectoryHandles,
    PullTarget,
    check_is_not_state,
    has_content,
    open_target,
    translated,
    updated_from,
)
from lodefs.chunkstore.pull.update import (
    Identity,
    Update,
    carry_out,
    named,
    plan_update,
    recorded_commit,
    write_record,
)
from lodefs.chunkstore.repo.history import find_in
from lodefs.chunkstore.repo.pack_reader import PackReader, damaged
from lodefs.chunkstore.repo.range_planner import Unit, Wanted, units
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import Place, join, walk_trees
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.types import Buffer

WORKERS = 8
FILES_TOGETHER_MAX = 32_768  # files planned at once; bounds memory for any size of dataset


@dataclass(slots=True)
class PullResult:
    """The result of a pull. Bytes are those of files' contents; ``fetched_bytes`` leaves out what
    an interrupted pull had fetched before."""

    commit: CommitId
    files: int = 0  # regular files
    symlinks: int = 0
    directories: int = 0
    size_bytes: int = 0
    fetched_bytes: int = 0
    unchanged: bool = False  # the directory had just this content already
    # of an update: its first commit; then the counts above are about the differences
    updated_from: CommitId | None = None
    removed: int = 0  # files and symlinks that an update removed
    # new paths of files that took the place of a dataset's file since the first pull was
    # interrupted
    kept: list[bytes] = field(default_factory=list)
    # files that are left out since bytes of them were purged; not counted above
    purged: list[bytes] = field(default_factory=list)
    # files that are lost or damaged, and why, and directories (with a slash); not counted above
    lost: dict[bytes, Corrupt] = field(default_factory=dict)

    def add(self, entry: TreeEntry) -> None:
        if entry.kind is Kind.DIRECTORY:
            self.directories += 1
        elif entry.kind is Kind.SYMLINK:
            self.symlinks += 1
        else:
            self.files += 1
            self.size_bytes += entry.size_bytes

    def leave_out(self, entry: TreeEntry) -> None:
        """Takes back the counts of a file that is left out."""
        self.files -= 1
        self.size_bytes -= entry.size_bytes


class Incomplete(Corrupt):
    """A pull whose ``result`` has files that are lost or damaged; all others were copied."""

    def __init__(self, message: str, result: PullResult) -> None:
        super().__init__(message)
        self.result = result


@dataclass(slots=True, eq=False)
class _File:
    """A file that is being pulled, and the number of its bytes in its part file."""

    path: bytes
    entry: TreeEntry
    left_bytes: int
    is_purged: bool = False  # bytes were purged, so it is left out
    error: Corrupt | None = None  # why some of its bytes cannot be read


class _Part(NamedTuple):
    """A segment of a file, and its offset in the file."""

    file: _File
    segment: Segment
    offset: int


Job = tuple[PackId, Unit[_Part]]


def pull(
    store: Store,
    spec: Spec,
    target: Path,
    *,
    workers: int = WORKERS,
    progress: Progress | None = None,
    sync: bool = True,
    since: CommitId | None = None,
    skip_purged: bool = False,
) -> PullResult:
    """Copies what ``spec`` names into the directory ``target``.

    A target that is a finished copy of another commit (``since``, or the one that it records) is
    updated: what differs between the two is replaced, unless it was changed since.

    The target must be missing, empty, or left by an interrupted pull of the same commit and path,
    which then continues: complete files are kept after their bytes are checked, and existing chunks
    of the others, too; an unrelated file at the path of one gets another name. A target with
    contents is only compared: it is accepted if it is exactly what ``spec`` names, byte by byte,
    and refused otherwise. A single file or symlink is put under its own name. Files get the time of
    the pull, since datasets have no modification times. A file with purged bytes ends the pull
    (Purged); with ``skip_purged`` it is left out, even if a copy had its older version. With
    ``sync`` everything is on disk on return. Memory: about ``workers`` times 32 MiB.

    Raises: NotFound, InvalidInput, InUse, NoSpace, Denied, Corrupt, Unavailable; Incomplete if
    files are lost or damaged, after all others were pulled. After an error the target keeps what
    was pulled, and its state, so that it does not look complete.
    """
    progress = progress or Progress()
    spec, commit_id = store.locate(spec)
    commit = store.commit(spec.repo, commit_id)
    root = find_in(store.packs, commit.root, spec)
    if not spec.path:
        progress.files_total, progress.bytes_total = commit.files, commit.size_bytes
    identity = _identity(store, spec, commit_id)
    result, old = PullResult(commit_id), None
    started = _started(target, identity, since)
    if started not in (None, commit_id) and started is not None:
        old = find_in(store.packs, store.commit(spec.repo, started).root, spec)
        identity["from"] = started.hex()
        result.updated_from = started
    elif is_filled(target):
        _compare(store, spec, root, target, result, progress, workers, skip_purged=skip_purged)
        write_record(target, identity)
        return result
    with open_target(target, identity, is_update=old is not None) as place, translated(target):
        executor = ThreadPoolExecutor(workers, thread_name_prefix="pull")
        try:
            run = _Pull(
                store.packs, place, executor, workers, result, progress, skip_purged=skip_purged
            )
            if old is None:
                run.run(root)
            else:
                run.update(plan_update(store, old, root, place.fd))
        except (Purged, Corrupt) as error:
            raise _named(error, spec, commit_id, is_one=root.kind is Kind.FILE) from error
        except InvalidInput:
            if old is not None and not place.resumed:
                place.finish()  # nothing was changed
            raise
        finally:
            executor.shutdown(cancel_futures=True)
        if result.lost:
            raise _incomplete(result, spec, commit_id)
        _finish(place, identity, progress, sync=sync)
    return result


def _finish(place: PullTarget, identity: Identity, progress: Progress, *, sync: bool) -> None:
    if sync:
        progress.phase = "writing to disk"
        place.sync()
    write_record(place.path, identity)
    place.finish()


def _identity(store: Store, spec: Spec, commit_id: CommitId) -> Identity:
    return {
        "store": store.settings.store_id,
        "repo": spec.repo,
        "commit": commit_id.hex(),
        "path": spec.path.hex(),
    }


def _started(target: Path, identity: Identity, since: CommitId | None) -> CommitId | None:
    """Returns the commit of a filled target, as far as it is known."""
    if (interrupted := updated_from(target)) is not None:
        return CommitId(parse_id(interrupted))
    if not is_filled(target):
        return None
    return since or recorded_commit(target, identity)


def _version(spec: Spec, commit_id: CommitId) -> str:
    return f"{spec} ({commit_id.hex()[:12]})"


def _named(
    error: Purged | Corrupt, spec: Spec, commit_id: CommitId, *, is_one: bool
) -> LodefsError:
    """Returns the error with the version that was pulled, and the way out."""
    if isinstance(error, Corrupt):
        return damaged(_version(spec, commit_id), error)
    other = "Pull a version that has other bytes there (lodefs log lists them)"
    if not is_one:
        other += ", or leave out such files: lodefs pull --skip-purged"
    return Purged(f"{_version(spec, commit_id)}: {error}. {other}")


def _incomplete(result: PullResult, spec: Spec, commit_id: CommitId) -> Incomplete:
    """Returns the error that names the files that are lost or damaged, and why the first is."""
    paths = sorted(result.lost)
    error = damaged(f"{_version(spec, commit_id)}: {named(paths)}", result.lost[paths[0]])
    rest = ""
    if result.files:
        rest = ". All else was copied; repeat the command when the data is back"
    return Incomplete(f"{error}{rest}", result)


def _compare(
    store: Store,
    spec: Spec,
    root: TreeEntry,
    target: Path,
    result: PullResult,
    progress: Progress,
    workers: int,
    *,
    skip_purged: bool,
) -> None:
    """Compares a directory with contents. Raises: InvalidInput if it differs."""
    progress.phase = "comparing"
    if root.kind is Kind.DIRECTORY:
        result.add(root)

    def alike(entry: TreeEntry) -> None:
        result.add(entry)
        if entry.kind is not Kind.DIRECTORY:
            progress.files_done += 1
            progress.bytes_done += entry.size_bytes if entry.kind is Kind.FILE else 0

    purged = result.purged if skip_purged else []

    def may_lack(path: bytes, entry: TreeEntry) -> bool:
        if not _is_purged(store.packs, entry):
            return False
        purged.append(path)
        return skip_purged

    with ThreadPoolExecutor(workers, thread_name_prefix="pull") as executor:
        found = first_difference(store.packs, root, target, executor, alike, may_lack)
    if found is not None:
        path, how = found
        if path in purged:
            how += " (its bytes were purged: --skip-purged leaves such files out)"
        raise InvalidInput(
            f"{target} is not empty, and differs from {spec}: {_shown(path)} {how}. "
            "Nothing was changed: pull into a directory that is empty or does not exist, or say "
            "with --from which revision the directory is a copy of"
        )
    result.unchanged = True


class _Pull:
    """One pull."""

    def __init__(
        self,
        packs: PackReader,
        target: PullTarget,
        executor: ThreadPoolExecutor,
        workers: int,
        result: PullResult,
        progress: Progress,
        *,
        skip_purged: bool,
    ) -> None:
        self._skip_purged = skip_purged
        self._is_update = False
        self._packs = packs
        self._target = target
        self._executor = executor
        self._jobs_max = 2 * workers
        self._progress = progress
        self._lock = threading.Lock()  # guards the result, progress and files' left_bytes
        self._failed = threading.Event()
        self._result = result

    def run(self, root: TreeEntry) -> None:
        """Pulls everything at and below ``root``."""
        self._progress.phase = "pulling"
        files = self._prepare(root)
        while batch := list(islice(files, FILES_TOGETHER_MAX)):
            if self._target.resumed:
                batch = self._missing(batch)
            self._run_jobs(self._jobs(batch))

    def update(self, plan: Update) -> None:
        """Updates a copy to another version."""
        self._progress.phase = "updating"
        self._is_update = True
        carry_out(plan, self._target.fd)
        for entry in (entry for _, entry in (*plan.symlinks, *plan.files)):
            self._result.add(entry)
        self._result.directories, self._result.removed = len(plan.directories), plan.removed
        self._progress.files_total = len(plan.files)
        self._progress.bytes_total = sum(entry.size_bytes for _, entry in plan.files)
        files = [_File(path, entry, entry.size_bytes) for path, entry in plan.files]
        for at in range(0, len(files), FILES_TOGETHER_MAX):
            self._run_jobs(self._jobs(files[at : at + FILES_TOGETHER_MAX]))

    def _prepare(self, root: TreeEntry) -> Iterator[_File]:
        """Makes directories and symlinks as they are found, and yields the files."""
        with DirectoryHandles(self._target.fd) as handles:
            for path, entry in self._entries(root):
                check_is_not_state(path)
                self._result.add(entry)
                if entry.kind is Kind.DIRECTORY:
                    self._target.make_directory(path, handles)
                    continue
                if entry.kind is Kind.SYMLINK:
                    self._target.make_symlink(path, entry.target, handles)
                    with self._lock:
                        self._progress.files_done += 1
                    continue
                yield _File(path, entry, entry.size_bytes)

    def _entries(self, root: TreeEntry) -> Iterator[tuple[bytes, TreeEntry]]:
        if root.kind is not Kind.DIRECTORY:
            yield root.name, root
            return
        self._result.add(root)
        for tree in walk_trees(self._packs, [Place(None, b"", root)], self._executor):
            if isinstance(tree.error, Corrupt) and tree.node.path:
                self._result.lost[tree.node.path + b"/"] = tree.error
                continue
            for child in tree.content:
                yield join(tree.node.path, child.name), child

    def _missing(self, batch: list[_File]) -> list[_File]:
        """Returns the files that an interrupted pull did not complete."""
        size = -(-len(batch) // self._jobs_max)
        shares = [batch[start : start + size] for start in range(0, len(batch), size)]
        return [file for part in self._executor.map(self._missing_of, shares) for file in part]

    def _missing_of(self, files: Sequence[_File]) -> list[_File]:
        missing = []
        with DirectoryHandles(self._target.fd) as handles:
            for file in files:
                if has_content(file.path, file.entry, handles):
                    self._count(file.left_bytes, 0, 1)
                    continue
                missing.append(file)
                if (kept := self._target.set_aside(file.path, handles)) is not None:
                    with self._lock:
                        self._result.kept.append(kept)
        return missing

    def _jobs(self, batch: Sequence[_File]) -> Iterator[Job | list[_File]]:
        """Yields the jobs of the threads: fetch a unit, or complete files without bytes."""
        wanted: dict[PackId, list[Wanted[_Part]]] = defaultdict(list)
        for file in batch:
            offset = 0
            for segment in file.entry.segments:
                run = Wanted(segment.first, segment.count, _Part(file, segment, offset))
                wanted[segment.pack].append(run)
                offset += segment.size_bytes
        if empty := [file for file in batch if not file.entry.segments]:
            yield empty
        for pack, pending in self._indexes(list(wanted)):
            runs = wanted.pop(pack)
            if sound := [*self._sound(runs, pending)]:
                for unit in units(pending.result(), sound):
                    yield pack, unit

    def _sound(
        self, runs: Sequence[Wanted[_Part]], index: Future[PackIndex]
    ) -> Iterator[Wanted[_Part]]:
        """Yields the runs that a pack has as a file's segment says."""
        for run in runs:
            file, segment, _ = run.what
            try:
                index.result().check_run(*segment[1:])
                yield run
            except Corrupt as error:
                file.error = error
                if self._count_off(file, segment.size_bytes):
                    self._lose(file, error)

    def _indexes(self, packs: Sequence[PackId]) -> Iterator[tuple[PackId, Future[PackIndex]]]:
        """Yields each pack with its index, which the threads read some packs ahead."""
        ahead: deque[tuple[PackId, Future[PackIndex]]] = deque()
        for pack in packs:
            ahead.append((pack, self._executor.submit(self._packs.index, pack)))
            if len(ahead) > self._jobs_max:
                yield ahead.popleft()
        yield from ahead

    def _run_jobs(self, jobs: Iterator[Job | list[_File]]) -> None:
        """Runs all jobs, at most ``_jobs_max`` at once; the first error ends them."""
        running: set[Future[None]] = set()
        try:
            for job in jobs:
                running.add(self._executor.submit(self._do, job))
                if len(running) >= self._jobs_max:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            self._failed.set()
            raise

    def _do(self, job: Job | list[_File]) -> None:
        if self._failed.is_set():
            return
        with DirectoryHandles(self._target.fd) as handles:
            if isinstance(job, list):
                for file in job:
                    self._complete(file, handles)
            else:
                self._fetch(*job, handles)

    def _fetch(self, pack: PackId, unit: Unit[_Part], handles: DirectoryHandles) -> None:
        """Brings a unit, and completes the files whose last bytes it has."""
        self._bring(pack, unit)
        raw = self._packs.index(pack).raw_offsets
        for first, count, (file, _, _), _ in unit.parts:
            if not self._count_off(file, raw[first + count] - raw[first]):
                continue
            if file.error is not None:
                self._lose(file, file.error)
            elif file.is_purged:
                self._leave_out(file, handles)
            else:
                self._complete(file, handles)

    def _bring(self, pack: PackId, unit: Unit[_Part]) -> None:
        """Reads a unit, unless all of it exists, and writes it into the files that it belongs to.
        If bytes of it are lost or damaged, each of the files gets its own part, if that can be
        read."""
        if all(file.error is not None for _, _, (file, _, _), _ in unit.parts):
            return
        try:
            if not (self._target.resumed and self._is_there(pack, unit)):
                chunks = self._packs.read_span(pack, unit.first, unit.count)
                self._write(unit, chunks)
                self._count(0, sum(map(len, chunks)), 0)
        except Corrupt as error:
            if len(unit.parts) == 1:
                unit.parts[0][2].file.error = error
                return
            for part in unit.parts:
                self._bring(pack, Unit(part[0], part[1], [part]))

    def _write(self, unit: Unit[_Part], chunks: Sequence[Buffer]) -> None:
        for first, count, (file, segment, offset), before in unit.parts:
            start = first - unit.first
            run = chunks[start : start + count]
            if not all(run):
                self._check_there(file, segment.pack, first, count)
                file.is_purged = True
            if file.is_purged:
                continue
            if before == 0 and len(file.entry.segments) == 1:
                _check_digest(file, run)
            self._target.write(file.path, file.entry, offset + before, run)

    def _check_there(self, file: _File, pack: PackId, first: int, count: int) -> None:
        """Raises: Corrupt, and Purged with the file's name, for chunks that are gone, unless purged
        ones are left out."""
        try:
            self._packs.index(pack).check_there(first, count)
        except Purged as error:
            if self._skip_purged:
                return
            shown = _shown(file.path)
            raise Purged(
                f"{shown} was purged: its bytes are gone for good (lodefs purge)"
            ) from error
        raise Corrupt(f"a chunk of pack {pack.hex()} is gone")

    def _is_there(self, pack: PackId, unit: Unit[_Part]) -> bool:
        """Whether an interrupted pull fetched all of a unit; its chunks are read and checked."""
        index = self._packs.index(pack)
        for first, count, (file, _, offset), before in unit.parts:
            fd = self._target.part(file.path)
            if fd is None:
                return False
            at = offset + before
            try:
                for place in index.places(first, count):
                    data = os.pread(fd, place.raw_size_bytes, at)
                    if blake3(data).digest() != place.id:
                        return False
                    at += place.raw_size_bytes
            finally:
                os.close(fd)
        return True

    def _complete(self, file: _File, handles: DirectoryHandles) -> None:
        self._target.complete(file.path, file.entry, handles)
        self._count(0, 0, 1)

    def _leave_out(self, file: _File, handles: DirectoryHandles) -> None:
        self._target.drop(file.path, handles, is_update=self._is_update)
        with self._lock:
            self._result.leave_out(file.entry)
            self._result.purged.append(file.path)
        self._count(0, 0, 1)

    def _lose(self, file: _File, error: Corrupt) -> None:
        """Notes a file that cannot be completed. Its part file stays, for the next pull."""
        with self._lock:
            self._result.leave_out(file.entry)
            self._result.lost[file.path] = error
        self._count(0, 0, 1)

    def _count_off(self, file: _File, size_bytes: int) -> bool:
        """Counts bytes of a file that were brought, or cannot be. Returns whether they are the
        last."""
        with self._lock:
            file.left_bytes -= size_bytes
            is_last = file.left_bytes == 0
        self._count(size_bytes, 0, 0)
        return is_last

    def _count(self, done_bytes: int, fetched_bytes: int, files: int) -> None:
        with self._lock:
            self._progress.bytes_done += done_bytes
            self._progress.bytes_sent += fetched_bytes
            self._progress.files_done += files
            self._result.fetched_bytes += fetched_bytes


def _is_purged(packs: PackReader, entry: TreeEntry) -> bool:
    """Whether bytes of a file were purged."""
    try:
        for segment in entry.segments:
            packs.index(segment.pack).check_there(segment.first, segment.count)
    except Purged:
        return True
    return False


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _check_digest(file: _File, chunks: Sequence[Buffer]) -> None:
    """Checks the digest of a file whose bytes are all here. The id of a single chunk is the
    digest."""
    if sum(map(len, chunks)) != file.entry.size_bytes:
        return  # the rest is in other units; `verify --data` checks such files
    hashed = blake3()
    for chunk in chunks:
        hashed.update(chunk)
    if hashed.digest() != file.entry.digest:
        raise Corrupt("its chunks are right, but they do not match the file's digest")

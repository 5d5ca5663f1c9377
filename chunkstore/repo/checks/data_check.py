"""Checks the bytes of files: small neighbours in a pack with one read, others file by file.

A job has all that a check needs besides the store, so another process may do it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, LodefsError, SourceUnknown
from lodefs.chunkstore.format.names import CommitId, PackId, Spec
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.range_planner import Unit
from lodefs.chunkstore.repo.tree_walk import BAD_TREE
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.types import Buffer

PROBLEMS = (*BAD_TREE, SourceUnknown)  # of a file, and not of the store


class FoundFile(NamedTuple):
    """The first commit and path at which an entry was found."""

    repo: str
    commit: CommitId
    path: bytes
    entry: TreeEntry

    def __str__(self) -> str:
        return f"{Spec(self.repo, self.commit.hex()[:12], self.path)}"


class DataJob(NamedTuple):
    """Files to read: those that lie wholly in a unit of a pack, or one that lies anywhere.
    ``batch`` is for the caller."""

    batch: int
    what: tuple[PackId, Unit[FoundFile]] | FoundFile

    @property
    def size_bytes(self) -> int:
        """The bytes of the files."""
        if isinstance(self.what, FoundFile):
            return self.what.entry.size_bytes
        return sum(part[2].entry.size_bytes for part in self.what[1].parts)


class Checked(NamedTuple):
    """What a job has found: problems with their files, and how many bytes of files were checked.
    ``failed``: why the whole job could not be done."""

    batch: int
    problems: Sequence[tuple[FoundFile, LodefsError]]
    size_bytes: int
    failed: LodefsError | None = None


CheckData = Callable[[Iterable[DataJob]], Iterator[Checked]]
"""Does jobs, which it takes on demand, and yields the results in their order."""


def check_group(packs: PackReader, jobs: Sequence[DataJob], workers: int) -> list[Checked]:
    """Does some jobs with so many threads. Raises: Unavailable, Denied."""
    with ThreadPoolExecutor(workers, "lodefs-verify") as executor:
        return list(map_ahead(executor, DataCheck(packs), jobs, workers))


class DataCheck:
    """Does jobs, for any thread. Raises: Unavailable, Denied."""

    def __init__(self, packs: PackReader) -> None:
        self._packs = packs

    def __call__(self, job: DataJob) -> Checked:
        try:
            if isinstance(job.what, FoundFile):
                problems = self._in_file(job.what)
            else:
                problems = self._in_unit(*job.what)
        except PROBLEMS as error:
            return Checked(job.batch, (), 0, error)
        return Checked(job.batch, problems, job.size_bytes)

    def _in_unit(self, pack: PackId, unit: Unit[FoundFile]) -> list[tuple[FoundFile, LodefsError]]:
        """Checks files that lie wholly in a unit. Returns their problems."""
        try:
            chunks: list[Buffer | LodefsError] = [
                *self._packs.read_span(pack, unit.first, unit.count)
            ]
        except PROBLEMS:
            numbers = range(unit.first, unit.first + unit.count)
            chunks = [self._chunk(pack, number) for number in numbers]
        problems: list[tuple[FoundFile, LodefsError]] = []
        for first, count, file, _ in unit.parts:
            start = first - unit.first
            for n in range(start, start + count):
                if not chunks[n]:
                    chunks[n] = self._chunk(pack, unit.first + n)  # the error says why it is gone
            problems += _wrong(file, chunks[start : start + count])
        return problems

    def _in_file(self, file: FoundFile) -> list[tuple[FoundFile, LodefsError]]:
        """Checks one file whose bytes lie in several places or are many. Returns its problems."""
        entry = file.entry
        try:
            for _ in self._packs.read_file(entry):
                pass
        except PROBLEMS as error:
            problems = [
                (file, chunk)
                for segment in entry.segments
                for number in range(segment.first, segment.first + segment.count)
                if isinstance(chunk := self._chunk(segment.pack, number), LodefsError)
            ]
            return problems or [(file, error)]
        return []

    def _chunk(self, pack: PackId, number: int) -> Buffer | LodefsError:
        """Returns one chunk, or its problem."""
        try:
            return self._packs.read(pack, number, 1)[0]
        except PROBLEMS as error:
            return error


def _wrong(
    file: FoundFile, chunks: Sequence[Buffer | LodefsError]
) -> list[tuple[FoundFile, LodefsError]]:
    """Returns the problems of a file whose chunks were all read."""
    errors = [(file, chunk) for chunk in chunks if isinstance(chunk, LodefsError)]
    if errors:
        return errors
    hashed = blake3()
    for chunk in chunks:
        if not isinstance(chunk, LodefsError):
            hashed.update(chunk)
    if hashed.digest() != file.entry.digest:
        return [(file, Corrupt("its chunks are right, but they do not match the file's digest"))]
    return []

"""Cuts a scan into the parts of a plan, and reads a scan back from one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from lodefs.chunkstore.format.push_plan import PlannedDirectory, PlannedPart
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.scanner import Columns, ScannedDirectory, Skipped, SourceNotes

_NAME_SIZE_BYTES = 64  # roughly what a file takes in a document besides its name
_NOT_RACY_NS = 1 << 62  # nothing of a part is remembered, so no file is too young for that


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The largest part. A file that is larger is a part of its own. Each part may be larger than
    the one before by a step: so a small source has parts for many tasks, and a large one few."""

    files: int = 50_000
    size_bytes: int = 8 << 30
    document_bytes: int = 16 << 20  # of names and paths
    files_step: int = 2000
    size_bytes_step: int = 256 << 20

    def of(self, number: int) -> PartLimits:
        """Returns the limits of the part with that number."""
        files = min(self.files, self.files_step * (number + 1))
        size_bytes = min(self.size_bytes, self.size_bytes_step * (number + 1))
        return replace(self, files=files, size_bytes=size_bytes)


def parts_of(scan: Iterable[ScannedDirectory], limits: PartLimits) -> Iterator[PlannedPart]:
    """Yields the parts of a scan, in its order; at least one. A directory with many files may go on
    in the next part."""
    number, part = 0, _OpenPart(limits.of(0))
    for directory in scan:
        start, columns = 0, directory.columns
        part.document_bytes += len(directory.path) + _NAME_SIZE_BYTES
        for n, (name, size_bytes) in enumerate(zip(columns.names, columns.sizes, strict=True)):
            if part.is_full(size_bytes):
                part.add(directory, start, n)
                yield PlannedPart(number, part.directories)
                number, start = number + 1, n
                part = _OpenPart(limits.of(number))
            part.files += 1
            part.size_bytes += size_bytes
            part.document_bytes += len(name) + _NAME_SIZE_BYTES
        part.add(directory, start, len(columns.names))
        if part.document_bytes > limits.document_bytes:  # of directories alone, perhaps
            yield PlannedPart(number, part.directories)
            number += 1
            part = _OpenPart(limits.of(number))
    if part.directories:
        yield PlannedPart(number, part.directories)


@dataclass(slots=True)
class _OpenPart:
    limits: PartLimits
    directories: list[PlannedDirectory] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0
    document_bytes: int = 0

    def is_full(self, more_bytes: int) -> bool:
        """Whether one more file must go into another part."""
        limits = self.limits
        return self.files > 0 and (
            self.files >= limits.files
            or self.size_bytes + more_bytes > limits.size_bytes
            or self.document_bytes > limits.document_bytes
        )

    def add(self, directory: ScannedDirectory, start: int, end: int) -> None:
        """Adds the files of a directory with these numbers; without any, the empty directory."""
        columns = directory.columns
        if start == end and columns.names:
            return
        self.directories.append(
            PlannedDirectory(
                directory.path,
                columns.names[start:end],
                bytes(columns.modes[start:end]),
                columns.sizes[start:end].tolist(),
                columns.mtimes_ns[start:end].tolist(),
                columns.ctimes_ns[start:end].tolist(),
            )
        )


@dataclass(slots=True)
class PartScan:
    """The scan of one part: its directories, and those above them, of which it has no files."""

    directories: Sequence[PlannedDirectory]
    skip_unreadable: bool = False
    skipped: list[Skipped] = field(default_factory=list)
    ignore: IgnoreRules = field(default_factory=IgnoreRules)  # the plan has applied them
    notes: SourceNotes = field(default_factory=SourceNotes)

    def __iter__(self) -> Iterator[ScannedDirectory]:
        """Yields directories in the order of Scan."""
        opened: list[bytes] | None = None  # the names on the way to the directory before
        for directory in self.directories:
            names = directory.path.split(b"/") if directory.path else []
            for depth in range(_known_depth(opened, names), len(names)):
                yield ScannedDirectory(b"/".join(names[:depth]), depth, Columns(), [], _NOT_RACY_NS)
            yield ScannedDirectory(
                directory.path, len(names), _columns(directory), [], _NOT_RACY_NS
            )
            opened = names


def _known_depth(opened: Sequence[bytes] | None, names: Sequence[bytes]) -> int:
    """Returns how many of the directories above ``names`` lie above ``opened`` too, or are it."""
    if opened is None:
        return 0
    common = 0
    for one, other in zip(opened, names, strict=False):
        if one != other:
            break
        common += 1
    return common + 1


def _columns(directory: PlannedDirectory) -> Columns:
    return Columns(
        zip(
            directory.names, directory.modes, directory.sizes, directory.mtimes_ns, repeat(0),
            directory.ctimes_ns,
        )
    )  # fmt: skip

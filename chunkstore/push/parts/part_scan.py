"""Cuts a scan into the parts of a plan, and reads a scan back from one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from lodefs.chunkstore.format.push_plan import (
    PlannedDirectory,
    PlannedPart,
    PlannedPiece,
)
from lodefs.chunkstore.push.ignore_rules import IgnoreRules
from lodefs.chunkstore.push.scanner import Columns, ScannedDirectory, Skipped, SourceNotes
from lodefs.chunkstore.push.workers.source_files import Stretch

_NAME_SIZE_BYTES = 64  # roughly what a file takes in a document besides its name
_NOT_RACY_NS = 1 << 62  # nothing of a part is remembered, so no file is too young for that


@dataclass(frozen=True, slots=True)
class PartLimits:
    """The largest part. A file that is larger is a part of its own, and one of more than
    ``whole_bytes`` is in several. Each part may be larger than the one before by a step: so a small
    source has parts for many tasks, a large one has few, and the first version of its files is
    stored before a task reads the second one."""

    files: int = 50_000
    size_bytes: int = 8 << 30
    document_bytes: int = 16 << 20  # of names and paths
    files_step: int = 500
    size_bytes_step: int = 64 << 20
    # Pieces are read twice, the second time by one machine for the digest of the whole file
    whole_bytes: int = 64 << 30
    piece_bytes: int = 8 << 30

    def of(self, number: int) -> PartLimits:
        """Returns the limits of the part with that number."""
        files = min(self.files, self.files_step * (number + 1))
        size_bytes = min(self.size_bytes, self.size_bytes_step * (number + 1))
        return replace(self, files=files, size_bytes=size_bytes)


def parts_of(scan: Iterable[ScannedDirectory], limits: PartLimits) -> Iterator[PlannedPart]:
    """Yields the parts of a scan, in its order; at least one. A directory with many files may go on
    in the next part."""
    cutter = _Cutter(limits)
    for directory in scan:
        yield from cutter.parts_up_to(directory)
    if cutter.number == 0 or cutter.part.directories:
        yield cutter.close()


class _Cutter:
    """Numbers parts, and has the one that is being filled."""

    def __init__(self, limits: PartLimits) -> None:
        self._limits = limits
        self.number = 0
        self.part = _OpenPart(limits.of(0))

    def close(self) -> PlannedPart:
        """Returns the part that was filled, and begins the next one."""
        return self._numbered(self.part.directories)

    def parts_up_to(self, directory: ScannedDirectory) -> Iterator[PlannedPart]:
        """Adds a directory. Yields the parts that became full before all of it was in them."""
        start, columns = 0, directory.columns
        self.part.document_bytes += len(directory.path) + _NAME_SIZE_BYTES
        for n, (name, size_bytes) in enumerate(zip(columns.names, columns.sizes, strict=True)):
            is_cut = size_bytes > self._limits.whole_bytes
            if is_cut or self.part.is_full(size_bytes):
                self.part.add(directory, start, n)
                if self.part.directories:
                    yield self.close()
                start = n
            if is_cut:
                yield from self._in_pieces(_some(directory, n, n + 1), size_bytes)
                start = n + 1
            else:
                self.part.count(name, size_bytes)
        self.part.add(directory, start, len(columns.names))
        if self.part.document_bytes > self._limits.document_bytes:  # of directories alone, perhaps
            yield self.close()

    def _in_pieces(self, file: PlannedDirectory, size_bytes: int) -> Iterator[PlannedPart]:
        """Yields the parts of a large file, the one that takes longest first."""
        yield self._numbered([file], PlannedPiece(0, size_bytes, is_digest=True))
        step = self._limits.piece_bytes
        for begin in range(0, size_bytes, step):
            end = min(begin + step, size_bytes)
            yield self._numbered([file], PlannedPiece(begin, end, is_digest=False))

    def _numbered(
        self, directories: list[PlannedDirectory], piece: PlannedPiece | None = None
    ) -> PlannedPart:
        part = PlannedPart(self.number, directories, piece)
        self.number += 1
        self.part = _OpenPart(self._limits.of(self.number))
        return part


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

    def count(self, name: bytes, size_bytes: int) -> None:
        """Counts one more file."""
        self.files += 1
        self.size_bytes += size_bytes
        self.document_bytes += len(name) + _NAME_SIZE_BYTES

    def add(self, directory: ScannedDirectory, start: int, end: int) -> None:
        """Adds the files of a directory with these numbers; without any, the empty directory."""
        if start < end or not directory.columns.names:
            self.directories.append(_some(directory, start, end))


def _some(directory: ScannedDirectory, start: int, end: int) -> PlannedDirectory:
    """Returns a directory with the files that have these numbers."""
    columns = directory.columns
    return PlannedDirectory(
        directory.path,
        columns.names[start:end],
        bytes(columns.modes[start:end]),
        columns.sizes[start:end].tolist(),
        columns.mtimes_ns[start:end].tolist(),
        columns.ctimes_ns[start:end].tolist(),
    )


@dataclass(slots=True)
class PartScan:
    """The scan of one part: its directories, and those above them, of which it has no files.
    ``stretch`` is what is stored of the only file, if that is not all."""

    directories: Sequence[PlannedDirectory]
    skip_unreadable: bool = False
    stretch: Stretch | None = None
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
                directory.path, len(names), columns_of(directory), [], _NOT_RACY_NS
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


def columns_of(directory: PlannedDirectory) -> Columns:
    """Returns the files of a directory as a scan has them."""
    return Columns(
        zip(
            directory.names, directory.modes, directory.sizes, directory.mtimes_ns, repeat(0),
            directory.ctimes_ns,
        )
    )  # fmt: skip

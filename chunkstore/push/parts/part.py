"""Reads one part of a planned push: cuts, hashes and packs it.

The result is a directory in the store that has only the files of the part, so a commit needs
nothing but these directories, put together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN, Large
from lodefs.chunkstore.format.names import Digest
from lodefs.chunkstore.format.push_plan import (
    FilePiece,
    PartResult,
    PlannedDirectory,
    PlannedPart,
)
from lodefs.chunkstore.format.tree import EMPTY_DIGEST
from lodefs.chunkstore.push.index.stat_cache import NoStats
from lodefs.chunkstore.push.pack_writer import Placement
from lodefs.chunkstore.push.parts.part_scan import PartScan
from lodefs.chunkstore.push.parts.whole_digest import read_digest
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.push.source_directory import SourceDirectory, tree_writer
from lodefs.chunkstore.push.trees.tree_writer import TreeWriter
from lodefs.chunkstore.push.workers.source_files import Stretch

SKIPPED_MAX = 100  # paths that a result names
_REASON_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class PartPacks:
    """The packs into which the parts of one session go, one after the other: what one of them has
    stored, the next one knows while it is still under way."""

    data: Placement
    trees: TreeWriter

    @classmethod
    def of(cls, session: PushSession) -> PartPacks:
        """Returns new ones."""
        return cls(session.placement(), tree_writer(session, NoStats()))


def read_part(session: PushSession, packs: PartPacks, root: bytes, part: PlannedPart) -> PartResult:
    """Reads a part. The last of its packs are under way when it returns.

    Raises: SourceChanged, Denied, Unavailable for files that are no longer as planned, unless
    unreadable ones are skipped; what the store raises.
    """
    if part.piece is None:
        return _read_files(session, packs, root, part)
    if part.piece.is_digest:
        return _read_digest(session, packs, root, part)
    return _read_files(session, packs, root, part, Stretch(part.piece.begin, part.piece.end))


def _read_files(
    session: PushSession,
    packs: PartPacks,
    root: bytes,
    part: PlannedPart,
    stretch: Stretch | None = None,
) -> PartResult:
    """Stores the files of a part, or the chunks of a piece of its only file."""
    session.learn(again=True)
    scan = PartScan(part.directories, session.options.skip_unreadable, stretch)
    with SourceDirectory(root, session, _no_count, scan, packs.data) as source:
        entry = packs.trees.store(source.read())
    tree, totals, skipped = source.tree, source.tree.totals, scan.skipped
    piece = None
    if stretch is not None:
        begin = 0 if tree.stretch is None else tree.stretch.begin
        piece = FilePiece(_path_of(part), begin, None)
    is_counted = piece is None  # else by the part that has the digest of the file
    return PartResult(
        number=part.number,
        writer=session.write.begin().number,
        purges_seen=session.index.purges_seen,
        root=entry,
        files=totals.files if is_counted else 0,
        symlinks=totals.symlinks,
        size_bytes=totals.size_bytes if is_counted else 0,
        large=Large(totals.large_files, totals.large_size_bytes) if is_counted else Large(0, 0),
        files_read=source.deduplicator.files_read if is_counted else 0,
        new_bytes=source.deduplicator.new_bytes,
        stored_bytes=0,
        skipped=[(one.path, one.reason[:_REASON_CHARS_MAX]) for one in skipped[:SKIPPED_MAX]],
        skipped_files=len(skipped),
        piece=piece,
    )


def _read_digest(
    session: PushSession, packs: PartPacks, root: bytes, part: PlannedPart
) -> PartResult:
    """Reads all of a large file, and stores the directories above it."""
    directory, path = part.directories[-1], _path_of(part)
    size_bytes, skipped = directory.sizes[0], list[Skipped]()
    digest = EMPTY_DIGEST
    session.begin()  # nothing may be stored for hours, and heartbeats keep the plan
    try:
        digest = Digest(read_digest(root, directory, session.progress))
    except LodefsError as error:
        if not session.options.skip_unreadable:
            raise
        size_bytes, skipped = 0, [Skipped(path, str(error))]
    without = PlannedDirectory(directory.path, [], b"", [], [], [])
    result = _read_files(session, packs, root, PlannedPart(part.number, [without]))
    files = 1 - len(skipped)
    large_files = files if size_bytes >= LARGE_SIZE_BYTES_MIN else 0
    return replace(
        result,
        files=files,
        files_read=files,
        size_bytes=size_bytes,
        large=Large(large_files, large_files * size_bytes),
        skipped=[(one.path, one.reason[:_REASON_CHARS_MAX]) for one in skipped],
        skipped_files=len(skipped),
        piece=FilePiece(path, 0, digest.hex()),
    )


def _path_of(part: PlannedPart) -> bytes:
    """Returns the path of the only file in a part."""
    directory = part.directories[-1]
    return b"/".join(filter(None, (directory.path, directory.names[0])))


def _no_count(size_bytes: int) -> None:
    """The plan has checked the quota."""

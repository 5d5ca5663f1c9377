"""Does one part of a planned push: reads, cuts, hashes, packs, and leaves a result in the store.

Any machine may do any part, at any time, and again. The result is a directory in the store that has
only the files of the part, so a commit needs nothing but these directories, put together.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format.commit import LARGE_SIZE_BYTES_MIN, Large
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import Digest
from lodefs.chunkstore.format.push_plan import (
    FilePiece,
    PartFailure,
    PartResult,
    PlannedDirectory,
    PlannedPart,
    PushPlan,
)
from lodefs.chunkstore.format.tree import EMPTY_DIGEST, TreeEntry
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.push_plans import PushPlans, commit_of, join_plan
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.journal.tombstoned import MemoryCondemned
from lodefs.chunkstore.push.committer import Committer
from lodefs.chunkstore.push.pack_check import lacking_named
from lodefs.chunkstore.push.parts.part_scan import PartScan
from lodefs.chunkstore.push.parts.plan import open_plan
from lodefs.chunkstore.push.parts.whole_digest import read_digest
from lodefs.chunkstore.push.scanner import Skipped
from lodefs.chunkstore.push.session import AttemptResult, PushOptions, PushSession
from lodefs.chunkstore.push.source_directory import SourceDirectory
from lodefs.chunkstore.push.trees.directories import Totals
from lodefs.chunkstore.push.workers.source_files import Stretch
from lodefs.chunkstore.repo.pack_reader import PackReader
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

SKIPPED_MAX = 100  # paths that a result names
_REASON_CHARS_MAX = 300


def do_part(
    store: Store,
    name: str,
    number: int,
    options: PushOptions,
    progress: Progress | None = None,
) -> PartResult:
    """Does a part, unless its result is there already, and returns the result.

    Raises: NotFound for a plan that is gone; InvalidInput for a number that it does not have;
    UnknownFormat for another version of lodefs; SourceChanged, Denied, Unavailable for files that
    are no longer as planned, unless unreadable ones are skipped; what the store raises. After an
    error the plan's status shows it, and the part can be repeated.
    """
    plan, plans = open_plan(store, name), PushPlans(store.objects)
    if not 0 <= number < plan.parts:
        raise InvalidInput(f"the plan {name} has no part {number}: it has {plan.parts}, from 0 on")
    known = plans.result(name, number)
    if known is not None and commit_of(store, plan) is not None:
        return known
    write = join_plan(store, name, options.clock)
    if known is not None and is_kept(store, write, known):
        result = replace(known, writer=write.begin().number)
        if result != known:
            plans.put_result(name, result)
        return result
    try:
        result = _stored(store, plan, number, options, progress or Progress(), write)
    except LodefsError as error:
        with contextlib.suppress(LodefsError):  # the first error is the one to report
            plans.put_failure(name, PartFailure(number, str(error), socket.gethostname()))
        raise
    plans.put_result(name, result)
    return result


def is_kept(store: Store, write: RefWrite, result: PartResult) -> bool:
    """Whether the store keeps all that a part has stored until ``write``, that of the plan, ends.
    If the part was done for an earlier writer, it looks for that and saves it."""
    if Purges(store.objects).newest(result.purges_seen) > result.purges_seen:
        return False
    if result.writer == write.begin().number:
        return True
    named = named_packs(PackReader(store.objects), result.root, None)
    tombstoned = MemoryCondemned()
    write.learn(tombstoned)
    try:
        write.save(tombstoned, named.found, named.found)
    except Collected:
        return False
    return not lacking_named(store.objects, named, (), lambda _: 0)


@dataclass(slots=True, kw_only=True)
class _Stored(AttemptResult):
    root: TreeEntry
    purges_seen: int
    totals: Totals
    files_read: int
    new_bytes: int
    skipped: Sequence[Skipped]
    piece: FilePiece | None


def _stored(
    store: Store,
    plan: PushPlan,
    number: int,
    options: PushOptions,
    progress: Progress,
    write: RefWrite,
) -> PartResult:
    """Reads a part and stores it."""
    part = PushPlans(store.objects).part(plan.name, number)
    session = PushSession(
        store, RefName(plan.repo, BRANCHES, plan.branch), options, progress, write
    )
    is_digest = part.piece is not None and part.piece.is_digest
    attempt = _digest_attempt if is_digest else _attempt
    found = session.run(lambda: attempt(session, plan.source, part))
    totals, skipped = found.totals, found.skipped
    return PartResult(
        number=number,
        writer=write.begin().number,
        purges_seen=found.purges_seen,
        root=found.root,
        files=totals.files,
        symlinks=totals.symlinks,
        size_bytes=totals.size_bytes,
        large=Large(totals.large_files, totals.large_size_bytes),
        files_read=found.files_read,
        new_bytes=found.new_bytes,
        stored_bytes=found.stored_bytes,
        skipped=[(one.path, one.reason[:_REASON_CHARS_MAX]) for one in skipped[:SKIPPED_MAX]],
        skipped_files=len(skipped),
        piece=found.piece,
    )


def _attempt(session: PushSession, root: bytes, part: PlannedPart) -> _Stored:
    """Stores the files of a part, or the chunks of a piece of one."""
    stretch = None if part.piece is None else Stretch(part.piece.begin, part.piece.end)
    scan = PartScan(part.directories, session.options.skip_unreadable, stretch)
    with SourceDirectory(root, session, _no_count, scan) as source:
        session.progress.phase = "reading files"
        found = source.read()
        session.progress.phase = "storing trees"
        entry = source.store_trees(found)
        Committer(session).hand_over(entry)
    stored = _Stored(
        root=entry,
        purges_seen=session.index.purges_seen,
        totals=source.tree.totals,
        files_read=source.deduplicator.files_read,
        new_bytes=source.deduplicator.new_bytes,
        skipped=scan.skipped,
        piece=None,
    )
    if part.piece is not None:  # the part that has its digest counts the file
        stored.totals, stored.files_read = Totals(), 0
        begin = 0 if source.tree.stretch is None else source.tree.stretch.begin
        stored.piece = FilePiece(_path_of(part), begin, None)
    return stored


def _digest_attempt(session: PushSession, root: bytes, part: PlannedPart) -> _Stored:
    """Reads all of a large file, and stores the directories above it."""
    directory = part.directories[-1]
    progress, skipped = session.progress, list[Skipped]()
    progress.phase = "reading files"
    digest, totals = EMPTY_DIGEST, Totals()
    try:
        digest = Digest(read_digest(root, directory, progress))
        size_bytes = directory.sizes[0]
        large_files = int(size_bytes >= LARGE_SIZE_BYTES_MIN)
        totals = Totals(1, 0, 0, size_bytes, large_files, large_files * size_bytes)
    except LodefsError as error:
        if not session.options.skip_unreadable:
            raise
        skipped.append(Skipped(_path_of(part), str(error)))
    without = PlannedDirectory(directory.path, [], b"", [], [], [])
    stored = _attempt(session, root, PlannedPart(part.number, [without]))
    stored.totals, stored.files_read, stored.skipped = totals, totals.files, skipped
    stored.piece = FilePiece(_path_of(part), 0, digest.hex())
    return stored


def _path_of(part: PlannedPart) -> bytes:
    """Returns the path of the only file in a part."""
    directory = part.directories[-1]
    return b"/".join(filter(None, (directory.path, directory.names[0])))


def _no_count(size_bytes: int) -> None:
    """The plan has checked the quota."""

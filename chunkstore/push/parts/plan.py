"""Makes the plan of a push in parts: a scan goes to the store, part by part, in flat memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput, LodefsError, UnknownFormat
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import check_ref_name, check_repo
from lodefs.chunkstore.format.push_plan import PlannedInPlace, PushPlan, check_plan_name
from lodefs.chunkstore.installed_version import installed_version
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.journal.push_plans import PlanDocuments, PushPlans, begin_plan, end_plan
from lodefs.chunkstore.push.committer import head_of
from lodefs.chunkstore.push.in_place import InPlace
from lodefs.chunkstore.push.limits import Quota, check_names
from lodefs.chunkstore.push.parts.part_scan import PartLimits, parts_of
from lodefs.chunkstore.push.scanner import SYMLINK, ScannedDirectory, Skipped, SourceNotes
from lodefs.chunkstore.push.session import PushOptions, PushSession
from lodefs.chunkstore.push.source_directory import opened_source, source_root
from lodefs.chunkstore.push.workers.source_files import show_path
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress

PUTS_MAX = 8  # parts in memory, each with up to 50,000 files
_SIGNED = (b"http://", b"https://")  # the queries of such URLs may be secrets


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A new plan, and what its scan has left out."""

    plan: PushPlan
    excluded: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    notes: SourceNotes = field(default_factory=SourceNotes)


class OpenPlan(NamedTuple):
    """A complete plan, and where its parts and results are."""

    plan: PushPlan
    documents: PlanDocuments


def make_plan(
    store: Store,
    name: str,
    source: Path | str,
    repo: str,
    branch: str,
    options: PushOptions,
    progress: Progress | None = None,
    limits: PartLimits | None = None,
) -> PlanResult:
    """Plans the push of ``source`` to a branch, or its import in place. Of ``options`` it takes
    what a scan needs, what stays in place, and the fields of the commit but the time.

    Raises: AlreadyExists for a name that is taken; OverQuota, TooManyRemovals; what a push raises
    for its source and branch. After an error there is no plan.
    """
    check_plan_name(name)
    check_repo(repo)
    check_ref_name(branch)
    root = source_root(source, options.places_apart(store))
    _check_unsigned(root)
    store.ensure_writable()
    documents, write = begin_plan(store, name, options.clock)
    session = PushSession(
        store, RefName(repo, BRANCHES, branch), options, progress or Progress(), write
    )
    heartbeat = Heartbeat(write.beat)
    heartbeat.start()
    try:
        return _planned(session, documents, root, limits or PartLimits())
    except BaseException:
        with contextlib.suppress(LodefsError):  # the first error is the one to report
            end_plan(store, documents)
        raise
    finally:
        heartbeat.stop()


def _check_unsigned(root: bytes) -> None:
    """Raises: InvalidInput for a URL that may have a secret."""
    if root.lower().startswith(_SIGNED) and b"?" in root:
        raise InvalidInput(
            f"what follows the ? of {show_path(root.partition(b'?')[0])} may be a signature, and "
            "all readers of the store can read a plan: push it without a plan, or name it by a URL "
            "that needs none"
        )


def discard_plan(store: Store, name: str) -> None:
    """Removes a plan. What its parts have stored is garbage, unless a commit names it. Raises:
    NotFound."""
    end_plan(store, PushPlans(store.objects).find(name))


def open_plan(store: Store, name: str) -> OpenPlan:
    """Returns a plan that this version of lodefs may go on with. Raises: InvalidInput, NotFound;
    UnknownFormat, which names both versions, if another one has made it."""
    documents = PushPlans(store.objects).find(name)
    plan = documents.plan()
    if plan.lodefs != own_version():
        raise UnknownFormat(
            f"lodefs {plan.lodefs} has made the plan {name}, and this is lodefs {own_version()}: "
            "use the same version on all machines, or make another plan"
        )
    return OpenPlan(plan, documents)


def options_of(plan: PushPlan, options: PushOptions) -> PushOptions:
    """Returns the options of a task of a plan: what the plan leaves in place is not its choice."""
    there = plan.in_place
    if there is None:
        return replace(options, in_place=None)
    in_place = InPlace(there.source, there.prefix, there.copy_below_bytes)
    return replace(options, in_place=in_place)


def own_version() -> str:
    """Returns the version of lodefs, as plans have it."""
    return installed_version() or "unknown"


def _planned(
    session: PushSession, documents: PlanDocuments, root: bytes, limits: PartLimits
) -> PlanResult:
    store, options, progress = session.store, session.options, session.progress
    head = head_of(session)
    quota = Quota(store, session.branch.repo, head.size_bytes)
    totals = _Totals(quota, progress)
    progress.phase = "planning"
    with opened_source(root, options, store) as source:
        with ThreadPoolExecutor(PUTS_MAX, "lodefs-plan") as executor:
            planned = parts_of(totals.counted(source.scan), limits)
            parts = sum(1 for _ in map_ahead(executor, documents.put_part, planned, PUTS_MAX))
        if head.commit is not None and head.id is not None:
            check_names(store.packs, session.target, head.id, head.commit, source.top_names())
    in_place = options.in_place
    plan = PushPlan(
        name=documents.name,
        lodefs=own_version(),
        source=source.root if in_place is None else source.root.partition(b"?")[0],
        repo=session.branch.repo,
        branch=session.branch.name,
        head=head.id,
        author=options.author,
        message=options.message,
        metadata=options.metadata,
        parts=parts,
        files=totals.files,
        directories=totals.directories,
        size_bytes=totals.size_bytes,
        in_place=None if in_place is None else PlannedInPlace(**asdict(in_place)),
    )
    documents.put_plan(plan)
    scan = source.scan
    return PlanResult(plan, scan.ignore.excluded, scan.skipped, scan.notes)


@dataclass(slots=True)
class _Totals:
    """Counts what a scan finds. Raises: OverQuota."""

    quota: Quota
    progress: Progress
    files: int = 0
    directories: int = 0
    size_bytes: int = 0

    def counted(self, scan: Iterable[ScannedDirectory]) -> Iterator[ScannedDirectory]:
        for directory in scan:
            columns = directory.columns
            self.directories += 1
            self.files += len(columns.names)
            sizes = zip(columns.sizes, columns.modes, strict=True)
            self.size_bytes += sum(size for size, mode in sizes if mode != SYMLINK)
            self.progress.files_total, self.progress.bytes_total = self.files, self.size_bytes
            self.quota.check_early(self.size_bytes)
            yield directory

"""Copy: repositories from one store to another, with their history and all ids.

Packs are copied as they are. Each is checked on the way, or the server of both stores copies it.
Packs that the destination has are not sent again. As packs arrive, a branch of the destination
follows its history. So what a dead copy has sent stays in use, and a repeated copy continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock

from lodefs.chunkstore.errors import Conflict, Corrupt, InvalidInput, LodefsError
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.pack import PackIndex
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.journal.purges import Purge, Purges, purged_only_in
from lodefs.chunkstore.journal.tombstoned import NamedChunks
from lodefs.chunkstore.objects.interface import ServerCopy
from lodefs.chunkstore.push.pack_check import packs_lacking
from lodefs.chunkstore.repo.refs import RefEntry
from lodefs.chunkstore.repo.store import Store, require_there
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.transfer.import_session import ImportSession
from lodefs.chunkstore.transfer.pack_copy import SendPacks, copy_pack
from lodefs.chunkstore.transfer.plan import (
    REFUSALS,
    DestinationState,
    History,
    RefPlan,
    Refuse,
    plan,
    refs_of,
)
from lodefs.chunkstore.transfer.server_copies import ServerCopies

WORKERS = 8
STEP_SIZE_BYTES = 4 << 30  # after this much a branch moves to the newest complete commit


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of a copy. Each worker holds one pack in memory, mostly of 32 MiB."""

    dry_run: bool = False
    workers: int = WORKERS
    step_size_bytes: int = STEP_SIZE_BYTES
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class CopiedRef:
    """A ref of the source, with its entry in the destination before and now; with ``dry_run``,
    after a copy. ``is_cut_off``: it no longer leads to its previous commit, since the history
    between has expired in the source."""

    ref: RefName
    before: CommitId | None
    after: CommitId
    is_cut_off: bool = False


@dataclass(frozen=True, slots=True)
class RefusedRef:
    """A ref of the source that was not copied, and the reason."""

    ref: RefName
    error: LodefsError


@dataclass(slots=True)
class CopyResult:
    """The result of a copy, or with ``dry_run`` the result it would have."""

    refs: list[CopiedRef] = field(default_factory=list)  # includes refs that did not move
    refused: list[RefusedRef] = field(default_factory=list)  # only if all refs were copied
    commits: int = 0  # copied commits
    packs: int = 0  # sent packs
    packs_by_server: int = 0  # those of them that the server copied itself
    packs_there: int = 0  # needed packs that the destination had already
    size_bytes: int = 0  # stored bytes of the sent packs
    # purges of the source with chunks that the destination keeps, since it has not purged them
    purges: list[Purge] = field(default_factory=list)


def copy(
    source: Store,
    destination: Store,
    repos: Iterable[str],
    rev: str | None,
    options: CopyOptions,
    progress: Progress | None = None,
    server: ServerCopy | None = None,
    send_packs: SendPacks | None = None,
) -> CopyResult:
    """Copies one branch or tag (``rev``) of each repository, or with None all of them.

    With ``server``, the server copies packs as far as it can; with ``send_packs``, other machines
    do. Without them every byte passes through this machine. All but the server check it.

    A ref causes an error and stays as it is if it has diverged in the destination, moves meanwhile,
    exceeds the quota there, needs what was once deleted there, or needs what the source lacks
    (Diverged, Conflict, AlreadyExists, OverQuota, Collected, NotFound, Corrupt). If all refs are
    copied, such a ref goes to ``refused``, and the others are copied.

    Raises: InvalidInput if both are one store, or ``rev`` is a commit; NotFound; what the stores
    raise. After an error it can be repeated, and continues.
    """
    is_same_id = source.settings.store_id == destination.settings.store_id
    if source.url == destination.url and is_same_id:  # the same URL may stand for two endpoints
        raise InvalidInput(f"{source.url} would be copied to itself: name another store")
    result = CopyResult()

    def refuse(ref: RefName, error: LodefsError) -> None:
        if rev is not None:
            raise error
        for store in (source, destination):
            require_there(store.objects)
        result.refused.append(RefusedRef(ref, error))

    with ThreadPoolExecutor(options.workers, "lodefs-copy") as executor:
        copies = None
        if server is not None:
            copies = ServerCopies(source.objects, destination.objects, server)
        moving = progress or Progress()
        work = _Copy(source, destination, options, moving, executor, result, copies)
        work.send_packs = send_packs
        try:
            for repo in repos:
                source.require_repo(repo)
                history, there = History(source, repo), DestinationState(destination, repo)
                refs = refs_of(source, repo, rev, refuse)
                while refs:
                    plans = plan(source, destination, refs, history, there, refuse)
                    refs = _run(work, plans, history, there, refuse)
        finally:
            work.close()
    result.purges = purged_only_in(source.objects, destination.objects)
    result.packs_by_server = 0 if copies is None else copies.packs
    return result


def _run(
    work: _Copy, plans: Sequence[RefPlan], history: History, there: DestinationState, refuse: Refuse
) -> list[RefName]:
    """Copies refs of one repository up to one that is refused. Returns those after it, since their
    plans may build on that one."""
    for at, one in enumerate(plans):
        try:
            work.run(one, history)
        except REFUSALS as error:
            refuse(one.ref, error)
            work.start_anew()
            return [later.ref for later in plans[at + 1 :]]
        there.arrived([*one.order, one.head])
    return []


class _Copy:
    """One copy, ref by ref. It adds to ``result``."""

    def __init__(
        self,
        source: Store,
        destination: Store,
        options: CopyOptions,
        progress: Progress,
        executor: Executor,
        result: CopyResult,
        copies: ServerCopies | None,
    ) -> None:
        self._copies = copies
        self._source = source
        self._destination = destination
        self._options = options
        self._progress = progress
        self._executor = executor
        self._landing = ImportSession(destination, options.clock)
        self.send_packs: SendPacks | None = None
        self._for_others: list[tuple[PackId, int]] = []  # packs with their bytes, for send_packs
        self._under_way: list[Future[int]] = []
        self._step_bytes = 0  # bytes of packs sent since a ref moved
        self._sent: set[PackId] = set()
        self._there: set[PackId] = set()  # needed so far, and not sent
        self._brought: set[tuple[str, CommitId]] = set()
        self._result = result
        self._lock = Lock()  # guards the counts of the result

    def run(self, one: RefPlan, history: History) -> None:
        """Moves one ref to its commit in the source, and copies what it needs."""
        self._progress.phase = f"copying {one}"
        if one.at != one.head:
            self._move(one, history)
        self._result.refs.append(CopiedRef(one.ref, one.at, one.head, one.is_cut_off))

    def start_anew(self) -> None:
        """Resets after a refused ref, since its unfinished packs may be missing."""
        self.close()
        self._landing = ImportSession(self._destination, self._options.clock)
        self._under_way.clear()
        self._for_others.clear()
        self._step_bytes = 0
        self._sent.clear()

    def _move(self, one: RefPlan, history: History) -> None:
        before = one.before
        if not self._options.dry_run and (one.fork is not None or not one.order):
            start = one.head if one.fork is None else one.fork
            before = point_ref(
                self._destination,
                one.ref,
                start,
                expected_sequence=None if before is None else before.sequence,
                clock=self._options.clock,
            )
        if one.order:
            self._bring(one, before, history)

    def _bring(self, one: RefPlan, before: RefEntry | None, history: History) -> None:
        known = one.known()
        path = set(takewhile(known.__contains__, history.first_parents(one.head)))
        waiting: list[tuple[CommitId, Commit]] = []
        new = self._new(one, history)
        self._begin(one)
        for commit_id in one.order:
            commit = history.commit(commit_id)
            base = history.parent(commit, among=known)
            self._send(self._packs(one, commit_id, commit, base))
            self._expire(one.ref.repo, commit, history)
            waiting.append((commit_id, commit))
            is_large = self._step_bytes >= self._options.step_size_bytes
            if commit_id == one.head or (is_large and _is_branch(one) and commit_id in path):
                before = self._land(one, before, commit_id, waiting)
                waiting = []
                if commit_id != one.head:
                    self._begin(one)
        self._brought |= new
        self._result.commits = len(self._brought)

    def _new(self, one: RefPlan, history: History) -> set[tuple[str, CommitId]]:
        """Returns the commits of a plan that are missing. Others around a merge, or before a tag,
        may have come with another ref."""
        new = {(one.ref.repo, at) for at in one.order}
        if _is_branch(one) and all(len(history.commit(at).parents) < 2 for at in one.order):
            return new
        there = self._executor.map(lambda at: self._destination.has_commit(*at), new)
        return {at for at, is_there in zip(new, there, strict=True) if not is_there}

    def close(self) -> None:
        """Ends what is under way, even after an error."""
        for future in self._under_way:
            future.cancel()
        for future in self._under_way:
            if not future.cancelled():
                future.exception()
        self._landing.close()

    def _expire(self, repo: str, commit: Commit, history: History) -> None:
        """Marks in the destination, too, that history ends before a commit."""
        if self._options.dry_run:
            return
        for parent in filter(history.has_expired, commit.parents):
            if not self._destination.has_commit(repo, parent):
                self._destination.put_expired(repo, parent, int(self._options.clock()))

    def _begin(self, one: RefPlan) -> None:
        if self._options.dry_run:
            return
        self._landing.begin()
        for at in one.kept:
            self._landing.keep(one.ref.repo, at)

    def _land(
        self,
        one: RefPlan,
        before: RefEntry | None,
        commit_id: CommitId,
        commits: Sequence[tuple[CommitId, Commit]],
    ) -> RefEntry | None:
        """Waits for all packs, then moves the ref."""
        self._have_sent()
        for future in self._under_way:
            future.result()
        self._under_way.clear()
        self._step_bytes = 0
        if self._options.dry_run:
            return before
        try:
            return self._landing.advance(one.ref, before, commit_id, commits)
        except Conflict as error:
            error.add_note("the data sent so far stays: repeat the command to continue")
            raise

    def _packs(
        self, one: RefPlan, commit_id: CommitId, commit: Commit, base: Commit | None
    ) -> NamedChunks:
        """Returns the chunks of packs that a commit names, without those at the same place in its
        parent."""
        root = None if base is None else base.root
        found, unreadable = named_packs(self._source.packs, commit.root, root)
        if unreadable:
            raise Corrupt(
                f"{one.ref.repo}@{commit_id.hex()[:12]} of {self._source.url} is incomplete: "
                f"{keys.pack(min(unreadable))} is missing or damaged; see `lodefs verify`"
            )
        return found

    def _send(self, named: NamedChunks) -> None:
        """Starts to send the packs that are missing, or lack chunks that are named, perhaps only
        now. Raises: the error of one that failed."""
        missing = [pack for pack in self._lacking(named) if pack not in self._sent]
        self._sent.update(missing)
        there = len(self._there)
        self._there = (self._there | named.keys()) - self._sent
        self._result.packs_there += len(self._there) - there
        sizes = self._executor.map(self._size, missing) if missing else ()
        for pack_id, size_bytes in zip(missing, sizes, strict=True):
            self._progress.bytes_total += size_bytes
            self._step_bytes += size_bytes
            if self._options.dry_run:
                self._count(size_bytes)
            elif self.send_packs is not None:
                self._for_others.append((pack_id, size_bytes))
            else:
                self._under_way.append(self._executor.submit(self._send_one, pack_id, size_bytes))
        for future in self._under_way:
            if future.done():
                future.result()
        self._under_way = [future for future in self._under_way if not future.done()]

    def _lacking(self, named: NamedChunks) -> list[PackId]:
        if self._options.dry_run:
            unsent = {pack: bits for pack, bits in named.items() if pack not in self._sent}
            there = self._destination.objects
            return sorted(packs_lacking(there, unsent, Purges(there).chunks(), self._offered))
        return sorted(self._landing.lacking(named, self._offered))

    def _offered(self, pack_id: PackId) -> PackIndex:
        return self._source.packs.index(pack_id)

    def _size(self, pack_id: PackId) -> int:
        return self._source.objects.head(keys.pack(pack_id)).size_bytes

    def _count(self, size_bytes: int) -> None:
        with self._lock:
            self._result.packs += 1
            self._result.size_bytes += size_bytes

    def _send_one(self, pack_id: PackId, size_bytes: int) -> int:
        """Copies a pack. Returns the bytes that passed through this machine."""
        purged = self._landing.purged
        index = None if self._copies is None else self._copies.copy(pack_id, purged)
        sent_bytes = 0
        if index is None:
            source, destination = self._source.objects, self._destination.objects
            first = self._landing.require_first
            index, sent_bytes = copy_pack(source, destination, pack_id, purged, first)
        self._landed(index, size_bytes, sent_bytes)
        return sent_bytes

    def _have_sent(self) -> None:
        """Has others send the packs that are left for them."""
        packs, self._for_others = self._for_others, []
        if self.send_packs is None or not packs:
            return
        for (pack_id, size_bytes), sent in zip(packs, self.send_packs(packs), strict=True):
            if sent.index is None:
                self._send_one(pack_id, size_bytes)
            else:
                self._landed(sent.index, size_bytes, sent.sent_bytes)

    def _landed(self, index: PackIndex, size_bytes: int, sent_bytes: int) -> None:
        self._landing.landed(index)
        self._count(size_bytes)
        self._progress.bytes_done += index.offsets[-1]
        self._progress.bytes_sent += sent_bytes


def _is_branch(one: RefPlan) -> bool:
    return one.ref.kind == "branches"

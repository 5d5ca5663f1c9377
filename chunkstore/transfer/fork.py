"""Fork: copies commits of one repository to another one in the same store, under their ids.

The packs belong to the store, so none of their bytes move: only the documents of the commits are
put. Afterwards neither repository needs the other: each has its own refs, history, policy and
quota.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Self

from lodefs.chunkstore.errors import AlreadyExists
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, CommitId
from lodefs.chunkstore.journal.deletion import living_refs
from lodefs.chunkstore.journal.ref_write import Collected
from lodefs.chunkstore.push.limits import check_arriving
from lodefs.chunkstore.repo.refs import BRANCHES, RefEntry
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.transfer.import_session import ImportSession
from lodefs.chunkstore.transfer.plan import History


def fork(
    store: Store,
    repo: str,
    commit_id: CommitId,
    new: str,
    clock: Callable[[], float] = time.time,
    progress: Progress | None = None,
) -> int:
    """Makes a repository whose branch main is at a commit of another one, with its history. Returns
    the number of its commits.

    Raises: AlreadyExists if there is a repository with that name, even a deleted one, or gc has
    deleted its commits; OverQuota; NotFound, Collected if the commit, or what it needs, is gone;
    Conflict; what the store raises. After an error it can be repeated.
    """
    ref = RefName(new, BRANCHES, DEFAULT_BRANCH)
    if living_refs(store, new):
        raise AlreadyExists(f"{new} exists: choose a name that is free")
    store.check_new_ref(*ref)
    check_arriving(store, new, None, commit_id, store.commit(repo, commit_id).size_bytes)
    with Forking(store, repo, new, clock, progress) as forking:
        forking.move(ref, commit_id, store.refs(new).latest(*ref[1:]))
    return forking.commits


class Forking:
    """Copies commits of the repository ``source`` to ``target``, and moves refs there. For one
    thread; used as a context."""

    def __init__(
        self,
        store: Store,
        source: str,
        target: str,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> None:
        self._store = store
        self._source = source
        self._target = target
        self._clock = clock
        self._progress = progress or Progress()
        self._session = ImportSession(store, clock)
        self._history = History(store, source)
        self._kept: set[CommitId] = set()  # saved from all tombstones up to an entry:
        self._kept_up_to: int | None = -1
        self._brought: set[CommitId] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    @property
    def commits(self) -> int:
        """The number of copied commits."""
        return len(self._brought)

    def claim(self, head: CommitId) -> list[CommitId]:
        """Saves a commit and its ancestors, in both repositories, for a ref that will move. Returns
        those that must be copied, parents first. Raises what ``fork`` raises."""
        previous = self._session.begin().previous
        if previous != self._kept_up_to:
            self._kept.clear()
        if head not in self._kept:
            self._session.keep(self._source, head)
            self._kept_up_to = previous
        ends = self._ends() - {head}
        order = self._history.order(head, ends)
        self._kept.update(order)
        try:
            self._session.claim(self._target, order)
        except Collected as error:
            raise AlreadyExists(
                f"{self._target} has had commits of {self._source} before, and `lodefs gc` has "
                "deleted them. Deleted commits never come back to the same name: choose another one"
            ) from error
        self._say_ends(order, ends)
        return [at for at in order if at not in self._brought]

    def move(self, ref: RefName, head: CommitId, before: RefEntry | None) -> RefEntry:
        """Moves a ref of the target to a commit of the source. Raises what ``fork`` raises."""
        order = self.claim(head)
        self._progress.phase = f"copying commits to {ref.repo}@{ref.name}"
        self._progress.files_total += len(order)
        entry = self._session.advance(ref, before, head, self._commits(order))
        self._brought.update(order)
        return entry

    def _commits(self, order: list[CommitId]) -> Iterator[tuple[CommitId, Commit]]:
        for at in order:
            yield at, self._history.commit(at)
            self._progress.files_done += 1

    def _ends(self) -> set[CommitId]:
        """Returns the commits at which expired history ends. Some may still exist, or again
        (docs/decisions/0049): their marker counts."""
        if not self._store.settings_log(self._source).surely_newest().may_lack_history:
            return set()
        prefix = keys.expired(self._source)
        found = (info.key.removeprefix(prefix) for info in self._store.objects.list(prefix))
        return {CommitId(bytes.fromhex(one)) for one in found}

    def _say_ends(self, order: list[CommitId], ends: set[CommitId]) -> None:
        """Marks in the target, too, where history ends."""
        parents = {at for one in order for at in self._history.commit(one).parents}
        lacking = {at for at in parents if at in ends or self._history.has_expired(at)}
        if not lacking:
            return
        log = self._store.settings_log(self._target, self._clock)
        log.change(lambda now: replace(now, may_lack_history=True))
        for at in lacking:
            if not self._store.has_commit(self._target, at):
                self._store.put_expired(self._target, at, int(self._clock()))

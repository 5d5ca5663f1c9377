"""Plans a copy: which refs move from where to where, and which commits they need."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    Diverged,
    Expired,
    InvalidInput,
    LodefsError,
    NotFound,
    UnknownFormat,
)
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, is_base_tag
from lodefs.chunkstore.push.limits import OverQuota, check_arriving
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, RefEntry, singular
from lodefs.chunkstore.repo.store import Store

# Errors that concern only one ref; what was deleted there, or has expired, is NotFound
REFUSALS = (
    AlreadyExists,
    Conflict,
    Corrupt,
    Diverged,
    InvalidInput,
    NotFound,
    OverQuota,
    UnknownFormat,
)

Refuse = Callable[[RefName, LodefsError], None]


class History:
    """The commits of one repository, each read once."""

    def __init__(self, store: Store, repo: str) -> None:
        self._store = store
        self._repo = repo
        self._commits: dict[CommitId, Commit] = {}
        self._expired: set[CommitId] = set()

    def commit(self, commit_id: CommitId) -> Commit:
        """Returns a commit. Raises: NotFound, Corrupt, UnknownFormat."""
        if commit_id not in self._commits:
            self._commits[commit_id] = self._store.commit(self._repo, commit_id)
        return self._commits[commit_id]

    def has_expired(self, commit_id: CommitId) -> bool:
        """Whether history ends before a commit: a retention policy has deleted it."""
        if commit_id not in self._expired:
            try:
                self.commit(commit_id)
            except Expired:
                self._expired.add(commit_id)
        return commit_id in self._expired

    def parent(self, commit: Commit, among: Container[CommitId] | None = None) -> Commit | None:
        """Returns the first parent; None if there is none, it is not ``among`` these, or it has
        expired."""
        first = next(iter(commit.parents), None)
        if first is None or (among is not None and first not in among) or self.has_expired(first):
            return None
        return self.commit(first)

    def is_first(self, commit_id: CommitId) -> bool:
        """Whether history begins with a commit."""
        return all(map(self.has_expired, self.commit(commit_id).parents))

    def order(self, head: CommitId, stops: Collection[CommitId]) -> list[CommitId]:
        """Returns a commit and its ancestors, parents first, without those in ``stops`` and those
        that only they lead to."""
        found: list[CommitId] = []
        seen = set(stops)
        stack = [(head, False)]
        while stack:
            at, are_parents_done = stack.pop()
            if are_parents_done:
                found.append(at)
            elif at not in seen:
                seen.add(at)
                if at == head or not self.has_expired(at):
                    stack.append((at, True))
                    stack += [(parent, False) for parent in reversed(self.commit(at).parents)]
        return found

    def first_parents(self, head: CommitId) -> Iterator[CommitId]:
        """Yields a commit, its first parent, the first parent of that, and so on."""
        at: CommitId | None = head
        while at is not None:
            yield at
            at = next(iter(self.commit(at).parents), None)
            at = None if at is None or self.has_expired(at) else at


class DestinationState:
    """The commits of a repository that the destination of a copy has.

    It takes from the source which commits come before the destination's branches and tags, and
    checks that they exist, since a retention policy may have deleted some."""

    def __init__(self, store: Store, repo: str) -> None:
        self._store = store
        self._repo = repo
        self.before_refs: set[CommitId] = set()  # by the source's history
        self._coming: set[CommitId] = set()
        self._asked: dict[CommitId, bool] = {}

    def add(self, commits: Iterable[CommitId]) -> None:
        """Adds commits before a branch or tag of the destination, by the source's history."""
        self.before_refs.update(commits)

    def expect(self, commits: Iterable[CommitId]) -> None:
        """Adds commits that will be copied."""
        self._coming.update(commits)

    def arrived(self, commits: Collection[CommitId]) -> None:
        """Adds commits that were copied."""
        self._asked.update(dict.fromkeys(commits, True))
        self.before_refs.update(commits)

    def expect_nothing(self) -> None:
        """Forgets commits that were expected, since they may not come."""
        self._coming.clear()

    def leads_to(self, commit_id: CommitId) -> bool:
        """Whether a branch or tag there leads, or will lead, to a commit that exists there. Raises:
        Corrupt, UnknownFormat."""
        return commit_id in self._coming or (commit_id in self.before_refs and self.has(commit_id))

    def has(self, commit_id: CommitId) -> bool:
        """Whether a commit exists there, or will, whatever leads to it. Raises: Corrupt,
        UnknownFormat."""
        if commit_id in self._coming:
            return True
        if commit_id not in self._asked:
            try:
                self._store.commit(self._repo, commit_id)
            except NotFound:
                self._asked[commit_id] = False
            else:
                self._asked[commit_id] = True
        return self._asked[commit_id]

    def has_ended(self, commit_id: CommitId) -> bool:
        """Whether history there may end right after a commit, since it has expired there."""
        return self._store.has_expired(self._repo, commit_id)


@dataclass(slots=True)
class RefPlan:
    """The plan by which one ref gets to its commit in the source."""

    ref: RefName
    head: CommitId
    before: RefEntry | None  # the destination's newest entry
    fork: CommitId | None = None  # an existing commit at which a new branch begins
    order: list[CommitId] = field(default_factory=list)  # commits to import, parents first
    kept: list[CommitId] = field(default_factory=list)  # existing parents of some of these
    # The history between has expired, so it will not lead to its previous commit
    is_cut_off: bool = False

    @property
    def at(self) -> CommitId | None:
        """The commit of the destination's ref."""
        return None if self.before is None else self.before.commit

    def known(self) -> set[CommitId]:
        """Returns the commits that are complete there, or will be."""
        return {at for at in (self.at, self.fork, *self.order, *self.kept) if at is not None}

    def __str__(self) -> str:
        return f"{singular(self.ref.kind)} {self.ref.name} of {self.ref.repo}"


def refs_of(source: Store, repo: str, rev: str | None, refuse: Refuse) -> list[RefName]:
    """Returns the branch or tag named ``rev``; with None, all branches and then all tags that are
    not deleted, without those of writable mounts. Those with a damaged entry go to ``refuse``.
    Raises what ref_named raises."""
    if rev is not None:
        return [ref_named(source, repo, rev)]
    refs, found = source.refs(repo), []
    for kind in (BRANCHES, TAGS):
        for name in refs.names(kind):
            if kind == TAGS and is_base_tag(name):
                continue
            ref = RefName(repo, kind, name)
            try:
                entry = refs.latest(kind, name)
            except REFUSALS as error:
                refuse(ref, error)
                continue
            if entry is not None and entry.commit is not None:
                found.append(ref)
    return found


def ref_named(source: Store, repo: str, rev: str) -> RefName:
    """Returns the branch or tag named ``rev``. Raises: NotFound; InvalidInput for a commit."""
    refs = source.refs(repo)
    for kind in (BRANCHES, TAGS):
        entry = refs.latest(kind, rev)
        if entry is not None and entry.commit is not None:
            return RefName(repo, kind, rev)
    source.resolve(repo, rev)
    raise InvalidInput(
        f"{rev} is a commit, and gc in the other store deletes commits without a branch or tag; "
        f"name it first: lodefs tag {repo}@{rev} NAME"
    )


def plan(
    source: Store,
    destination: Store,
    refs: Sequence[RefName],
    history: History,
    there: DestinationState,
    refuse: Refuse,
) -> list[RefPlan]:
    """Plans how refs of one repository are copied to another store. Changes nothing. Refs that have
    diverged there, whose names are taken or deleted, or whose history is damaged go to ``refuse``;
    if that does not raise, they are left out. ``there`` is told what exists there, and what will.

    Raises: what ``refuse`` and the stores raise.
    """
    plans: list[RefPlan] = []
    for ref in refs:
        try:
            plans.append(_standing(source, destination, ref, history, there))
        except REFUSALS as error:
            refuse(ref, error)
    there.expect_nothing()
    if any(one.at is None for one in plans):
        for one in plans:
            if one.at is not None:
                with contextlib.suppress(*REFUSALS):  # without it, more commits are examined
                    there.add(history.order(one.at, there.before_refs))
    begun: list[RefPlan] = []
    for one in plans:
        try:
            if one.at is None and not there.leads_to(one.head):
                _begin_new(one, history, there)
        except REFUSALS as error:
            refuse(one.ref, error)
            continue
        there.expect(one.order)
        begun.append(one)
    return begun


def _standing(
    source: Store, destination: Store, ref: RefName, history: History, there: DestinationState
) -> RefPlan:
    head = source.refs(ref.repo).read(ref.kind, ref.name).commit
    before = destination.refs(ref.repo).latest(ref.kind, ref.name)
    assert head is not None
    if before is None or before.commit is None:
        destination.check_new_ref(ref.repo, ref.kind, ref.name)
        check_arriving(destination, ref.repo, None, head, history.commit(head).size_bytes)
        return RefPlan(ref, head, before)
    if before.commit == head:
        return RefPlan(ref, head, before)
    one = RefPlan(ref, head, before, order=history.order(head, {before.commit}))
    _check_descends(source, destination, one, history)
    _go_on_from(before.commit, one, history, there)
    check_arriving(destination, ref.repo, before.commit, head, history.commit(head).size_bytes)
    return one


def _begin_new(one: RefPlan, history: History, there: DestinationState) -> None:
    """Finds where a branch leaves another one. A tag does not move, so all that it needs is
    examined."""
    if one.ref.kind == BRANCHES:
        chain = history.first_parents(one.head)
        one.fork = next((at for at in chain if there.leads_to(at)), None)
    if one.fork is None:
        one.order = history.order(one.head, ())
    else:
        _go_on_from(one.fork, one, history, there)


def _go_on_from(start: CommitId, one: RefPlan, history: History, there: DestinationState) -> None:
    """Plans the commits after an existing one. A merge may lead around it to its ancestors, which
    exist, too, or have expired there."""
    one.order = history.order(one.head, {start})
    if history.has_expired(start) or not any(map(history.is_first, one.order)):
        return
    older = set(history.order(start, ()))
    parents = [at for new in one.order if new not in older for at in history.commit(new).parents]
    stops, waiting, seen = {start}, [at for at in parents if at in older], {start}
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        if there.has_ended(at):
            stops.add(at)
        elif there.has(at):
            stops.add(at)
            one.kept.append(at)
        else:  # it was never copied, since it had expired in that source
            waiting += [parent for parent in history.commit(at).parents if parent in older]
    one.order = history.order(one.head, stops)


def _check_descends(source: Store, destination: Store, one: RefPlan, history: History) -> None:
    """Raises: Diverged unless the source's commit comes after the destination's, or did before the
    history between expired, as the log of the source's branch shows."""
    assert one.at is not None
    here, where = one.head.hex()[:12], f"at {one.at.hex()[:12]} in {destination.url}"
    if one.ref.kind == TAGS:
        raise Diverged(
            f"{one} is {where}, and at {here} in the source: a tag does not move. Delete it there "
            f"first (lodefs tag --delete {one.ref.repo} {one.ref.name}), if you do not need it"
        )
    if any(one.at in history.commit(commit).parents for commit in one.order):
        return
    repo, kind, name = one.ref
    if source.has_expired(repo, one.at):
        one.is_cut_off = any(
            one.at == entry.commit for entry in source.refs(repo).history(kind, name)
        )
        if one.is_cut_off:
            return
        raise Diverged(
            f"{one} is {where}, which has expired in the source, as may have the history up to "
            f"{here}. Name it there (lodefs tag {repo}@{name} NAME) to keep its history, then "
            f"delete the branch there (lodefs branch --delete {repo} {name})"
        )
    try:
        is_ahead = one.head in History(destination, one.ref.repo).order(one.at, set())
    except NotFound:
        is_ahead = False
    if is_ahead:
        raise Diverged(
            f"{one} is ahead: it is {where}, which comes after {here} of the source. Copy in the "
            "other direction, or not at all"
        )
    raise Diverged(
        f"{one} has diverged: it is {where}, and {here} of the source does not come after that. "
        f"Delete it there first (lodefs branch --delete {one.ref.repo} {one.ref.name}), if you do "
        "not need it"
    )

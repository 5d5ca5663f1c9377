"""Finds all that refs lead to: commits, their parents, trees, packs.

Temporary files hold what was seen: 36 bytes for each tree and each pack. For packs whose chunks are
examined, memory holds the numbers of the used ones: a bit for each, and 200 bytes for a pack.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from blake3 import blake3

from lodefs.chunkstore.errors import UNREADABLE, Corrupt, Expired
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.repo_settings import RepoSettings
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.journal.journal import StoreJournal, newest_tombstoning
from lodefs.chunkstore.journal.named_packs import add_named
from lodefs.chunkstore.maintenance.tree_groups import ReadGroups, walk_groups
from lodefs.chunkstore.repo.disk_key_set import KEY_BYTES, DiskKeySet
from lodefs.chunkstore.repo.entry_set import EntrySet
from lodefs.chunkstore.repo.retention import retained
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import Place, walk_trees
from lodefs.chunkstore.system.progress import Progress

PACKS_TOGETHER = 1024  # named packs before they are added: most are named repeatedly


class Marked:
    """The commits and packs in use, and the used chunks (bits of their numbers) of the packs in
    ``watched`` (None: of all). It is closed at the end of its block."""

    def __init__(self, base: Marked | None = None) -> None:
        """Starts with the objects of ``base``: they are in use, too, and are not walked again."""
        self.watched: Collection[PackId] | None = () if base is None else base.watched
        self.chunks: dict[PackId, int] = {} if base is None else dict(base.chunks)
        self.commits: set[tuple[str, CommitId]] = set()
        self.expired: set[tuple[str, CommitId]] = set()  # they exist, but no policy keeps them
        # They exist again, though expired and deleted
        self.returned: set[tuple[str, CommitId]] = set()
        # commits in use, under other names of their repositories: a rename may be under way
        self.renamed: set[tuple[str, CommitId]] = set()
        self.trees = 0
        self.packs = 0
        self._closing = ExitStack()
        self._packs = self._closing.enter_context(DiskKeySet())
        self._trees = self._closing.enter_context(EntrySet())
        self._base = base
        # a secret, so that nobody can craft collisions
        self._key: bytes = secrets.token_bytes(32) if base is None else base._key

    def __enter__(self) -> Marked:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def __contains__(self, pack: object) -> bool:
        if not isinstance(pack, bytes):
            return False
        return self._short(pack) in self._packs or (self._base is not None and pack in self._base)

    def add(self, named: Mapping[PackId, int]) -> None:
        """Adds chunks of packs that are in use."""
        for pack, bits in named.items():
            self.packs += self._packs.add(self._short(pack))
            if self.watched is None or pack in self.watched:
                self.chunks[pack] = self.chunks.get(pack, 0) | bits

    def add_tree(self, place: Place[str]) -> bool:
        """Adds a tree. Returns whether no directory that is stored in the same place was added
        before."""
        is_known = self._base is not None and place.entry in self._base._trees
        is_new = not is_known and self._trees.add(place.entry)
        self.trees += is_new
        return is_new

    def _short(self, pack: bytes) -> bytes:
        return blake3(pack, key=self._key).digest(length=KEY_BYTES)


class _DeletedCommits:
    """The expired commits of one repository that a gc run has deleted. Some may exist again: a
    writer that was given up may wake, put such a commit back, and only then be refused
    (docs/decisions/0049). No ref can come to name that commit, since its outcome stands. Raises:
    Corrupt, UnknownFormat for documents of the journal; what the store raises."""

    def __init__(self, store: Store, repo: str) -> None:
        """Lists the markers of expired commits. If a list lacks one, the commit counts as
        existing."""
        self._store = store
        self._repo = repo
        prefix = keys.expired(repo)
        self._words = {info.key.removeprefix(prefix) for info in store.objects.list(prefix)}
        self._deleted: set[CommitId] | None = None

    def __contains__(self, commit_id: object) -> bool:
        """Whether a commit has a marker, and an outcome that deleted it. The journal is read for
        the first commit with a marker. If a copy or a bundle brought the marker, there is no such
        outcome."""
        if not isinstance(commit_id, bytes) or commit_id.hex() not in self._words:
            return False
        if self._deleted is None:
            self._deleted = self._by_outcome()
        return commit_id in self._deleted

    def _by_outcome(self) -> set[CommitId]:
        journal = StoreJournal(self._store.objects)
        found: set[CommitId] = set()
        for entry in journal.tombstoning(newest_tombstoning(journal.newest())):
            some = () if entry.tombstoned is None else entry.tombstoned.commits
            if any(repo == self._repo and at.hex() in self._words for repo, at in some):
                outcome = journal.outcome(entry.number)
                if outcome is not None and outcome.deleted is not None:
                    found |= {at for repo, at in outcome.deleted.commits if repo == self._repo}
        return found


class _Past(NamedTuple):
    """The parts of a commit that marking needs."""

    parents: tuple[CommitId, ...]
    time_s: int
    root: TreeEntry


@dataclass(frozen=True, slots=True)
class Marking:
    """The options of marking. ``now_s`` is the Unix time for retention policies."""

    store: Store
    executor: Executor
    progress: Progress
    now_s: int
    read_groups: ReadGroups | None = None  # reads trees elsewhere

    def mark(self, roots: Iterable[tuple[RefName, CommitId]], marked: Marked) -> None:
        """Adds all that ``roots`` lead to and retention policies keep. Commits that they do not
        keep go to ``marked.expired``. A commit that was deleted and exists again ends the history,
        as if it were gone, and goes to ``marked.returned``.

        Raises: Corrupt if something is missing or damaged, since its contents are then unknown.
        """
        by_repo: dict[str, list[tuple[RefName, CommitId]]] = {}
        for ref, commit_id in roots:
            by_repo.setdefault(ref.repo, []).append((ref, commit_id))
        for repo, heads in by_repo.items():
            settings = self.store.settings_log(repo).surely_newest()
            policy = settings.retention
            deleted = _DeletedCommits(self.store, repo) if settings.may_lack_history else ()
            reached = self._reached(
                repo, [commit_id for _, commit_id in heads], deleted, marked.returned
            )
            if policy is not None:
                past = dict(reached)
                kept = retained(past, heads, policy, self.now_s)
                marked.expired |= {(repo, at) for at in past.keys() - kept}
                reached = ((at, past[at]) for at in kept)
            self._mark_trees(self._kept(repo, reached, marked), marked)
            for name in _other_names(settings):
                marked.renamed |= {(name, at) for one, at in marked.commits if one == repo}

    def mark_commits(self, commits: Iterable[tuple[str, CommitId]], marked: Marked) -> None:
        """Adds what commits need, without their ancestors. Raises what ``mark`` raises."""
        self._mark_trees(self._roots(commits), marked)

    def _roots(self, commits: Iterable[tuple[str, CommitId]]) -> Iterator[Place[str]]:
        for repo, commit_id in commits:
            try:
                root = self.store.commit(repo, commit_id).root
            except Expired:  # another gc run has just deleted it
                continue
            except UNREADABLE as error:
                raise _unknown(f"{repo}@{commit_id.hex()}", error) from error
            yield _place(repo, commit_id, root)

    @staticmethod
    def _kept(
        repo: str, commits: Iterable[tuple[CommitId, _Past]], marked: Marked
    ) -> Iterator[Place[str]]:
        for commit_id, commit in commits:
            marked.commits.add((repo, commit_id))
            yield _place(repo, commit_id, commit.root)

    def _reached(
        self,
        repo: str,
        heads: Collection[CommitId],
        deleted: Container[CommitId],
        returned: set[tuple[str, CommitId]],
    ) -> Iterator[tuple[CommitId, _Past]]:
        """Yields commits and their ancestors, up to where history has expired. Those in ``deleted``
        that exist are added to ``returned``."""
        waiting, seen = list(heads), set[CommitId]()
        while waiting:
            commit_id = waiting.pop()
            if commit_id in seen:
                continue
            seen.add(commit_id)
            try:
                commit = self.store.commit(repo, commit_id)
            except UNREADABLE as error:
                if isinstance(error, Expired) and commit_id not in heads:
                    continue
                raise _unknown(f"{repo}@{commit_id.hex()}", error) from error
            if commit_id in deleted and commit_id not in heads:
                returned.add((repo, commit_id))
                continue
            waiting += commit.parents
            yield commit_id, _Past(commit.parents, commit.time_s, commit.root)

    def _mark_trees(self, roots: Iterable[Place[str]], marked: Marked) -> None:
        if self.read_groups is not None:
            self._mark_groups(self.read_groups, roots, marked)
            return
        named: dict[PackId, int] = {}
        for tree in walk_trees(self.store.packs, roots, self.executor, marked.add_tree):
            self.progress.phase = f"marking {tree.node.root}"
            if tree.error is not None:
                raise _unknown(tree.node.root, tree.error) from tree.error
            add_named(named, [tree.node.entry])  # directories are added one by one
            add_named(named, (one for one in tree.content if one.kind is not Kind.DIRECTORY))
            if len(named) >= PACKS_TOGETHER:
                marked.add(named)
                named.clear()
            self.progress.files_done = marked.trees
        marked.add(named)

    def _mark_groups(self, read: ReadGroups, roots: Iterable[Place[str]], marked: Marked) -> None:
        for group, names in walk_groups(read, roots, marked.add_tree):
            self.progress.phase = f"marking {group[0].root}"
            if names.unreadable is not None:
                number, reason = names.unreadable
                raise _unknown(group[number].root, reason)
            marked.add(names.packs)
            self.progress.files_done = marked.trees


def _other_names(settings: RepoSettings) -> Iterator[str]:
    """Yields the former names of a repository, and the name that it is about to get."""
    yield from settings.former_names
    if settings.deletion is not None and settings.deletion.renaming is not None:
        yield settings.deletion.renaming.to


def _place(repo: str, commit_id: CommitId, root: TreeEntry) -> Place[str]:
    return Place(f"{repo}@{commit_id.hex()[:12]}", b"", root)


def _unknown(what: str, error: Exception | str) -> Corrupt:
    return Corrupt(
        f"{what} cannot be read completely, so lodefs does not know what it needs, and deletes "
        f"nothing more ({error}). If a branch moved meanwhile, repeat the command. Otherwise "
        "`lodefs repair` lists what is lost and restores it from a source that has it; `lodefs "
        "push --check` stores files again; or delete the branch or tag that leads there"
    )

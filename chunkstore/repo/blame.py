"""Which commit brought what a path has now.

History is walked once for all names of a directory. Of each commit only the trees on the path are
read, and none where the directory is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lodefs.chunkstore.errors import NotADirectory, NotFound
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId, Spec, split_path
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.repo.history import find_in
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import join


class Blamed(NamedTuple):
    """A path, and the commit that made it what it is."""

    path: bytes
    entry: Entry
    commit_id: CommitId
    commit: Commit


def blame(store: Store, spec: Spec) -> Iterator[Blamed]:
    """What is at a path: a file or symlink alone, a directory's entries each; newest commits first,
    as they are found. Of several parents the first that has the same counts.

    Raises: NotFound, NotADirectory, Corrupt.
    """
    start = store.resolve(spec.repo, spec.rev)
    entry = find_in(store.packs, store.commit(spec.repo, start).root, spec)
    path = b"/".join(split_path(spec.path))
    if entry.kind is Kind.DIRECTORY:
        yield from _BlameWalk(store, spec.repo, path).run(start, None)
    else:
        above, _, name = path.rpartition(b"/")
        yield from _BlameWalk(store, spec.repo, above).run(start, {name})


class _BlameWalk:
    def __init__(self, store: Store, repo: str, directory: bytes) -> None:
        self._store = store
        self._repo = repo
        self._directory = directory
        self._commits: dict[CommitId, Commit] = {}

    def run(self, start: CommitId, names: set[bytes] | None) -> Iterator[Blamed]:
        found = self._children(self._entry(start))
        waiting = {start: {name for name in found if names is None or name in names}}
        while waiting:
            at = max(waiting, key=lambda one: (self._commit(one).time_s, one))
            left = waiting.pop(at)
            now = self._entry(at)
            parents = self._commit(at).parents
            for parent in parents:
                same = self._same(now, self._entry(parent), left)
                if same:
                    waiting.setdefault(parent, set()).update(same)
                    left = left - same
            if left:
                children = self._children(now)
                for name in sorted(left):
                    path = join(self._directory, name)
                    yield Blamed(path, children[name], at, self._commit(at))

    def _same(self, now: Entry | None, before: Entry | None, names: set[bytes]) -> set[bytes]:
        """Those of the names that were the same before."""
        if now is not None and before is not None and now.digest == before.digest:
            return names
        new, old = self._children(now), self._children(before)
        return {name for name in names if name in old and _equal(new[name], old[name])}

    def _entry(self, at: CommitId) -> Entry | None:
        """The directory in a commit; None if it has none there."""
        root = self._commit(at).root
        try:
            entry = find_in(self._store.packs, root, Spec(self._repo, at.hex(), self._directory))
        except (NotFound, NotADirectory):
            return None
        return entry if entry.kind is Kind.DIRECTORY else None

    def _children(self, entry: Entry | None) -> dict[bytes, Entry]:
        return {one.name: one for one in self._store.packs.read_tree(entry)} if entry else {}

    def _commit(self, at: CommitId) -> Commit:
        if at not in self._commits:
            self._commits[at] = self._store.commit(self._repo, at)
        return self._commits[at]


def _equal(a: Entry, b: Entry) -> bool:
    return (a.kind, a.executable, a.digest) == (b.kind, b.executable, b.digest)

"""Finds all paths, branches, tags and commits of the files that verify found damaged or purged.

Verify looks at each content once. This searches every commit for what it found. Directories that
have none of it are recorded on disk, so that only the others are read more than once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lodefs.chunkstore.errors import UNREADABLE
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.repo.entry_set import EntrySet, Stored, stored
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.repo.tree_walk import BAD_TREE, join

NAMED_MAX = 20  # limit for the paths, and for the refs, of one content


@dataclass(slots=True)
class Places:
    """The places of one content: at most NAMED_MAX ``paths`` (REPO:PATH) and ``refs`` (REPO@REV),
    and all ``commits``."""

    paths: dict[str, None] = field(default_factory=dict)
    refs: dict[str, None] = field(default_factory=dict)
    commits: int = 0
    paths_left_out: bool = False
    refs_left_out: bool = False
    _last: tuple[str, CommitId] | None = None

    def add(self, path: str, at: tuple[str, CommitId], refs: Iterable[str]) -> None:
        """Adds a path in a commit that ``refs`` name. Commits come one after the other."""
        self.paths_left_out |= _add(self.paths, path)
        if at == self._last:
            return
        self._last = at
        self.commits += 1
        for ref in refs:
            self.refs_left_out |= _add(self.refs, ref)

    def __str__(self) -> str:
        commits = "1 commit" if self.commits == 1 else f"{self.commits:,} commits"
        refs = f", among them {_list(self.refs, is_cut=self.refs_left_out)}" if self.refs else ""
        paths = (
            f", as {_list(self.paths, is_cut=self.paths_left_out)}" if len(self.paths) > 1 else ""
        )
        return f"in {commits}{refs}{paths}"


def find_places(
    store: Store,
    commits: Sequence[tuple[str, CommitId]],
    names: Mapping[tuple[str, CommitId], Sequence[str]],
    wanted: Mapping[Stored, Places],
) -> None:
    """Adds the places of these contents to ``wanted``. ``names`` are the refs at commits. Skips
    what cannot be read, since verify has reported it."""
    with EntrySet() as clean:
        for at in commits:
            try:
                root = store.commit(*at).root
            except UNREADABLE:
                continue
            _find(store, root, at, names.get(at, ()), wanted, clean)


@dataclass(slots=True)
class _Open:
    """A directory whose children are being visited."""

    path: bytes
    entry: TreeEntry
    children: list[TreeEntry]
    has_any: bool = False


def _find(
    store: Store,
    root: TreeEntry,
    at: tuple[str, CommitId],
    refs: Sequence[str],
    wanted: Mapping[Stored, Places],
    clean: EntrySet,
) -> None:
    def opened(path: bytes, entry: TreeEntry) -> _Open:
        try:
            children = store.packs.read_tree(entry)
        except BAD_TREE:
            children = []
        return _Open(path, entry, children[::-1])

    stack = [opened(b"", root)]
    while stack:
        top = stack[-1]
        if not top.children:
            stack.pop()
            if not top.has_any:
                clean.add(top.entry)
            elif stack:
                stack[-1].has_any = True
            continue
        child = top.children.pop()
        path = join(top.path, child.name)
        if child.kind is Kind.DIRECTORY:
            if child not in clean:
                stack.append(opened(path, child))
        elif child.kind is Kind.FILE and stored(child) in wanted:
            top.has_any = True
            wanted[stored(child)].add(
                f"{at[0]}:{path.decode('utf-8', 'surrogateescape')}", at, refs
            )


def _add(names: dict[str, None], name: str) -> bool:
    """Adds a name. Returns whether there was no room for it."""
    if name in names:
        return False
    if len(names) >= NAMED_MAX:
        return True
    names[name] = None
    return False


def _list(names: Iterable[str], *, is_cut: bool) -> str:
    return ", ".join(names) + (" and more" if is_cut else "")

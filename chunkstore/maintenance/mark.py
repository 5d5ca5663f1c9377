"""Finds all that refs lead to: commits, their parents, trees, packs.

What was seen lies in temporary files: 36 bytes a tree, and as many a pack. Of packs whose chunks
are looked at, the numbers of those in use are in memory: a bit for each, and 200 bytes a pack.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack

import msgspec
from blake3 import blake3

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.tree import Entry, Kind
from lodefs.chunkstore.journal.named_packs import add_named
from lodefs.chunkstore.repo.disk_key_set import KEY_BYTES, DiskKeySet
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

TREES_TOGETHER_MAX = 1024


class Marked:
    """Commits and packs in use, and of packs in ``watched`` (None: of all) the chunks, by the bits
    of their numbers. Closed at the end of its block."""

    def __init__(self) -> None:
        self.watched: Collection[PackId] | None = ()
        self.chunks: dict[PackId, int] = {}
        self.commits: set[tuple[str, CommitId]] = set()
        self.trees = 0
        self.packs = 0
        self._closing = ExitStack()
        self._packs = self._closing.enter_context(DiskKeySet())
        self._trees = self._closing.enter_context(DiskKeySet())
        self._key = secrets.token_bytes(32)  # so that collisions here cannot be crafted

    def __enter__(self) -> Marked:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def __contains__(self, pack: object) -> bool:
        return isinstance(pack, bytes) and self._short(pack) in self._packs

    def add(self, named: Mapping[PackId, int]) -> None:
        """Chunks of packs that are in use."""
        for pack, bits in named.items():
            self.packs += self._packs.add(self._short(pack))
            if self.watched is None or pack in self.watched:
                self.chunks[pack] = self.chunks.get(pack, 0) | bits

    def add_tree(self, entry: Entry) -> bool:
        """Whether no other directory was found that is stored in the same place."""
        what = msgspec.msgpack.encode((entry.digest, entry.size_bytes, entry.segments))
        is_new = self._trees.add(self._short(what))
        self.trees += is_new
        return is_new

    def _short(self, what: bytes) -> bytes:
        return blake3(what, key=self._key).digest(length=KEY_BYTES)


def mark(
    store: Store,
    roots: Iterable[tuple[str, CommitId]],
    marked: Marked,
    executor: Executor,
    progress: Progress,
) -> None:
    """Adds all that ``roots`` (commits with their repositories) lead to.

    Raises: Corrupt if something of it is missing or damaged: what is below is then not known.
    """
    for repo, commit_id, root in _commits(store, roots, marked):
        progress.phase = f"marking {repo}@{commit_id.hex()[:12]}"
        try:
            _mark_trees(store, root, marked, executor)
        except (NotFound, Corrupt, UnknownFormat) as error:
            raise _unknown(f"{repo}@{commit_id.hex()[:12]}", error) from error
        progress.files_done = marked.trees


def _commits(
    store: Store, roots: Iterable[tuple[str, CommitId]], marked: Marked
) -> Iterator[tuple[str, CommitId, Entry]]:
    waiting = list(roots)
    while waiting:
        at = repo, commit_id = waiting.pop()
        if at in marked.commits:
            continue
        try:
            commit = store.commit(repo, commit_id)
        except (NotFound, Corrupt, UnknownFormat) as error:
            raise _unknown(f"{repo}@{commit_id.hex()}", error) from error
        marked.commits.add(at)
        waiting += [(repo, parent) for parent in commit.parents]
        yield repo, commit_id, commit.root


def _mark_trees(store: Store, root: Entry, marked: Marked, executor: Executor) -> None:
    waiting = [root]
    while waiting:
        some = [entry for entry in waiting[-TREES_TOGETHER_MAX:] if marked.add_tree(entry)]
        del waiting[-TREES_TOGETHER_MAX:]
        named: dict[PackId, int] = {}
        add_named(named, some)
        for children in executor.map(store.packs.read_tree, some):
            add_named(named, children)
            waiting += [child for child in children if child.kind is Kind.DIRECTORY]
        marked.add(named)


def _unknown(what: str, error: Exception) -> Corrupt:
    return Corrupt(
        f"{what} cannot be read to the end, so it is not known what it needs, and nothing more is "
        f"deleted ({error}). If a branch moved meanwhile, repeat the command. Else see `lodefs "
        "verify`: `lodefs push --check` may store again what is lost; or delete the branch or tag "
        "that leads there"
    )

"""Points a branch or tag to an existing commit, safely beside gc runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator

from lodefs.chunkstore.errors import Expired, NotFound
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, CommitId, PackId
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.journal.tombstoned import MemoryCondemned, commit_key
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS, RefEntry
from lodefs.chunkstore.repo.store import Store


def point_ref(
    store: Store,
    ref: RefName,
    commit_id: CommitId,
    *,
    expected_sequence: int | None,
    clock: Callable[[], float] = time.time,
) -> RefEntry:
    """Moves a ref, as Refs.advance does, to an existing commit of its repository.

    Raises: Collected if a gc run has deleted the commit, or what it needs; NotFound if it is gone
    or never was complete; Conflict; what the store raises.
    """
    write = RefWrite(store, clock)
    try:
        save_existing(store, write, ref.repo, commit_id)
        return write.advance(ref, commit_id, expected_sequence=expected_sequence)
    finally:
        write.close()


def save_existing(store: Store, write: RefWrite, repo: str, commit_id: CommitId) -> None:
    """Saves a commit, its ancestors and all that they name, for a ref that ``write`` will move to
    it, or to a later commit.

    Raises: Collected, NotFound, as point_ref does; what the store raises.
    """
    # If a living ref leads to the commit, all of it exists, and only gc runs that have not ended
    # could delete it.
    journal, previous = write.journal, write.begin().previous
    _require(store, repo, commit_id)
    if previous is None:
        return
    tombstoned = MemoryCondemned()
    # Read this before the refs. Otherwise a gc run that ends in between could have deleted a ref's
    # commit that was still living, and would not count as unfinished.
    undone = journal.undone(previous)
    tombstoned.add(
        undone if is_living(store, repo, commit_id) else [*journal.tombstoning(previous)][::-1]
    )
    if tombstoned.newest is None:
        return
    ids: set[bytes] = set()
    chunks: dict[PackId, int] = {}
    unreadable: set[bytes] = set()
    base: TreeEntry | None = None
    may_lack = store.settings_log(repo).surely_newest().may_lack_history
    gone: set[CommitId] = set()  # ancestors that have just expired
    try:
        for at, commit in _ancestors(store, repo, commit_id, set(), gone):
            if may_lack and at != commit_id and not _is_kept(write, tombstoned, repo, at):
                store.put_expired(repo, at, commit.time_s)
                gone.add(at)
                continue
            named = named_packs(store.packs, commit.root, base)
            if may_lack and at != commit_id and named.unreadable and store.has_expired(repo, at):
                gone.add(at)  # a late writer has put it back (docs/decisions/0049)
                continue
            ids |= named.found.keys() | {commit_key(repo, at)}
            for pack, bits in named.found.items():
                chunks[pack] = chunks.get(pack, 0) | bits
            unreadable |= named.unreadable
            base = commit.root
    except Expired:
        raise
    except NotFound as error:
        raise NotFound(
            f"{repo}@{commit_id.hex()[:12]}, or a commit before it, is gone: a gc run (lodefs "
            f"gc) has deleted it ({error})"
        ) from error
    write.save(tombstoned, ids, chunks)
    if unreadable:
        raise NotFound(
            f"{repo}@{commit_id.hex()[:12]} is incomplete: pack {min(unreadable).hex()} is missing "
            "or damaged; see `lodefs verify`"
        )


def _require(store: Store, repo: str, commit_id: CommitId) -> None:
    """Raises: NotFound, Expired unless the commit exists."""
    try:
        store.commit(repo, commit_id)
    except Expired:
        raise
    except NotFound as error:
        raise NotFound(
            f"{store.url} has no commit {repo}@{commit_id.hex()[:12]}: perhaps `lodefs gc` has "
            "deleted it"
        ) from error


def _is_kept(write: RefWrite, tombstoned: MemoryCondemned, repo: str, at: CommitId) -> bool:
    """Saves an old commit before the packs that it needs, since a gc run decides about commits
    first. Returns False if it has expired, and a gc run deletes it."""
    try:
        write.save(tombstoned, [commit_key(repo, at)])
    except Collected:
        return False
    return True


def is_living(store: Store, repo: str, commit_id: CommitId) -> bool:
    """Whether a ref of the repository leads to a commit now. An incomplete list can only cause a
    false no."""
    refs = store.refs(repo)
    seen: set[CommitId] = set()
    for kind in (BRANCHES, TAGS):
        for name in sorted(refs.names(kind), key=lambda name: (name != DEFAULT_BRANCH, name)):
            entry = refs.surely_newest(kind, name)
            if entry is None or entry.commit is None:
                continue
            if any(at == commit_id for at, _ in _ancestors(store, repo, entry.commit, seen)):
                return True
    return False


def _ancestors(
    store: Store, repo: str, head: CommitId, seen: set[CommitId], gone: Container[CommitId] = ()
) -> Iterator[tuple[CommitId, Commit]]:
    """Yields a commit and its ancestors, up to where history has expired. It skips those in
    ``seen``, and adds each that it yields. It does not go beyond those in ``gone``, which the
    caller fills. Raises: NotFound, Corrupt."""
    waiting = [head]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        try:
            commit = store.commit(repo, at)
        except Expired:
            if at == head:
                raise
            continue
        yield at, commit
        if at not in gone:
            waiting += commit.parents

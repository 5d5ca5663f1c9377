"""Bundles: writes a branch or tag with its history into a file, and reads it into a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from lodefs.chunkstore.errors import Corrupt, Diverged, InvalidInput, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.bundle import COMMIT, PACK, BundleHead
from lodefs.chunkstore.format.commit import Commit, commit_id_of, decode_commit, encode_commit
from lodefs.chunkstore.format.names import ID_BYTES, CommitId, PackId
from lodefs.chunkstore.format.pack import DROPPED, ROW_SIZE_BYTES, TRAILER_SIZE_BYTES, PackIndex
from lodefs.chunkstore.journal.named_packs import named_packs
from lodefs.chunkstore.journal.tombstoned import NamedChunks
from lodefs.chunkstore.push.limits import check_arriving
from lodefs.chunkstore.repo.pack_reader import check_bound
from lodefs.chunkstore.repo.refs import RefEntry, singular
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.transfer.bundle_file import BundleReader, BundleWriter
from lodefs.chunkstore.transfer.import_session import ImportSession
from lodefs.chunkstore.transfer.pack_copy import (
    check_payload,
    fetch_pack,
    put_pack,
    without_purged,
)
from lodefs.chunkstore.transfer.plan import History, ref_named

WORKERS = 4  # packs that are fetched or put at once


@dataclass(frozen=True, slots=True)
class Bundled:
    """The content of a bundle."""

    head: BundleHead
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The result of unpacking a bundle. ``before`` is the ref's previous entry in the store."""

    head: BundleHead
    before: CommitId | None
    packs: int  # packs that were put
    packs_there: int


def create_bundle(
    store: Store,
    repo: str,
    rev: str,
    since: str | None,
    file: BinaryIO,
    *,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
) -> Bundled:
    """Writes a branch or tag with its history to ``file``. ``since`` (an ancestor) leaves out what
    that revision leads to.

    Raises: NotFound; InvalidInput if ``rev`` is a commit, or does not come after ``since``; Corrupt
    if the store lacks something; what the store raises. After an error the file is not a bundle.
    """
    progress = progress or Progress()
    ref = ref_named(store, repo, rev)
    commit_id = store.refs(repo).read(ref.kind, ref.name).commit
    assert commit_id is not None
    base = None if since is None else store.resolve(repo, since)
    history = History(store, repo)
    order = history.order(commit_id, set() if base is None else {base})
    if base is not None and not any(base in history.commit(at).parents for at in order):
        raise InvalidInput(f"{repo}@{rev} does not come after {since}, or is the same: nothing new")
    progress.phase = f"looking at {repo}@{rev}"
    named: dict[PackId, int] = {}
    packs: list[list[PackId]] = []
    for chunks in _new_packs(store, history, order, base):
        packs.append(sorted(chunks.keys() - named.keys()))
        for pack, bits in chunks.items():
            named[pack] = named.get(pack, 0) | bits
    before = {parent for at in order for parent in history.commit(at).parents} - {base, *order}
    expired = tuple(sorted(at for at in before if history.has_expired(at)))
    head = BundleHead(ref, base, tuple(order), sum(map(len, packs)), int(clock()), expired)
    writer = BundleWriter(file, head)
    progress.phase = f"bundling {repo}@{rev}"
    fetch = partial(fetch_pack, store.objects)
    with ThreadPoolExecutor(WORKERS, "lodefs-bundle") as executor:
        for at, some in zip(order, packs, strict=True):
            for index, payload in map_ahead(executor, fetch, some, WORKERS):
                if index.lacks(named[index.pack_id], bytes((DROPPED,))):
                    raise _not_whole(store, at, index.pack_id)
                writer.add(PACK, index.pack_id, payload, index.encode())
                progress.bytes_done = writer.size_bytes
            writer.add(COMMIT, encode_commit(history.commit(at)))
    writer.end()
    return Bundled(head, writer.size_bytes)


def standing(reader: BundleReader, store: Store) -> RefEntry | None:
    """Returns the newest entry of the bundle's ref in a store that it may be unpacked into; None if
    the ref never existed there. Raises: NotFound if the store lacks the commit that the bundle
    builds on; Diverged if the ref has diverged; InvalidInput, AlreadyExists if its name is
    taken."""
    head = reader.head
    repo, kind, name = head.ref
    before = store.refs(repo).latest(kind, name)
    at = None if before is None else before.commit
    if at is None:
        store.check_new_ref(repo, kind, name)
    elif at not in (head.since, *head.commits, *head.expired) or (
        kind == "tags" and at != head.commit
    ):
        between = "; history before it had expired when it was made" if head.expired else ""
        raise Diverged(
            f"{singular(kind)} {name} of {repo} is at {at.hex()[:12]} in {store.url}, "
            f"which {reader.what} does not come after{between}"
        )
    if head.since is not None:
        try:
            store.commit(repo, head.since)
        except NotFound:
            raise NotFound(
                f"{reader.what} builds on commit {head.since.hex()[:12]} of {repo}, which "
                f"{store.url} does not have: unpack the previous bundle first"
            ) from None
    return before


def unpack_bundle(
    reader: BundleReader,
    store: Store,
    before: RefEntry | None,
    *,
    size_bytes: int | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
) -> Unpacked:
    """Brings the content of a bundle to a store, and moves its ref from ``before`` (the result of
    ``standing``). ``size_bytes`` comes from its CheckedBundle: with it the quota is checked before
    anything is put, otherwise at the end.

    Raises: Corrupt, UnknownFormat for the bundle; Conflict if the ref is not at ``before`` any
    more; Collected, OverQuota, as a copy does; what the store raises. After an error no ref has
    moved.
    """
    progress = progress or Progress()
    landing = ImportSession(store, clock)
    try:
        with ThreadPoolExecutor(WORKERS, "lodefs-bundle") as executor:
            work = _Unpack(reader, store, landing, executor, progress)
            return work.run(before, clock, size_bytes)
    finally:
        landing.close()


class _Unpack:
    """One bundle that is being unpacked into a store."""

    def __init__(
        self,
        reader: BundleReader,
        store: Store,
        landing: ImportSession,
        executor: Executor,
        progress: Progress,
    ) -> None:
        self._reader = reader
        self._what = reader.what
        self._store = store
        self._landing = landing
        self._executor = executor
        self._progress = progress
        self._commits: dict[CommitId, Commit] = {}
        self._packs = self._packs_there = 0

    def run(
        self, before: RefEntry | None, clock: Callable[[], float], size_bytes: int | None
    ) -> Unpacked:
        """Puts the packs, checks them against the commits, and then moves the ref."""
        head = self._reader.head
        at = None if before is None else before.commit
        self._check_quota(at, size_bytes)
        self._progress.phase = f"unpacking {head.ref.repo}@{head.ref.name}"
        self._landing.begin()
        if head.since is not None:
            self._landing.keep(head.ref.repo, head.since)
        for _ in map_ahead(self._executor, self._put, self._missing(), WORKERS):
            pass
        self._check_history()
        newest = self._commits.get(head.commit)
        self._check_quota(at, None if newest is None else newest.size_bytes)
        self._check_whole()
        for commit_id in head.expired if at != head.commit else ():
            if not self._store.has_commit(head.ref.repo, commit_id):
                self._store.put_expired(head.ref.repo, commit_id, int(clock()))
        if at != head.commit:
            self._landing.advance(head.ref, before, head.commit, self._commits.items())
        return Unpacked(head, at, self._packs, self._packs_there)

    def _check_quota(self, at: CommitId | None, size_bytes: int | None) -> None:
        """Raises: OverQuota."""
        head = self._reader.head
        if size_bytes is not None and at != head.commit:
            check_arriving(self._store, head.ref.repo, at, head.commit, size_bytes)

    def _missing(self) -> Iterator[tuple[PackIndex, bytearray]]:
        """Yields the packs of the bundle that must be put, and keeps its commits."""
        for record in self._reader.records():
            if record.kind == COMMIT:
                self._commits[commit_id_of(record.data)] = decode_commit(record.data, self._what)
                continue
            index = _index_at_end(record.data, self._what)
            if self._landing.has(index):
                self._packs_there += 1
            else:
                self._packs += 1
                yield index, record.data

    def _put(self, pack: tuple[PackIndex, bytearray]) -> None:
        """Checks a pack, and puts it."""
        index, data = pack
        payload = memoryview(data)[ID_BYTES : ID_BYTES + index.offsets[-1]]
        check_payload(index, payload)
        left = without_purged(index, payload, self._landing.purged)
        first = self._landing.require_first
        there, sent_bytes = put_pack(self._store.objects, *left, may_join=first)
        self._landing.landed(there)
        self._progress.bytes_done += payload.nbytes
        self._progress.bytes_sent += sent_bytes

    def _check_history(self) -> None:
        """Raises: Corrupt unless the ref leads to all commits in the bundle, and these to the
        commit that it builds on. Commits that it calls expired must come right before them. So they
        lead to the store's ref, which is one of those. About other history it says nothing."""
        head = self._reader.head
        if tuple(self._commits) != head.commits:
            raise Corrupt(f"{self._what} does not hold the commits that it lists")
        seen: set[CommitId] = set()
        waiting = [head.commit]
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                waiting += self._commits[at].parents if at in self._commits else ()
        needed = self._commits.keys() | (set() if head.since is None else {head.since})
        if strange := set(head.expired) - (seen - needed):
            raise Corrupt(
                f"{self._what} is inconsistent: commit {min(strange).hex()[:12]}, which it calls "
                "expired, does not come before any commit in it"
            )
        if lost := needed - seen:
            raise Corrupt(
                f"{self._what} is inconsistent: commit {head.commit.hex()[:12]} in it does not "
                f"come after {min(lost).hex()[:12]}"
            )

    def _check_whole(self) -> None:
        """Raises: Corrupt unless the store has all chunks that the commits name; Collected if a gc
        run of the store has dropped some."""
        head = self._reader.head
        base = head.since
        known = {} if base is None else {base: self._store.commit(head.ref.repo, base)}
        for at, commit in self._commits.items():
            if any(parent not in known and parent not in head.expired for parent in commit.parents):
                raise Corrupt(f"{self._what} lacks a parent of commit {at.hex()[:12]}")
            parent = known.get(commit.parents[0]) if commit.parents else None
            root = None if parent is None else parent.root
            found, unreadable = named_packs(self._store.packs, commit.root, root)
            if lost := self._landing.lacking(found) | unreadable:
                raise self._not_whole(at, min(lost))
            known[at] = commit

    def _not_whole(self, at: CommitId, lost: PackId) -> Corrupt:
        what = f"commit {at.hex()[:12]} needs {keys.pack(lost)}, which it lacks"
        since = self._reader.head.since
        if since is not None:
            what += (
                f", and {self._store.url} lacks it, too: commit {since.hex()[:12]}, on which the "
                f"bundle builds, may be damaged (lodefs verify {self._reader.head.ref.repo})"
            )
        return Corrupt(f"{self._what} is incomplete: {what}")


def _new_packs(
    store: Store, history: History, order: list[CommitId], since: CommitId | None
) -> Iterator[NamedChunks]:
    """Yields for each commit the chunks that it names, by pack. A pack is left out if ``since``
    names all its needed chunks: a store with that commit has those chunks, but perhaps no others of
    the pack. This reads all trees of ``since``; a damaged one only costs bytes."""
    there: NamedChunks = {}
    if since is not None and not history.has_expired(since):
        there = named_packs(store.packs, history.commit(since).root, None).found
    for at in order:
        commit = history.commit(at)
        parent = history.parent(commit)
        before = None if parent is None else parent.root
        found, unreadable = named_packs(store.packs, commit.root, before)
        if unreadable:
            raise _not_whole(store, at, min(unreadable))
        left = {pack: chunks & ~there.get(pack, 0) for pack, chunks in found.items()}
        yield {pack: chunks for pack, chunks in left.items() if chunks}


def _not_whole(store: Store, commit_id: CommitId, pack: PackId) -> Corrupt:
    return Corrupt(
        f"commit {commit_id.hex()[:12]} of {store.url} is incomplete: {keys.pack(pack)} is missing "
        "or damaged; see `lodefs verify`"
    )


def _index_at_end(record: bytearray, what: str) -> PackIndex:
    """Returns the index of a whole pack that follows its id."""
    pack_id, data = PackId(bytes(record[:ID_BYTES])), memoryview(record)[ID_BYTES:]
    try:
        index = PackIndex.decode(pack_id, data)
    except Corrupt as error:
        raise Corrupt(f"{what} is damaged: {error}") from error
    if index.offsets[-1] + len(index) * ROW_SIZE_BYTES + TRAILER_SIZE_BYTES != len(data):
        raise Corrupt(f"{what} is damaged: the size of pack {pack_id.hex()} in it is wrong")
    check_bound(index)
    return index

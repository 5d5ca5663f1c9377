"""The end of a push: from stored trees to a branch that leads to them.

A crash cannot spoil the order: packs, index shard, commit, ref. If a gc run has tombstoned
something that the commit will name, the committer saves it first (decision 0036).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lodefs.chunkstore.errors import Conflict, LodefsError, Renamed
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.commit import Commit, commit_id_of, encode_commit
from lodefs.chunkstore.format.hook_list import closes_list
from lodefs.chunkstore.format.index_shard import encode_shard
from lodefs.chunkstore.format.names import CommitId, PackId
from lodefs.chunkstore.format.tree import TreeEntry
from lodefs.chunkstore.journal.named_packs import NamedPacks, named_packs
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.ref_write import Collected
from lodefs.chunkstore.journal.tombstoned import NamedChunks, commit_key
from lodefs.chunkstore.push.index.tombstoned_rows import CondemnedRows, learn
from lodefs.chunkstore.push.limits import Quota
from lodefs.chunkstore.push.pack_check import (
    PacksCollected,
    PacksLost,
    lacking_named,
    missing_packs,
)
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.repo.hook_lists import put_hook_lists
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion, PackReader
from lodefs.chunkstore.repo.refs import BRANCHES, RefEntry
from lodefs.chunkstore.repo.store import Store, require_there


@dataclass(frozen=True, slots=True)
class Head:
    """A branch at one moment. If it does not exist, all fields but ``ref`` are None."""

    ref: RefEntry | None
    id: CommitId | None
    commit: Commit | None

    @property
    def root(self) -> TreeEntry | None:
        """The root directory of its commit."""
        return None if self.commit is None else self.commit.root

    @property
    def size_bytes(self) -> int:
        """The bytes of all its files."""
        return 0 if self.commit is None else self.commit.size_bytes


def read_head(store: Store, repo: str, branch: str) -> Head:
    """Returns where a branch is now. Raises: InvalidInput for a new one that has the name of a tag
    or commit; AlreadyExists if its repository is deleted."""
    ref = store.refs(repo).latest(BRANCHES, branch)
    if ref is None or ref.commit is None:
        store.check_new_ref(repo, BRANCHES, branch)
        return Head(ref, None, None)
    return Head(ref, ref.commit, store.commit(repo, ref.commit))


def head_of(session: PushSession) -> Head:
    """Returns where the branch of a session is now. If its repository was renamed, the session
    continues under the new name. Raises as ``read_head`` does."""
    try:
        return read_head(session.store, session.branch.repo, session.branch.name)
    except Renamed as error:
        session.store.on_renamed(error.to)
        session.branch = session.branch._replace(repo=error.to)
        return read_head(session.store, session.branch.repo, session.branch.name)


class PurgedMeanwhile(Conflict):
    """A purge ran while a push was under way."""


class Committer:
    """Puts one commit on the branch of a session, as one write of its ref. For one thread."""

    def __init__(self, session: PushSession) -> None:
        self._session = session
        self._store = session.store
        self._index = session.index
        self._write = session.write

    def check_reused(self) -> None:
        """Raises: PacksLost if the store lacks chunks that are about to be used again."""
        reused = NamedPacks(self._index.reused(), set())
        self._require(self._lacking(reused, ()))

    def check_new(self, root: TreeEntry, base: TreeEntry | None) -> None:
        """Does what ``check_reused`` does. It also checks what this machine once pushed and has not
        read or stored now, if the directory ``root`` leads to it and ``base``, the head, does
        not."""
        is_head = base is not None and (base.digest, base.segments) == (root.digest, root.segments)
        if is_head or not self._index.has_memory:
            self.check_reused()
            return
        self.check_named(root, base)

    def check_named(self, root: TreeEntry, base: TreeEntry | None) -> None:
        """Does what ``check_reused`` does. It also checks all that the directory ``root`` leads to,
        except what ``base`` leads to or this session has stored."""
        self._check_named(named_packs(self._store.packs, root, base))

    def _check_named(self, named: NamedPacks) -> None:
        for pack, bits in self._index.reused().items():
            named.found[pack] = named.found.get(pack, 0) | bits
        self._require(self._lacking(named, self._index.added()))

    def check_all(self, root: TreeEntry) -> None:
        """Raises: PacksLost if the store lacks chunks of the directory ``root``."""
        reader = PackReader(self._store.objects)  # a new one remembers nothing from before
        named = named_packs(reader, root, None)
        self._require(self._lacking(named, self._index.added()))

    def _lacking(self, named: NamedPacks, own: Collection[PackId]) -> dict[PackId, int | None]:
        """Returns what the store lacks. Of chunks in place, only those count that this session has
        found by their ids; others were in a commit before."""
        objects, relies, reused = self._store.objects, self._session.relies, self._index.reused()

        def in_place(version: PackIndexVersion) -> int:
            return relies(objects, version, reused.get(version.index.pack_id, 0))

        return lacking_named(objects, named, own, in_place)

    def commit(
        self, head: Head, commit: Commit, unsaved: Mapping[PackId, int] | None = None
    ) -> CommitId:
        """Writes the index shard, the commit and the ref. The commit gets a later time if a gc run
        has deleted one with the same id. ``unsaved`` are the chunks to save, if others have saved
        the rest (``hand_over``). Raises: PacksCollected, PacksLost; Conflict if the branch
        is not at ``head`` any more; PurgedMeanwhile; NoSpace for more than the quota; for a new
        branch what read_head raises; what the store raises."""
        branch = self._session.branch
        Quota(self._store, branch.repo, head.size_bytes).check(commit.size_bytes)
        self._store.ensure_writable()  # a commit may need no other write
        tombstoned = CondemnedRows(self._index)
        if unsaved is None:
            self._save(commit.root, head.root, tombstoned)
        else:
            learn(self._write, tombstoned, self._index)
            self._keep(unsaved, tombstoned)
        self._check_purges()
        self._publish(tombstoned)
        commit = self._unused(branch.repo, commit, tombstoned)
        commit_id = self._store.put_commit(branch.repo, commit)
        self._session.progress.bytes_sent += len(encode_commit(commit))
        sequence = None if head.ref is None else head.ref.sequence
        if head.id is None:  # the repository may have been deleted
            self._store.check_new_ref(*branch)
        if self._session.options.on_commit is not None:
            self._session.options.on_commit(commit_id)
        self._write.advance(branch, commit_id, expected_sequence=sequence)
        return commit_id

    def publish(self) -> None:
        """Writes only the index shard: another writer, which began earlier, makes the commit.
        Raises what ``commit`` raises."""
        tombstoned = CondemnedRows(self._index)
        learn(self._write, tombstoned, self._index)
        self._publish(tombstoned)

    def hand_over(self, root: TreeEntry) -> None:
        """Leaves the directory ``root`` to a commit of the same writer: checks and saves what it
        leads to and this session has not stored, and writes the index shard. Raises:
        PacksCollected, PacksLost; what the store raises."""
        has_memory = self._index.has_memory
        named = named_packs(self._store.packs, root, None) if has_memory else NamedPacks({}, set())
        self._check_named(named)
        tombstoned = CondemnedRows(self._index)
        learn(self._write, tombstoned, self._index)
        added = self._index.added()
        self._keep({p: bits for p, bits in named.found.items() if p not in added}, tombstoned)
        self._publish(tombstoned)

    def _check_purges(self) -> None:
        """Raises: PurgedMeanwhile if a purge ended since the index last learned of purges, as this
        push may have stored the purged bytes again. A purge that begins later waits for this
        writer."""
        seen = self._index.purges_seen
        if Purges(self._store.objects).newest(seen) > seen:
            raise PurgedMeanwhile("lodefs purge ran while this push was under way: repeat the push")

    def _require(self, lacking: Mapping[PackId, int | None]) -> None:
        if not lacking:
            return
        require_there(self._store.objects)
        if lost := {pack for pack, bits in lacking.items() if bits is None}:
            raise PacksLost(
                f"the store still lacks {len(lost)} packs that the commit would name, such as "
                f"{keys.pack(min(lost))}, although they were stored again",
                lost,
            )
        chunks = {pack: bits for pack, bits in lacking.items() if bits}
        raise PacksCollected(
            f"the store still lacks chunks of {len(chunks)} packs that the commit would name, such "
            f"as {keys.pack(min(chunks))}, although they were stored again",
            set(),
            chunks,
        )

    def _save(self, root: TreeEntry, base: TreeEntry | None, tombstoned: CondemnedRows) -> None:
        """Saves what a gc run has tombstoned and the commit will name, unless the head names it
        too. Raises: PacksCollected, PacksLost."""
        learn(self._write, tombstoned, self._index)
        purged = self._index.purged
        if tombstoned.newest is None and not purged:
            return
        packs, unreadable = named_packs(self._store.packs, root, base)
        both = {pack: bits & packs.get(pack, 0) for pack, bits in purged.items()}
        if any(both.values()):  # in unchanged files, which were not read
            named = {pack: bits for pack, bits in both.items() if bits}
            raise PacksCollected("the commit would name purged chunks", set(), named)
        self._keep(packs, tombstoned)
        if unreadable:
            require_there(self._store.objects)
            raise PacksLost("the commit would name trees in packs that are lost", unreadable)

    def _keep(self, named: NamedChunks, tombstoned: CondemnedRows) -> None:
        try:
            self._write.save(tombstoned, named, named)
        except Collected as error:
            lost = {PackId(one) for one in error.ids}
            raise PacksCollected(str(error), lost, error.chunks) from error

    def _publish(self, tombstoned: CondemnedRows) -> None:
        """Puts the shard of the packs that no shard lists yet. It leaves out packs of dead pushes
        that may be deleted or were lost since."""
        packs = self._index.unpublished()
        ids = {pack.pack_id for pack in packs}
        # Unchecked packs of dead pushes
        left = ids - self._index.added() - self._index.reused().keys()
        lost = missing_packs(self._store.objects, left)
        if lost:
            self._index.forget_packs(lost)
        doubtful = lost.union(*tombstoned.find(ids).values())
        packs = [pack for pack in packs if pack.pack_id not in doubtful]
        if packs:
            shard_id = f"{time.time_ns():016x}-{os.urandom(4).hex()}"
            shard = encode_shard(packs)
            self._store.objects.put(keys.shard(shard_id), [shard], if_absent=True)
            self._session.progress.bytes_sent += len(shard)
            self._index.published(shard_id, packs)
            if self._index.is_sampled and closes_list(shard_id):
                with contextlib.suppress(LodefsError):  # the next list has these shards, too
                    put_hook_lists(self._store.objects, shard_id)

    def _unused(self, repo: str, commit: Commit, tombstoned: CondemnedRows) -> Commit:
        """Returns the commit, with a time at which no gc run has deleted one with the same id."""
        while True:
            key = commit_key(repo, commit_id_of(encode_commit(commit)))
            try:
                self._write.save(tombstoned, [key])
            except Collected:
                commit = replace(commit, time_s=commit.time_s + 1)
                continue
            return commit

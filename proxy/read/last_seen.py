"""The commits that a node has seen in its store, for times when the store is away.

A mirror may be out of date. The node keeps showing the last commit of a branch or tag until the
store answers again, unless the mirror has a later one; also after a restart.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic

from lodefs.chunkstore.errors import Corrupt, Denied, LodefsError, NotFound, Unavailable
from lodefs.chunkstore.format.names import CommitId, parse_revision
from lodefs.chunkstore.nodecache import layout
from lodefs.chunkstore.nodecache.kv import KeyValues
from lodefs.chunkstore.nodecache.layout import SeenRow
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.mirrored import is_replaced
from lodefs.chunkstore.repo.store import Store, decode_settings, encode_settings, open_store
from lodefs.chunkstore.system.lru import Lru
from lodefs.proxy.read.directories.write_buffer import WriteBuffer

WALK_S_MAX = 3.0
WALK_MAX = 256  # commits
SKEW_S = 3600  # between the clocks of pushers
VERDICTS_MAX = 1024
log = logging.getLogger("lodefs.store")


def store_or_error(objects: ObjectStore) -> Store | LodefsError:
    """Returns the store; a temporary error if it cannot be read now. Raises: other errors of
    open_store."""
    try:
        return open_store(objects)
    except (Unavailable, Denied, NotFound) as error:
        return error


def known_store(opened: Store | LodefsError, objects: ObjectStore, kv: KeyValues) -> Store:
    """Returns an opened store, or one that this node has opened before, so that cached data can be
    read. Raises: the error, for an unknown store; Corrupt."""
    key = layout.seen_key(objects.url)
    if isinstance(opened, Store):
        settings = encode_settings(opened.settings)
        if kv.get(key) != settings:
            kv.write([(key, settings)])
        return opened
    known = kv.get(key)
    if known is None:
        raise opened
    log.warning("only cached data can be read until the store answers: %s", opened)
    return Store(objects, decode_settings(known))


class LastSeen:
    """The last commits of a store's branches and tags, as this node saw them. For any thread."""

    def __init__(self, store: Store, kv: KeyValues | WriteBuffer) -> None:
        self._store = store
        self._kv = kv
        self._verdicts: Lru[tuple[CommitId, CommitId], bool] = Lru(VERDICTS_MAX)

    def resolve(self, repo: str, rev: str) -> tuple[CommitId, bool]:
        """Returns what Store.resolve returns, but never a commit before one that was seen; and
        whether the store itself said so."""
        name, steps = parse_revision(rev)
        found, is_last = self._resolve(repo, name)
        return self._store.before(repo, found, rev, steps), is_last

    def _resolve(self, repo: str, rev: str) -> tuple[CommitId, bool]:
        was_replaced = self._is_replaced()
        try:
            found = self._store.resolve(repo, rev)
        except Unavailable:
            known = self._seen(repo, rev) if was_replaced or self._is_replaced() else None
            if known is None:
                raise
            return CommitId(bytes.fromhex(known.commit)), False
        if was_replaced or self._is_replaced():
            return self.newer(repo, rev, found), False
        return found, True

    def newer(self, repo: str, rev: str, found: CommitId) -> CommitId:
        """Returns a mirror's commit of a branch or tag, or the one that was seen, if that is not an
        ancestor of it."""
        seen = self._seen(repo, rev) if self._is_replaced() else None
        if seen is None or seen.commit == found.hex():
            return found
        known = CommitId(bytes.fromhex(seen.commit))
        verdict = self._verdicts.get((found, known))
        if verdict is None:
            verdict = self._descends(repo, found, known, seen.time_s)
            self._verdicts.put((found, known), verdict)
        return found if verdict else known

    def note(self, repo: str, rev: str, commit: str, time_s: int) -> None:
        """Notes the store's commit of a branch or tag, which was made at a time."""
        if commit.startswith(rev) or parse_revision(rev).steps:
            return  # not a name, but a commit or an ancestor of one
        key, row = layout.seen_key(self._store.url, repo, rev), SeenRow(commit, time_s)
        value = layout.encode_seen_row(row)
        if self._kv.get(key) != value:
            self._kv.write([(key, value)])

    def _is_replaced(self) -> bool:
        return is_replaced(self._store.objects)

    def _seen(self, repo: str, rev: str) -> SeenRow | None:
        value = self._kv.get(layout.seen_key(self._store.url, repo, rev))
        with suppress(Corrupt):
            return None if value is None else layout.decode_seen_row(value)
        return None

    def _descends(self, repo: str, commit: CommitId, known: CommitId, known_s: int) -> bool:
        """Whether ``known`` is an ancestor of a commit, as far as a short search shows."""
        ends_s = monotonic() + WALK_S_MAX
        waiting, met = [commit], {commit}
        while waiting and len(met) <= WALK_MAX and monotonic() < ends_s:
            one = waiting.pop(0)
            if one == known:
                return True
            try:
                read = self._store.commit(repo, one)
            except LodefsError:
                continue
            if read.time_s >= known_s - SKEW_S:
                waiting += [parent for parent in read.parents if parent not in met]
                met.update(read.parents)
        return False

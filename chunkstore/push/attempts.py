"""Attempts of a push: what each works with, and how often there is one.

A push that finds out that it relied on what is not there begins anew, knowing that. What an attempt
has sent and read is not sent or read again by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.journal.heartbeat import Heartbeat
from lodefs.chunkstore.journal.purges import Purges
from lodefs.chunkstore.journal.ref_write import Collected, RefWrite
from lodefs.chunkstore.push.committer import learn
from lodefs.chunkstore.push.index.condemned_rows import CondemnedRows
from lodefs.chunkstore.push.index.lost_chunks import forget_chunks, refuse
from lodefs.chunkstore.push.index.push_index import IndexBroken, PushIndex
from lodefs.chunkstore.push.index.stat_cache import forget_files_in
from lodefs.chunkstore.push.pack_check import PacksCollected, PacksLost
from lodefs.chunkstore.push.pack_writer import DryUploader, Uploader
from lodefs.chunkstore.push.push_options import PushOptions
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

if TYPE_CHECKING:
    from lodefs.chunkstore.push.workers.pool import Workers

T = TypeVar("T")


@dataclass(slots=True)
class LostPacks:
    """Packs that earlier attempts found to be lost, and chunks of others (bits of their numbers);
    ``dead`` are ids that no new pack may have."""

    packs: set[PackId] = field(default_factory=set)
    dead: set[PackId] = field(default_factory=set)
    chunks: dict[PackId, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.packs | self.chunks.keys())

    def add(self, error: PacksLost) -> bool:
        """Whether an attempt found anything new."""
        known = self.dead if isinstance(error, PacksCollected) else self.packs
        is_new = not error.packs <= known
        known |= error.packs
        self.packs |= error.packs
        for pack, bits in error.chunks.items() if isinstance(error, PacksCollected) else ():
            before = self.chunks.get(pack, 0)
            self.chunks[pack] = before | bits
            self.dead.add(pack)
            is_new = is_new or before | bits != before
        return is_new

    def forget_in(self, index: PushIndex, store: Store) -> None:
        """Has a push index forget them. It reads the shards of the store before, of a new index
        too: they still list what is lost."""
        if self.packs or self.chunks:
            index.load_shards(store.objects)
            forget_chunks(index, self.chunks)
        if self.packs:
            index.forget_packs(self.packs)
            forget_files_in(index, self.packs)


def attempt(store: Store, index_dir: Path, lost: LostPacks, once: Callable[[LostPacks], T]) -> T:
    """What ``once`` gives. It is called again after each error that it can avoid the next time: a
    broken index (put aside, once), packs that the store has lost (added to ``lost``)."""
    is_broken = False
    while True:
        try:
            return once(lost)
        except IndexBroken as error:
            if is_broken:
                raise
            is_broken = True
            PushIndex.set_aside(index_dir, store.settings.store_id, error)
        except PacksLost as error:
            if not lost.add(error):
                raise


class Desk:
    """What all parts of one attempt work with. One thread."""

    def __init__(
        self,
        store: Store,
        index: PushIndex,
        uploader: Uploader,
        progress: Progress,
        processes: int | None,
    ) -> None:
        self.store = store
        self.index = index
        self.uploader = uploader
        self.progress = progress
        self._processes = processes  # that read: as of PushOptions
        self._readers: Workers | None = None
        self._has_learned = False

    def learn(self) -> None:
        """Brings the index up to date before it is relied on: what others pushed, and that the
        store is not an older one, restored from a backup."""
        if not self._has_learned:
            self.index.load_shards(self.store.objects)
            self.learn_purges()
            self._has_learned = True

    def learn_purges(self) -> None:
        """Has the index refuse what was purged: each attempt does, since its commit is refused if
        there is a purge that it does not know. One request, and one for each new purge."""
        refuse(self.index, Purges(self.store.objects).after(self.index.purges_seen))

    def readers(self, files: int, size_bytes: int) -> Workers:
        """Workers that read, fit for so many files and bytes: the same at each call. They may be
        processes, which are forked at the first call: before threads are started."""
        if self._readers is None:
            from lodefs.chunkstore.push.workers.pool import workers_for

            params = self.store.settings.chunking
            self._readers = workers_for(params, self._processes, files, size_bytes)
        return self._readers

    def close(self) -> None:
        """Ends the workers."""
        if self._readers is not None:
            self._readers.close()


class _DeadPacks:
    """Ids that no new pack may have: what a collection has deleted is stored under another id, and
    at once, by a machine that did not know it too. One thread."""

    def __init__(
        self,
        found: Container[PackId],
        index: PushIndex,
        write: RefWrite,
        prepare: Callable[[], None],
    ) -> None:
        self._found = found  # by earlier attempts
        self._index = index
        self._write = write
        self._prepare = prepare
        self._condemned: CondemnedRows | None = None

    def __contains__(self, pack_id: object) -> bool:
        assert isinstance(pack_id, bytes)
        if self._condemned is None:
            self._prepare()
            self._condemned = CondemnedRows(self._index)
            learn(self._write, self._condemned, self._index)
        if pack_id in self._found:
            return True
        if self._condemned.newest is None:
            return False
        try:
            self._write.save(self._condemned, [pack_id])
        except Collected:
            return True
        return False


@contextmanager
def at_desk(
    store: Store,
    options: PushOptions,
    progress: Progress,
    write: RefWrite,
    lost: LostPacks,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Desk]:
    """The desk of one attempt. Before the first pack is put, ``check`` is called, and ``write``
    takes its place in the journal."""
    index = PushIndex(options.index_dir, store.settings.store_id)
    heartbeat = Heartbeat(write.beat)

    @cache
    def prepare() -> None:
        store.ensure_writable()
        check()
        write.begin()
        heartbeat.start()

    dead = _DeadPacks(lost.dead, index, write, prepare)
    kind = DryUploader if options.dry_run else Uploader
    known = lost.dead if options.dry_run else dead
    uploader = kind(store.objects, progress, prepare, lost=lost.packs, dead=known)
    try:
        lost.forget_in(index, store)
        desk = Desk(store, index, uploader, progress, options.workers)
        with closing(desk):
            desk.learn_purges()
            yield desk
    finally:
        heartbeat.stop()
        uploader.close()
        index.close()

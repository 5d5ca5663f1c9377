"""The run of one warm job: measures its selection, and fetches it.

Files are planned some ten thousand at a time, while earlier ones are being fetched. Packs are read
as a whole and in order, in the same flights as those of readers.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt, NoSpace, NotFound, Unavailable, UnknownFormat
from lodefs.chunkstore.format.names import PackId, digest_of
from lodefs.chunkstore.format.tree import Kind
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.layout import PinRow
from lodefs.chunkstore.nodecache.name_rows import content_id
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.eviction_policy import Use
from lodefs.proxy.fetch.cache_fill import Unit
from lodefs.proxy.fetch.cache_write import FetchResult, Refusal
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.fetch.single_flight import Fetcher
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.runtime.backoff import Backoff
from lodefs.proxy.runtime.thread_pools import Pools
from lodefs.proxy.warm.fetch_plan import (
    Order,
    PendingFile,
    PlannedFetch,
    plan_fetches,
    segments_by_pack,
    shuffled,
)
from lodefs.proxy.warm.file_listing import ListedEntry, Listing
from lodefs.proxy.warm.job import AdmissionWindow, Job

FILES_TOGETHER_MAX = 65_536  # planned at once; bounds memory, whatever the size of the dataset
INDEXES_AHEAD = 16
WHAT_BYTES_MAX = 200
SLOW_DISK = "the cache's disk cannot keep up"
UNMATCHED_MAX = 5  # names in an error
SOME_LOST = (Corrupt, NotFound, UnknownFormat)  # the other files may still be fetched


@dataclass(frozen=True, slots=True)
class WarmContext:
    """The state that all warm jobs of a node share. ``order`` is that in which packs are read; by
    default it differs between nodes."""

    cache: Cache
    namespace: Namespace
    fetcher: Fetcher
    indexes: PackIndexes
    pools: Pools
    order: Order = field(default_factory=lambda: shuffled(secrets.token_bytes(16)))

    def room_bytes(self, pin_id: bytes) -> int:
        """Returns how much of one pin, or of data without one, the cache takes: what it keeps when
        it makes room, minus what other pins hold."""
        settings = self.cache.settings
        pinned_bytes = self.cache.pins.pinned_bytes(but=pin_id)
        return int(settings.size_bytes_max * settings.low) - pinned_bytes


@dataclass(slots=True)
class _Tally:
    """The totals of a selection. ``distinct_bytes`` counts shared data once."""

    files: int = 0
    size_bytes: int = 0
    distinct_bytes: int = 0
    _seen: set[int] = field(default_factory=set)

    def add(self, found: Iterable[ListedEntry]) -> None:
        for _, entry in found:
            self.files += 1
            if entry.kind is not Kind.FILE:
                continue
            self.size_bytes += entry.size_bytes
            for segment in entry.segments:
                place = hash(segment[:2])
                if place not in self._seen:
                    self._seen.add(place)
                    self.distinct_bytes += segment.size_bytes


class _Sorted(NamedTuple):
    """Files to fetch; and how many others are complete here (or empty), with their bytes."""

    pending: list[PendingFile]
    files: int
    size_bytes: int


class WarmRun:
    """The run of one job."""

    def __init__(
        self, context: WarmContext, window: AdmissionWindow, job: Job, backoff: Backoff
    ) -> None:
        self._context = context
        self._window = window
        self._job = job
        self._backoff = backoff
        self._pin_id = pin_id_of(job) if job.pinned_until_s is not None else b""
        self.made_pin: bytes | None = None  # a pin that did not exist before this job

    async def run(self) -> None:
        """Fetches everything. The job records what fails. Raises what stops all of it: NotFound if
        nothing matches; NoSpace, Denied, Unavailable."""
        job = self._job
        size_bytes = await self._measure()
        await self._put_pin(size_bytes, is_complete=False)
        job.state = "fetching"
        try:
            async with asyncio.TaskGroup() as group, aclosing(self._batches()) as batches:
                async for batch in batches:
                    await self._fetch_all(batch, group)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if not job.errors_total:
            await self._put_pin(job.bytes_total or 0, is_complete=True)

    # --- totals

    async def _measure(self) -> int:
        """Sets the job's totals, and returns the bytes. It reads as few directories as possible
        from the store: none before the first fetch, if a whole snapshot is wanted and fits."""
        job, snapshot = self._job, self._job.snapshot
        room = await self._context.pools.disk.run(self._context.room_bytes, self._pin_id)
        tally = _Tally(snapshot.files, snapshot.size_bytes, snapshot.size_bytes)
        if not job.selection.is_everything or tally.size_bytes > room:
            tally = await self._count()
        if tally.distinct_bytes > room:
            raise NoSpace(self._too_much(tally.distinct_bytes, room))
        job.files_total, job.bytes_total = tally.files, tally.size_bytes
        return tally.size_bytes

    async def _count(self) -> _Tally:
        tally = _Tally()
        async with aclosing(self._listing().files()) as groups:
            async for found in groups:
                await self._context.pools.disk.run(tally.add, found)
        missing = self._job.selection.unmatched()
        if missing:
            named = ", ".join(
                one.decode("utf-8", "backslashreplace") for one in missing[:UNMATCHED_MAX]
            )
            more = f" and {len(missing) - UNMATCHED_MAX:,} more" * (len(missing) > UNMATCHED_MAX)
            raise NotFound(f"nothing in {self._name} matches {named}{more}")
        return tally

    def _too_much(self, size_bytes: int, room_bytes: int) -> str:
        limit = self._context.cache.settings.size_bytes_max
        pinned = self._context.cache.pins.pinned_bytes(but=self._pin_id)
        return (
            f"{self._name}: {size_bytes:,} bytes are wanted and the cache has room for "
            f"{max(room_bytes, 0):,} (its limit is {limit:,}, and {pinned:,} are pinned): name "
            "a part of it, remove pins with `lodefs evict`, or raise cache_size_bytes_max"
        )

    @property
    def _name(self) -> str:
        return f"{self._job.snapshot.repo}@{self._job.snapshot.commit[:12]}"

    # --- pins

    async def _put_pin(self, size_bytes: int, *, is_complete: bool) -> None:
        job = self._job
        if job.pinned_until_s is None:
            return
        patterns = job.selection.patterns
        what = b" ".join(patterns[:8])
        if len(patterns) > 8 or len(what) > WHAT_BYTES_MAX:
            what = what[:WHAT_BYTES_MAX] + b" ..."
        row = PinRow(
            job.snapshot.repo,
            job.snapshot.commit,
            await self._context.pools.disk.run(job.directory),
            what,
            job.pinned_until_s,
            size_bytes,
            is_complete,
            {job.request.owner: job.pinned_until_s} if job.request.owner else {},
        )
        put = self._context.pools.disk.run(self._context.cache.pins.put, self._pin_id, row)
        putting = asyncio.ensure_future(put)
        try:
            await asyncio.shield(putting)
        finally:  # even if the job is cancelled: nothing puts the pin after the job's end
            await asyncio.wait([putting])
            if not putting.cancelled() and putting.exception() is None and putting.result():
                self.made_pin = self._pin_id

    def _hold(self, pack_index: PackIndexVersion, unit: Unit) -> bool:
        """Makes the pin hold all that a unit wants. Returns False if some of it is not cached.
        Blocking."""
        ids = pack_index.index.ids
        keys = [
            key
            for one in unit.destinations
            for key in layout.chunk_keys(ids, one.first, one.end - one.first)
        ]
        files: set[CacheFile] = set()
        for place in self._context.cache.find(keys):
            if place is None:
                return False
            files.add(place.file)
        return self._context.cache.pins.hold(self._pin_id, files)

    # --- fetching

    def _listing(self) -> Listing:
        means, job = self._context, self._job
        return Listing(
            means.namespace, means.pools, job.snapshot, job.selection, repeat=self._backoff
        )

    async def _batches(self) -> AsyncGenerator[_Sorted, None]:
        """Yields all files, sorted, some ten thousand at a time; lists the next ones meanwhile."""
        groups = self._grouped()

        async def following() -> list[ListedEntry] | None:
            return await anext(groups, None)

        ahead = asyncio.create_task(following())
        try:
            while (found := await ahead) is not None:
                ahead = asyncio.create_task(following())
                yield await self._context.pools.disk.run(self._sort, found)
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
            await groups.aclose()

    async def _grouped(self) -> AsyncGenerator[list[ListedEntry], None]:
        listing = self._listing()
        batch: list[ListedEntry] = []
        async with aclosing(listing.files()) as groups:
            async for found in groups:
                batch += found
                while len(batch) >= FILES_TOGETHER_MAX:
                    yield batch[:FILES_TOGETHER_MAX]
                    del batch[:FILES_TOGETHER_MAX]
        for path, error in listing.errors:
            self._job.add_error(error, path)
        if batch:
            yield batch

    def _sort(self, found: Sequence[ListedEntry]) -> _Sorted:
        """Blocking."""
        whole = self._whole(found)
        pending: list[PendingFile] = []
        files = size_bytes = 0
        for path, entry in found:
            if entry.segments and path not in whole:
                pending.append(PendingFile(path, entry, entry.size_bytes))
                continue
            files += 1
            size_bytes += entry.size_bytes * (entry.kind is Kind.FILE)
        return _Sorted(pending, files, size_bytes)

    def _whole(self, found: Sequence[ListedEntry]) -> dict[bytes, CacheFile]:
        """Returns large files with a complete flat file, by path; held if the job pins, or none."""
        cache = self._context.cache
        flats: dict[bytes, CacheFile] = {}
        for path, entry in found:
            if entry.kind is Kind.FILE and entry.size_bytes >= layout.FLAT_SIZE_BYTES_MIN:
                flat = cache.complete_flat(content_id(entry))
                if flat is not None:
                    cache.touch(flat, Use.WARMED)
                    flats[path] = flat
        if self._pin_id and not cache.pins.hold(self._pin_id, list(flats.values())):
            return {}  # one was just evicted: the search by chunks finds all of them
        return flats

    async def _fetch_all(self, batch: _Sorted, group: asyncio.TaskGroup) -> None:
        """Starts all fetches of a batch, as the window allows."""
        self._job.add_progress(batch.size_bytes, files=batch.files)
        runs = await self._context.pools.disk.run(segments_by_pack, batch.pending)
        async with aclosing(self._loaded(self._context.order(runs))) as indexes:
            async for pack, pack_index in indexes:
                try:
                    found = await self._context.pools.disk.run(
                        plan_fetches, pack_index.index, runs[pack]
                    )
                except Corrupt as error:
                    self._job.add_error(error, runs[pack][0].what.file.path)
                    continue
                for fetch in found:
                    await self._window.enter(fetch.size_bytes)
                    task = group.create_task(self._fetch_unit(pack_index, fetch))
                    task.add_done_callback(partial(self._left, fetch.size_bytes))

    async def _loaded(
        self, packs: Iterable[PackId]
    ) -> AsyncGenerator[tuple[PackId, PackIndexVersion], None]:
        """Yields packs with their indexes, which are read some packs ahead."""
        ahead: deque[tuple[PackId, asyncio.Task[PackIndexVersion]]] = deque()
        rest = iter(packs)
        try:
            while True:
                while len(ahead) < INDEXES_AHEAD and (pack := next(rest, None)) is not None:
                    ahead.append((pack, asyncio.create_task(self._index(pack))))
                if not ahead:
                    return
                pack, task = ahead[0]
                try:
                    pack_index = await task
                except SOME_LOST as error:
                    self._job.add_error(error)
                else:
                    yield pack, pack_index
                ahead.popleft()
        finally:
            for _, task in ahead:
                task.cancel()
            await asyncio.gather(*(task for _, task in ahead), return_exceptions=True)

    async def _index(self, pack: PackId) -> PackIndexVersion:
        return await self._backoff(lambda: self._context.indexes.get(pack))

    def _left(self, size_bytes: int, _task: asyncio.Task[None]) -> None:
        self._window.leave(size_bytes)

    async def _fetch_unit(self, pack_index: PackIndexVersion, fetch: PlannedFetch) -> None:
        job = self._job
        try:
            fetched_bytes = await self._backoff(lambda: self._fetch(pack_index, fetch))
        except SOME_LOST as error:
            job.add_error(error, fetch.gains[0][0].path)
            return
        size_bytes = files = 0
        for file, came_bytes in fetch.gains:
            file.left_bytes -= came_bytes
            size_bytes += came_bytes
            files += not file.left_bytes
        job.add_progress(size_bytes, fetched_bytes, files=files)

    async def _fetch(self, pack_index: PackIndexVersion, fetch: PlannedFetch) -> int:
        """Fetches a unit into the cache; it is held if the job pins. Returns how many bytes were
        not cached before. Raises: NoSpace if the cache does not keep it; Unavailable, also while
        its disk cannot keep up."""
        unit = fetch.unit
        fetched_bytes = 0
        if self._context.cache.gate.refuses():
            raise Unavailable(f"{self._name}: {SLOW_DISK}")
        for is_last in (False, True):
            flights = self._context.fetcher.bulk(pack_index, unit)
            landed = await asyncio.gather(*[flight.landed() for flight in flights])
            fetched_bytes += sum(result.fetched_bytes for result in landed)
            if any(result.refusal is Refusal.SLOW_DISK for result in landed):
                raise Unavailable(f"{self._name}: {SLOW_DISK}")
            if not _is_kept(unit, landed):
                if is_last:
                    raise NoSpace(
                        f"{self._name}: the cache, or its disk, is full and did not keep the data"
                    )
            elif not self._pin_id or await self._context.pools.disk.run(
                self._hold, pack_index, unit
            ):
                return min(fetched_bytes, fetch.size_bytes)
        raise Unavailable(f"{self._name}: chunks were evicted as soon as they arrived")


def _is_kept(unit: Unit, landed: Iterable[FetchResult]) -> bool:
    refused = (result.memory for result in landed if result.refusal is not None)
    return not any(unit.first <= chunk < unit.end for chunks in refused for chunk in chunks)


def pin_id_of(job: Job) -> bytes:
    """Returns the id of a job's pin: the same for the same files from every client, so that it is
    renewed and counts once."""
    request, snapshot = job.request, job.snapshot
    what = [snapshot.repo, snapshot.commit, sorted(request.paths), sorted(request.globs)]
    return digest_of(json.dumps(what).encode())[: layout.PIN_ID_BYTES]

"""Drops a dataset from the cache: its pins, and the cache files with its chunks.

Like any eviction it removes whole files: rows first, so that nobody finds other bytes, and a reader
that has a file open continues.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import aclosing

from lodefs.chunkstore.errors import Corrupt, InvalidInput, NotFound
from lodefs.chunkstore.format.names import PackId, check_repo, check_revision, split_path
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.protocol.cache_control import (
    EvictRequest,
    EvictView,
    PinView,
    decoded,
    encoded,
)
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.chunkstore.repo.pack_reader import PackIndexVersion
from lodefs.proxy.cache.chunk_cache import Cache
from lodefs.proxy.cache.pins import Pin, PinScope, owners_of
from lodefs.proxy.fetch.pack_indexes import PackIndexes
from lodefs.proxy.read.namespace import Namespace
from lodefs.proxy.runtime.thread_pools import Pools
from lodefs.proxy.warm.file_listing import ListedEntry, Listing
from lodefs.proxy.warm.jobs import Warmer
from lodefs.proxy.warm.path_patterns import Selection

FIND_CHUNKS = 4096  # chunks that are looked up at a time

Runs = dict[PackId, set[tuple[int, int]]]  # first chunk and number of chunks
Wanted = dict[int, int]  # by file number: the bytes of it to remove


class DatasetEviction:
    """Drops datasets from one cache. For use on the event loop."""

    def __init__(
        self,
        cache: Cache,
        namespace: Namespace,
        indexes: PackIndexes,
        pools: Pools,
        warmer: Warmer,
    ) -> None:
        self._cache = cache
        self._namespace = namespace
        self._indexes = indexes
        self._pools = pools
        self._warmer = warmer

    async def evict(self, request: EvictRequest) -> EvictView:
        """Drops what is requested. Raises: InvalidInput; NotFound if there is no such repository or
        revision; Unavailable."""
        path = b"/".join(split_path(decoded(request.path)))
        snapshots = await self._snapshots(request)
        commit = snapshots[0].commit if request.rev is not None else None
        scope = PinScope(request.repo, commit, path)
        if not request.dry_run:
            await self._warmer.cancel_pinning(scope, request.owner)
        pins = await self._pools.disk.run(self._cache.pins.listed)
        named = {
            pin_id: pin
            for pin_id, pin in pins.items()
            if scope.covers(pin.row.repo, pin.row.commit, pin.row.path)
        }
        if request.repo is not None and not (snapshots or named or request.pins_only):
            await self._namespace.require_repo(request.repo)
        owner = request.owner
        going = {
            pin_id: pin
            for pin_id, pin in named.items()
            if owner is None or owners_of(pin.row).keys() == {owner}
        }
        staying = {pin_id: pin for pin_id, pin in pins.items() if pin_id not in going}
        wanted = {} if request.pins_only else await self._wanted(request, snapshots, path)
        if not request.dry_run:
            if owner is None:
                await self._pools.disk.run(self._cache.pins.remove, list(going))
            else:
                await self._pools.disk.run(self._cache.pins.release, list(named), owner)
        return await self._pools.disk.run(
            self._drop, wanted, going, staying, dry_run=request.dry_run
        )

    async def _snapshots(self, request: EvictRequest) -> list[Snapshot]:
        if request.everything == (request.repo is not None):
            raise InvalidInput("name a repository, or everything, and not both")
        if request.everything:
            if request.rev is not None or request.path:
                raise InvalidInput("a request for everything takes no revision and no path")
            return []
        repo = check_repo(request.repo or "")
        if request.rev is not None:
            check_revision(request.rev)
            return [await self._namespace.snapshot(repo, request.rev)]
        return await self._pools.disk.run(self._namespace.known, repo)

    async def _wanted(
        self, request: EvictRequest, snapshots: Iterable[Snapshot], path: bytes
    ) -> Wanted:
        """Returns the files with the data to drop. It asks the store only for lost indexes of
        packs."""
        if request.everything:
            return {file.number: file.present_bytes for file in self._cache.all_files()}
        runs: Runs = defaultdict(set)
        for snapshot in snapshots:
            selection = Selection([path] if path else [])
            listing = Listing(self._namespace, self._pools, snapshot, selection, from_store=False)
            async with aclosing(listing.files()) as groups:
                async for found in groups:
                    await self._pools.disk.run(_add_runs, runs, found)
        wanted: Wanted = defaultdict(int)
        for pack, of_pack in runs.items():
            try:
                pack_index = await self._indexes.get(pack)
            except (Corrupt, NotFound):
                continue  # without an index nobody can find its chunks
            await self._pools.disk.run(self._find, pack_index, of_pack, wanted)
        return wanted

    def _find(
        self, pack_index: PackIndexVersion, runs: Collection[tuple[int, int]], wanted: Wanted
    ) -> None:
        """Blocking."""
        numbers = sorted({n for first, count in runs for n in range(first, first + count)})
        ids = pack_index.index.ids
        keys = [layout.chunk_keys(ids, n, 1)[0] for n in numbers if n < len(pack_index.index)]
        for start in range(0, len(keys), FIND_CHUNKS):
            for place in self._cache.find(keys[start : start + FIND_CHUNKS]):
                if place is not None:
                    wanted[place.file.number] += place.size_bytes

    def _drop(
        self,
        wanted: Wanted,
        going: dict[bytes, Pin],
        staying: dict[bytes, Pin],
        *,
        dry_run: bool,
    ) -> EvictView:
        """Blocking."""
        held = {number for pin in staying.values() for number in pin.numbers}
        files = freed_bytes = wanted_bytes = kept_files = kept_bytes = 0
        for number, size_bytes in wanted.items():
            file = self._cache.file(number)
            if file is None:
                continue
            if number not in held and (dry_run or self._cache.eviction.evict(file)):
                files += 1
                freed_bytes += file.present_bytes
                wanted_bytes += size_bytes
            elif file.is_alive:
                kept_files += 1
                kept_bytes += size_bytes
        holders = {one: pin for one, pin in staying.items() if not pin.numbers.isdisjoint(wanted)}
        return EvictView(
            pins=views(going),
            cache_files=files,
            freed_bytes=freed_bytes,
            wanted_bytes=wanted_bytes,
            kept_cache_files=kept_files,
            kept_bytes=kept_bytes,
            held_by=views(holders),
            dry_run=dry_run,
        )


def views(pins: dict[bytes, Pin]) -> list[PinView]:
    """Returns pins for display, those that end first at the beginning."""
    found = [
        PinView(
            id=pin_id.hex(),
            repo=pin.row.repo,
            commit=pin.row.commit,
            path=encoded(pin.row.path),
            what=encoded(pin.row.what),
            pinned_until_s=pin.row.until_s,
            size_bytes=pin.row.size_bytes,
            cache_files=len(pin.numbers),
            is_complete=pin.row.is_complete,
            owners=sorted(name for name in owners_of(pin.row) if name),
        )
        for pin_id, pin in pins.items()
    ]
    return sorted(found, key=lambda view: (view.pinned_until_s, view.id))


def _add_runs(runs: Runs, found: Iterable[ListedEntry]) -> None:
    """Adds runs. Blocking, since a group may be a directory of a million files."""
    for _, entry in found:
        for segment in entry.segments:
            runs[segment.pack].add((segment.first, segment.count))

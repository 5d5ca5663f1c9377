"""Which pack lies in which composite, now: a log of tables, each put only if absent, the newest
counts.

So all changes come one after the other, and a pack that is in a table is in all later ones, until
a gc run has deleted it for good (docs/decisions/0051). For any thread.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from lodefs.chunkstore.errors import AlreadyExists, Conflict, Corrupt, NotFound, TooLarge
from lodefs.chunkstore.format.composite import (
    COMPOSITES,
    TABLE_PACKS_MAX,
    TABLE_SIZE_BYTES_MAX,
    TABLES,
    TAIL_HEAD_SIZE_BYTES,
    CompositeName,
    CompositePlace,
    CompositeTable,
    composite_size_bytes,
    decode_table,
    decode_tail,
    encode_table,
    encode_tail,
    name_of,
    table_key,
    table_number,
    tail_size_bytes,
)
from lodefs.chunkstore.format.names import PackId
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.types import Buffer

RECENT_S = 60.0
TRIES = 16  # of a change, while others change the table too
# Each table with such a number has a composite without packs, of the same number: composites tell
# about how far the tables went, when all tables are lost.
MARK_EVERY = 256
NO_TABLE = CompositeTable(-1)
# Gives packs that may not be read as they are at those places (they have bytes that were purged
# since), and what they are to be, in parts that fit into memory.
Cleaning = Callable[[Mapping[PackId, CompositePlace]], Iterable[Mapping[PackId, Buffer]]]
_SUPERSEDED_SIZE_BYTES = len(encode_table(CompositeTable(0, is_superseded=True)))


class CompositeTables:
    """The tables of one store, whose own objects these are."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: CompositeTable | None = None
        self._read_at_s = -math.inf  # when that was the newest, by the monotonic clock
        self._reading = threading.RLock()  # guards both; one thread asks for the newest
        self._changing = threading.RLock()  # one thread changes the table

    def find(self, pack_id: PackId) -> CompositePlace | None:
        """Where a pack lies, maybe before it was moved; None if it is in no composite now. Raises:
        Corrupt, UnknownFormat."""
        known = self._known
        if known is not None and (place := known.places.get(pack_id)) is not None:
            return place
        return self.newest().places.get(pack_id)

    def newest(self) -> CompositeTable:
        """The table that counts now, NO_TABLE before the first merge. Raises: Corrupt if it is lost
        or damaged; UnknownFormat."""
        with self._reading:
            return self._newest()

    def recent(self, pack_id: PackId) -> CompositePlace | None:
        """As ``find``, but by a table that was the newest at most RECENT_S ago."""
        with self._reading:
            if time.monotonic() - self._read_at_s > RECENT_S:
                self._newest()
            known = self._known
        return None if known is None else known.places.get(pack_id)

    def _newest(self) -> CompositeTable:
        found = self._known
        is_first = found is None
        number = self._listed() if found is None else found.number + 1
        seen, damage = number - 1, None
        while True:
            key = table_key(number)
            try:
                data = read_whole(self._objects, key, TABLE_SIZE_BYTES_MAX).data
                table = decode_table(data, number, key)
            except NotFound:
                break
            except Corrupt as error:
                seen, damage = number, error
            else:
                seen = number
                found = found if table.is_superseded else table
                if table.is_superseded:  # the newest may be far away
                    number = max(number, self._listed() - 1)
            number += 1
        if found is None:
            found = NO_TABLE
        if is_first and found.number == seen == -1 and next(self._composites(), None) is not None:
            seen, damage = 0, None  # the first table is older than the first composite
        if found.number < seen:
            what = f"the table of composites that follows {table_key(found.number)} "
            raise Corrupt(
                f"{what if found.number >= 0 else 'the table of composites '}is lost or damaged, "
                f"so it is not known where small packs lie: lodefs repair makes it again"
                + (f" ({damage})" if damage else "")
            )
        self._known, self._read_at_s = found, time.monotonic()
        return found

    def admit(self) -> None:
        """Puts the first table, if there is none: from then on a store whose tables are lost is
        told from one without composites. Raises: Corrupt; what the store raises."""
        self._known = None
        if self.newest().number < 0:
            key, first = table_key(0), encode_table(CompositeTable(0))
            with suppress(AlreadyExists):
                self._objects.put(key, [first], if_absent=True)

    def put_packs(
        self,
        packs: Mapping[PackId, Buffer],
        seen: Mapping[PackId, CompositePlace] | None = None,
        still: Callable[[], bool] = lambda: True,
    ) -> set[PackId]:
        """Puts packs (their whole objects) into one composite, and gives those that were put.

        ``seen``: where they were when they were read (not in it: in no composite); one that was
        moved since stays where it is. ``still``: asked after the table was read, each time; if it
        says no, nothing is done. Composites in which no table's pack is left are deleted. Raises:
        Conflict if others change the table all the time; TooLarge if it is full; Corrupt in a store
        that does not admit composites; what the store raises.
        """
        tried: dict[CompositeName, set[PackId]] = {}
        with self._changing:
            for _ in range(TRIES):
                now = self.newest()
                if (done := self._came_through(tried, now)) is not None:
                    return done
                if now.number < 0:
                    raise Corrupt(f"{self._objects.url} has no table of composites: lodefs repair")
                some = {
                    pack: data
                    for pack, data in packs.items()
                    if seen is None or now.places.get(pack) == seen.get(pack)
                }
                if not some or not still():
                    return set()
                self._check_room(len(now.places.keys() | some.keys()))
                name, places = self._put_composite(now.number + 1, some)
                after = replace(now, number=name.number, places={**now.places, **places})
                if self._append(after, now):
                    return set(some)
                tried[name] = set(some)
            if (done := self._came_through(tried, self.newest())) is not None:
                return done
        raise self._conflict()

    def _came_through(
        self, tried: dict[CompositeName, set[PackId]], now: CompositeTable
    ) -> set[PackId] | None:
        """The packs of the try whose table was put all the same, if the answer to a first request
        was lost. Composites that no table will name are deleted, and forgotten."""
        if found := tried.keys() & now.composites:
            return tried[found.pop()]
        # One with a higher number may be in a table that was not to be seen yet: a sweep deletes it
        for name in [name for name in tried if name.number <= now.number]:
            self._objects.delete(name.key)
            del tried[name]
        return None

    def remove(self, packs: Collection[PackId]) -> None:
        """Forgets packs that a gc run has deleted for good, and so nobody names."""
        dead = set(packs)
        self._change(lambda now: dead.isdisjoint(now.places), dead)

    def sweep(self) -> dict[PackId, CompositePlace]:
        """Deletes what no table names any more or will name: composites from which all was moved,
        and those that somebody made whose table another one was faster to put. Empties old tables.

        Gives what a repair may have overlooked: where packs lie in composites that stay, of which
        the table knows nothing, or an older place. Who puts them again is rid of these composites
        by the next sweep.
        """
        tables = [(table_number(i.key), i.size_bytes) for i in self._objects.list(TABLES)]
        names = sorted(self._composites())
        if names:
            self._known = None  # without any table, composites say that it is lost
        now = self.newest()
        if any(name.number > now.number for name in names):
            self.fence()
            now = self.newest()
        named = now.composites
        overlooked: dict[PackId, CompositePlace] = {}
        for name in names:
            # Who made one with a higher number knew tables that are lost: no merge is at it.
            if name in named or (name.number > now.number and not now.is_restored):
                continue
            # A restored table may lack a composite whose list of packs is damaged: it stays.
            if (tail := self._tail(name)) is not None:
                lost = _newer(tail, now) if now.is_restored else {}
                overlooked.update(lost)
                is_mark = not tail and now.number - name.number < MARK_EVERY
                if not lost and name.number <= now.number and not is_mark:
                    self._objects.delete(name.key)
        for number, size_bytes in tables:
            if 0 <= number < now.number and size_bytes > _SUPERSEDED_SIZE_BYTES:
                self._supersede(number)
        return overlooked

    def fence(self) -> None:
        """Puts the table that is there once more, if there is one: a merge that has not put its own
        until now tries again, and asks again whether it still may."""
        if self.newest().number >= 0:
            self._change(lambda _: False, ())

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """What is lost or damaged: the table, and composites that are not there as a whole. Of each
        its key, what is wrong, and what puts it back. Raises: what the store does."""
        if what := self.restore(dry_run=True):
            yield TABLES, what, "`lodefs repair` makes them again, from the composites"
        table, ends = self.newest(), dict[CompositeName, int]()
        for name, offset, size_bytes in table.places.values():
            ends[name] = max(ends.get(name, 0), offset + size_bytes)
        sizes = self.sizes_bytes()
        remedy = "`lodefs repair --from SOURCE` puts its packs back"
        for name, end in sorted(ends.items()):
            try:
                found = sizes[name] if name in sizes else self._objects.head(name.key).size_bytes
            except NotFound:
                if self.newest() == table:  # else it was moved meanwhile
                    yield name.key, "lost, and packs that are in use lie in it", remedy
                continue
            if found <= end:
                yield name.key, f"cut off: it has {found} bytes, and packs up to {end}", remedy

    def unused_bytes(self) -> dict[CompositeName, int]:
        """How many bytes of the newest table's composites count no more, if there are any; -1 for
        a composite that a list lacks."""
        return unused_of(self.newest(), self.sizes_bytes())

    def dead_places(
        self, composites: Iterable[CompositeName]
    ) -> dict[CompositeName, dict[PackId, CompositePlace]]:
        """What lies in composites and counts no more: packs that were written again elsewhere, or
        have been deleted. Of a composite whose list of packs is lost: nothing, and so {}."""
        places = self.newest().places
        return {
            name: {
                at: place
                for at, place in (self._tail(name) or {}).items()
                if places.get(at) != place
            }
            for name in sorted(composites)
        }

    def sizes_bytes(self) -> dict[CompositeName, int]:
        """Of the composites that a list shows."""
        listed = ((name_of(i.key), i.size_bytes) for i in self._objects.list(COMPOSITES))
        return {name: size_bytes for name, size_bytes in listed if name is not None}

    def restore(self, *, dry_run: bool = False, cleaning: Cleaning = lambda _: ()) -> str:
        """Makes the newest table again from the composites that a list shows, if it is lost or
        damaged, and fills the gaps before it. A pack is where it was put last, but as ``cleaning``
        wants it. What was wrong; "" if nothing was."""
        listed = {table_number(i.key) for i in self._objects.list(TABLES)}
        last = max(listed, default=-1)
        gaps = sorted(set(range(last)) - listed)
        for number in gaps if not dry_run else ():
            self._supersede(number)
        self._known = None
        problem = f"{len(gaps)} older tables are lost" if gaps else ""
        try:
            self.newest()
            return problem
        except Corrupt as error:
            problem = str(error)
        if dry_run:  # who reads through this goes by it
            self._known = CompositeTable(last + 1, dict(self.listed_places()))
            return problem
        # One that is damaged may have any number up to the one after the last that is listed. What
        # is yet to come has higher numbers than all composites, so that it is newer, and than all
        # tables that were lost: who knows one of those meets an emptied one after it, and so learns
        # of what is put here.
        first = max(last, *(name.number for name in self._composites()), -1) + 1 + 2 * MARK_EVERY
        for number in range(last + 1, first + TRIES):
            if self._restore_as(number, cleaning if number >= first else None):
                return problem
        raise self._conflict()

    def _restore_as(self, number: int, cleaning: Cleaning | None) -> bool:
        """Whether there is a table now: puts that of a number, without ``cleaning`` an emptied
        one. Looks for packs anew: a merge that knows the lost table may have moved some, and put
        the next."""
        table = CompositeTable(number, is_superseded=True)
        if cleaning is not None:
            places = dict(self.listed_places())
            for packs in cleaning(places):
                places.update(self._put_composite(number, packs)[1])
            table = CompositeTable(number, places, is_restored=True)
            self._put_composite(number, {})
        try:
            key = table_key(number)
            self._objects.put(key, [encode_table(table)], if_absent=True)
        except AlreadyExists:
            with suppress(Corrupt):
                self.newest()
                return True
            return False
        return cleaning is not None

    def listed_places(self) -> Iterator[tuple[PackId, CompositePlace]]:
        """Where packs lie by all composites that a list shows, the older places first. No table is
        read."""
        for name in sorted(self._composites()):
            yield from (self._tail(name) or {}).items()

    def _composites(self) -> Iterator[CompositeName]:
        names = (name_of(info.key) for info in self._objects.list(COMPOSITES))
        return (name for name in names if name is not None)

    def _tail(self, name: CompositeName) -> Mapping[PackId, CompositePlace] | None:
        """The packs of a composite; None if its list cannot be read, not even the second time."""
        key = name.key
        for _ in range(2):
            try:
                head = self._objects.get(
                    key, offset=-TAIL_HEAD_SIZE_BYTES, size=TAIL_HEAD_SIZE_BYTES
                )
                tail_bytes = tail_size_bytes(head.data, key)
                tail = self._objects.get(key, offset=-tail_bytes, size=tail_bytes)
                return decode_tail(tail.data, name, key)
            except NotFound:
                break
            except Corrupt:  # on the way, maybe
                continue
        return None  # its packs are lost, which who repairs these finds out

    def _listed(self) -> int:
        """Where to begin to ask: a list may lack the newest."""
        first = next(iter(self._objects.list(TABLES, limit=1)), None)
        return 0 if first is None else max(0, table_number(first.key))

    def _put_composite(
        self, number: int, packs: Mapping[PackId, Buffer]
    ) -> tuple[CompositeName, dict[PackId, CompositePlace]]:
        name = CompositeName(number, os.urandom(8).hex())
        places: dict[PackId, CompositePlace] = {}
        offset = 0
        for pack, data in packs.items():
            places[pack] = CompositePlace(name, offset, len(data))
            offset += len(data)
        tail = encode_tail(name, [*places.items()])
        self._objects.put(name.key, [*packs.values(), tail])
        return name, places

    def _change(
        self, is_done: Callable[[CompositeTable], bool], without: Collection[PackId]
    ) -> None:
        with self._changing:
            for _ in range(TRIES):
                now = self.newest()
                if is_done(now):
                    return
                places = {pack: at for pack, at in now.places.items() if pack not in without}
                if self._append(replace(now, number=now.number + 1, places=places), now):
                    return
        raise self._conflict()

    def _append(self, table: CompositeTable, before: CompositeTable) -> bool:
        """Whether this table is now the newest. Then what it makes superfluous is deleted."""
        key = table_key(table.number)
        if table.number % MARK_EVERY == 0:
            self._put_composite(table.number, {})
        try:
            self._objects.put(key, [encode_table(table)], if_absent=True)
        except AlreadyExists:
            return False
        with self._reading:
            if self._known is None or self._known.number < table.number:
                self._known = table
        if before.number >= 0:
            self._supersede(before.number)
        for name in sorted(before.composites - table.composites):
            self._objects.delete(name.key)
        return True

    def _check_room(self, packs: int) -> None:
        if packs > TABLE_PACKS_MAX:
            raise TooLarge(
                f"{self._objects.url} would have {packs} packs in composites, and no table takes "
                f"more than {TABLE_PACKS_MAX}"
            )

    def _supersede(self, number: int) -> None:
        data = encode_table(CompositeTable(number, is_superseded=True))
        self._objects.put(table_key(number), [data])

    def _conflict(self) -> Conflict:
        return Conflict(
            f"others change the table of composites of {self._objects.url} all the time: try again"
        )


def _newer(
    tail: Mapping[PackId, CompositePlace], now: CompositeTable
) -> dict[PackId, CompositePlace]:
    """Packs of a composite that a table does not have, or where they were before."""

    def is_newer(pack: PackId, at: CompositePlace) -> bool:
        place = now.places.get(pack)
        return place is None or place.composite.number < at.composite.number <= now.number

    return {pack: at for pack, at in tail.items() if is_newer(pack, at)}


def unused_of(
    table: CompositeTable, sizes_bytes: Mapping[CompositeName, int]
) -> dict[CompositeName, int]:
    """As of CompositeTables.unused_bytes, for composites of those sizes."""
    live: dict[CompositeName, list[int]] = {}
    for place in table.places.values():
        live.setdefault(place.composite, []).append(place.size_bytes)
    used = {name: composite_size_bytes(own) for name, own in live.items()}
    return {
        name: sizes_bytes[name] - used_bytes if name in sizes_bytes else -1
        for name, used_bytes in used.items()
        if sizes_bytes.get(name) != used_bytes
    }

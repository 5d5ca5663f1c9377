"""The composite that each pack lies in: a log of put-if-absent tables, of which the newest counts.

So all changes are ordered, and a pack that is in one table is in all later ones, until a gc run has
deleted it for good (docs/decisions/0051). For any thread.
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
TRIES = 16  # for a change, while others change the table, too
# Each table with such a number has an empty composite with the same number. If all tables are lost,
# these composites show roughly how many there were.
MARK_EVERY = 256
NO_TABLE = CompositeTable(-1)
# Takes packs that must not be read from these places, since they have bytes that were purged later.
# Returns their new objects, in parts that fit into memory.
Cleaning = Callable[[Mapping[PackId, CompositePlace]], Iterable[Mapping[PackId, Buffer]]]
_SUPERSEDED_SIZE_BYTES = len(encode_table(CompositeTable(0, is_superseded=True)))


class CompositeTables:
    """The tables of one store, which lie beside its other objects."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: CompositeTable | None = None
        self._read_at_s = -math.inf  # monotonic time when that was the newest
        self._reading = threading.RLock()  # guards both; one thread at a time reads the newest
        self._changing = threading.RLock()  # one thread at a time changes the table

    def find(self, pack_id: PackId) -> CompositePlace | None:
        """Returns where a pack lies, or lay before it was moved; None if it is in no composite now.
        Raises: Corrupt, UnknownFormat."""
        known = self._known
        if known is not None and (place := known.places.get(pack_id)) is not None:
            return place
        return self.newest().places.get(pack_id)

    def newest(self) -> CompositeTable:
        """Returns the current table; NO_TABLE before the first merge. Raises: Corrupt if it is lost
        or damaged; UnknownFormat."""
        with self._reading:
            return self._newest()

    def recent(self, pack_id: PackId) -> CompositePlace | None:
        """Does what ``find`` does with a table that was the newest at most RECENT_S ago."""
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
                if table.is_superseded:  # the newest may be many numbers later
                    number = max(number, self._listed() - 1)
            number += 1
        if found is None:
            found = NO_TABLE
        if is_first and found.number == seen == -1 and next(self._composites(), None) is not None:
            seen, damage = 0, None  # the first table is older than the first composite
        if found.number < seen:
            what = f"the table of composites that follows {table_key(found.number)} "
            raise Corrupt(
                f"{what if found.number >= 0 else 'the table of composites '}is lost or damaged: "
                f"lodefs does not know where small packs lie, and lodefs repair rebuilds it"
                + (f" ({damage})" if damage else "")
            )
        self._known, self._read_at_s = found, time.monotonic()
        return found

    def admit(self) -> None:
        """Puts the first table, if there is none. From then on, a store whose tables are lost
        differs from a store without composites. Raises: Corrupt; what the store raises."""
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
        """Puts packs (their whole objects) into one composite. Returns those that were put.

        ``seen`` says where they were when they were read; one that is missing there was in no
        composite. A pack that was moved since stays where it is. ``still`` is called each time
        after the table was read; if it returns False, nothing is done. Composites whose packs are
        in no table are deleted. Raises: Conflict if others keep changing the table; TooLarge if it
        is full; Corrupt in a store that does not admit composites; what the store raises.
        """
        tried: dict[CompositeName, set[PackId]] = {}
        with self._changing:
            for _ in range(TRIES):
                now = self.newest()
                if (done := self._came_through(tried, now)) is not None:
                    return done
                if now.number < 0:
                    raise Corrupt(f"{self._objects.url} has no composite table: run lodefs repair")
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
        """Returns the packs of an earlier try whose table was put although the answer was lost.
        Deletes and forgets composites that no table will name."""
        if found := tried.keys() & now.composites:
            return tried[found.pop()]
        # A table that was not visible yet may have one with a higher number: a sweep deletes that
        for name in [name for name in tried if name.number <= now.number]:
            self._objects.delete(name.key)
            del tried[name]
        return None

    def remove(self, packs: Collection[PackId]) -> None:
        """Removes packs that a gc run has deleted for good, and that nobody names."""
        dead = set(packs)
        self._change(lambda now: dead.isdisjoint(now.places), dead)

    def sweep(self) -> dict[PackId, CompositePlace]:
        """Deletes composites that no table names or will name: those from which all was moved, and
        those whose table another writer was faster to put. Empties old tables.

        Returns the packs that a repair may have overlooked, with their places: packs in remaining
        composites that the table does not have, or has at an older place. Once they are put again,
        the next sweep deletes these composites.
        """
        tables = [(table_number(i.key), i.size_bytes) for i in self._objects.list(TABLES)]
        names = sorted(self._composites())
        if names:
            self._known = None  # if there is no table, the composites show that it is lost
        now = self.newest()
        if any(name.number > now.number for name in names):
            self.fence()
            now = self.newest()
        named = now.composites
        overlooked: dict[PackId, CompositePlace] = {}
        for name in names:
            # A table with a higher number came from tables that are lost: no merge uses it.
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
        """Puts the current table once more, if there is one. A merge that has not put its table yet
        then tries again, and asks again whether it still may."""
        if self.newest().number >= 0:
            self._change(lambda _: False, ())

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """Yields key, problem and remedy of what is lost or damaged: the table, and composites that
        are missing or truncated. Raises: what the store raises."""
        if what := self.restore(dry_run=True):
            yield TABLES, what, "`lodefs repair` rebuilds them from the composites"
        table, ends = self.newest(), dict[CompositeName, int]()
        for name, offset, size_bytes in table.places.values():
            ends[name] = max(ends.get(name, 0), offset + size_bytes)
        sizes = self.sizes_bytes()
        remedy = "`lodefs repair --from SOURCE` restores its packs"
        for name, end in sorted(ends.items()):
            try:
                found = sizes[name] if name in sizes else self._objects.head(name.key).size_bytes
            except NotFound:
                if self.newest() == table:  # otherwise it was moved meanwhile
                    yield name.key, "lost, with packs that are in use", remedy
                continue
            if found <= end:
                yield name.key, f"truncated: it has {found} bytes, and packs up to {end}", remedy

    def unused_bytes(self) -> dict[CompositeName, int]:
        """Returns the unused bytes of the newest table's composites, if there are any; -1 for a
        composite that a list lacks."""
        return unused_of(self.newest(), self.sizes_bytes())

    def dead_places(
        self, composites: Iterable[CompositeName]
    ) -> dict[CompositeName, dict[PackId, CompositePlace]]:
        """Returns the places in composites that are unused: their packs were rewritten elsewhere or
        deleted. A composite whose list of packs is lost gets {}."""
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
        """Returns the sizes of the composites that a list shows."""
        listed = ((name_of(i.key), i.size_bytes) for i in self._objects.list(COMPOSITES))
        return {name: size_bytes for name, size_bytes in listed if name is not None}

    def restore(self, *, dry_run: bool = False, cleaning: Cleaning = lambda _: ()) -> str:
        """Rebuilds the newest table from the composites that a list shows, if it is lost or
        damaged, and fills the gaps before it. A pack is where it was put last, unless ``cleaning``
        changes that. Returns what was wrong, or ""."""
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
        if dry_run:  # readers of this object then use the new table
            self._known = CompositeTable(last + 1, dict(self.listed_places()))
            return problem
        # A damaged table may have any number up to the one after the last listed one. The new
        # number is higher than those of all composites, so that future tables are newer. It is also
        # higher than those of all lost tables: a reader of one of those meets an emptied one after
        # it, and so finds the table that is put here.
        first = max(last, *(name.number for name in self._composites()), -1) + 1 + 2 * MARK_EVERY
        for number in range(last + 1, first + TRIES):
            if self._restore_as(number, cleaning if number >= first else None):
                return problem
        raise self._conflict()

    def _restore_as(self, number: int, cleaning: Cleaning | None) -> bool:
        """Puts the table with a number, without ``cleaning`` an emptied one. Returns whether it
        exists now. It looks for packs again, since a merge that knows the lost table may have moved
        some and put the next one."""
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
        """Yields the places of packs in all composites that a list shows, older places first. It
        reads no table."""
        for name in sorted(self._composites()):
            yield from (self._tail(name) or {}).items()

    def _composites(self) -> Iterator[CompositeName]:
        names = (name_of(info.key) for info in self._objects.list(COMPOSITES))
        return (name for name in names if name is not None)

    def _tail(self, name: CompositeName) -> Mapping[PackId, CompositePlace] | None:
        """Returns the packs of a composite; None if its list cannot be read, even the second
        time."""
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
            except Corrupt:  # perhaps damaged in transport
                continue
        return None  # its packs are lost; `lodefs repair` handles those

    def _listed(self) -> int:
        """Returns the number to start from: a list may lack the newest table."""
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
        """Puts a table. Returns whether it is now the newest; then it deletes what that
        replaces."""
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
                f"{self._objects.url} would have {packs} packs in composites; a table takes at "
                f"most {TABLE_PACKS_MAX}"
            )

    def _supersede(self, number: int) -> None:
        data = encode_table(CompositeTable(number, is_superseded=True))
        self._objects.put(table_key(number), [data])

    def _conflict(self) -> Conflict:
        return Conflict(
            f"other writers keep changing the table of composites of {self._objects.url}: try again"
        )


def _newer(
    tail: Mapping[PackId, CompositePlace], now: CompositeTable
) -> dict[PackId, CompositePlace]:
    """Returns the packs of a composite that a table lacks, or has at an older place."""

    def is_newer(pack: PackId, at: CompositePlace) -> bool:
        place = now.places.get(pack)
        return place is None or place.composite.number < at.composite.number <= now.number

    return {pack: at for pack, at in tail.items() if is_newer(pack, at)}


def unused_of(
    table: CompositeTable, sizes_bytes: Mapping[CompositeName, int]
) -> dict[CompositeName, int]:
    """Returns CompositeTables.unused_bytes for composites with those sizes."""
    live: dict[CompositeName, list[int]] = {}
    for place in table.places.values():
        live.setdefault(place.composite, []).append(place.size_bytes)
    used = {name: composite_size_bytes(own) for name, own in live.items()}
    return {
        name: sizes_bytes[name] - used_bytes if name in sizes_bytes else -1
        for name, used_bytes in used.items()
        if sizes_bytes.get(name) != used_bytes
    }

"""Which pack lies in which crate, now: a log of tables, each put only if absent, the newest counts.

So all changes come one after the other, and a pack that is in a table is in all later ones, until
a collection has deleted it for good (docs/decisions/0051). For any thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress

from lodefs.chunkstore.errors import AlreadyExists, Conflict, Corrupt, NotFound, TooLarge
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import CrateName, PackId
from lodefs.chunkstore.objects.crates.layout import (
    TABLE_PACKS_MAX,
    TABLE_SIZE_BYTES_MAX,
    TAIL_HEAD_SIZE_BYTES,
    CratePlace,
    CrateTable,
    decode_table,
    decode_tail,
    encode_table,
    encode_tail,
    tail_size_bytes,
)
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.types import Buffer

TRIES = 16  # of a change, while others change the table too
NO_TABLE = CrateTable(-1)
_SUPERSEDED_SIZE_BYTES = len(encode_table(CrateTable(0, is_superseded=True)))


class CrateTables:
    """The tables of one store, whose own objects these are."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._known: CrateTable | None = None

    def find(self, pack_id: PackId) -> CratePlace | None:
        """Where a pack lies, maybe before it was moved; None if it is in no crate now. Raises:
        Corrupt, UnknownFormat."""
        known = self._known
        if known is not None and (place := known.places.get(pack_id)) is not None:
            return place
        return self.newest().places.get(pack_id)

    def newest(self) -> CrateTable:
        """The table that counts now, without any NO_TABLE. Raises: Corrupt if it is lost or
        damaged; UnknownFormat."""
        found = self._known
        number = self._listed() if found is None else found.number + 1
        seen, damage = number - 1, None
        while True:
            key = keys.crate_table(number)
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
            number += 1
        if found is None:
            found = NO_TABLE
        if found.number < seen:
            what = f"the table of crates that follows {keys.crate_table(found.number)} "
            raise Corrupt(
                f"{what if found.number >= 0 else 'the table of crates '}is lost or damaged, so it "
                f"is not known where small packs lie: lodefs repair makes it again ({damage})"
            )
        if found.number >= 0:
            self._known = found
        return found

    def put_packs(
        self,
        packs: Mapping[PackId, Buffer],
        seen: Mapping[PackId, CratePlace] | None = None,
        *,
        emptying: bool = False,
    ) -> CrateTable:
        """Puts packs (their whole objects) into one crate, and gives the table that names it.

        ``seen``: where they were when they were read (not in it: in no crate); one that was moved
        since stays where it is. ``emptying``: the crates where they are now go at once, and what
        else is in them moves too. Raises: Conflict if others change the table all the time;
        TooLarge if it is full; what the store raises.
        """
        for _ in range(TRIES):
            now = self.newest()
            some = {
                pack: data
                for pack, data in packs.items()
                if seen is None or now.places.get(pack) == seen.get(pack)
            }
            if emptying:
                some = {**self._neighbours(now, some), **some}
            if not some:
                return now
            name, places = self._put_crate(now.number + 1, some)
            after = CrateTable(name.number, {**now.places, **places})
            if self._append(after, now):
                return after
        raise self._conflict()

    def remove(self, packs: Collection[PackId]) -> None:
        """Forgets packs that a collection has deleted for good, and so nobody names."""
        dead = set(packs)
        self._change(lambda now: dead.isdisjoint(now.places), dead)

    def sweep(self) -> None:
        """Deletes what no table names any more or will name: crates from which all was moved, and
        those that somebody made whose table another one was faster to put. Empties old tables."""
        tables = [
            (keys.crate_table_number(info.key), info.size_bytes)
            for info in self._objects.list(keys.CRATE_TABLES)
        ]
        listed = [keys.crate_of(info.key) for info in self._objects.list(keys.CRATES)]
        names = [name for name in listed if name is not None]
        now = self.newest()
        if now.number < 0 and not all(map(self._is_double, names)):
            self.restore()  # the only table is lost
            return
        if any(name.number > now.number for name in names):  # who makes it now tries again
            self._change(lambda _: False, ())
            now = self.newest()
        named = {place.crate for place in now.places.values()}
        for name in names:
            if name.number <= now.number and name not in named:
                self._objects.delete(keys.crate(name))
        for number, size_bytes in tables:
            if 0 <= number < now.number and size_bytes > _SUPERSEDED_SIZE_BYTES:
                self._supersede(number)

    def restore(self, *, dry_run: bool = False) -> str:
        """Makes the newest table again from the crates, if it is lost or damaged, and fills the
        gaps before it. What was wrong; "" if nothing was."""
        listed = {keys.crate_table_number(i.key) for i in self._objects.list(keys.CRATE_TABLES)}
        last = max(listed, default=-1)
        gaps = sorted(set(range(last)) - listed)
        for number in gaps if not dry_run else ():
            self._supersede(number)
        self._known = None
        problem = f"{len(gaps)} older tables are lost" if gaps else ""
        try:
            if self.newest().number >= 0 or next(self._crates(), None) is None:
                return problem
            problem = "lost"
        except Corrupt as error:
            problem = str(error)
        places: dict[PackId, CratePlace] = {}
        for name in sorted(self._crates()):
            places.update(self._tail(name))
        if dry_run:  # who reads through this goes by it
            self._known = CrateTable(last + 1, places)
            return problem
        # One that is damaged may have any number up to the one after the last that is listed.
        for number in range(last + 1, last + TRIES):
            table = CrateTable(number, places)
            with suppress(AlreadyExists):
                key = keys.crate_table(number)
                self._objects.put(key, [encode_table(table)], if_absent=True)
                return problem
        raise self._conflict()

    def _crates(self) -> Iterator[CrateName]:
        for info in self._objects.list(keys.CRATES):
            if (name := keys.crate_of(info.key)) is not None:
                yield name

    def _tail(self, name: CrateName) -> Mapping[PackId, CratePlace]:
        key = keys.crate(name)
        try:
            head = self._objects.get(key, offset=-TAIL_HEAD_SIZE_BYTES, size=TAIL_HEAD_SIZE_BYTES)
            size_bytes = tail_size_bytes(head.data, key)
            tail = self._objects.get(key, offset=-size_bytes, size=size_bytes)
            return decode_tail(tail.data, name, key)
        except (NotFound, Corrupt):  # its packs are lost, which who repairs these finds out
            return {}

    def _is_double(self, name: CrateName) -> bool:
        """Whether all packs of a crate have objects of their own."""
        try:
            for pack in self._tail(name):
                self._objects.head(keys.pack(pack))
        except NotFound:
            return False
        return True

    def _listed(self) -> int:
        """Where to begin to ask: a list may lack the newest."""
        first = next(iter(self._objects.list(keys.CRATE_TABLES, limit=1)), None)
        return 0 if first is None else max(0, keys.crate_table_number(first.key))

    def _put_crate(
        self, number: int, packs: Mapping[PackId, Buffer]
    ) -> tuple[CrateName, dict[PackId, CratePlace]]:
        name = CrateName(number, os.urandom(8).hex())
        places: dict[PackId, CratePlace] = {}
        offset = 0
        for pack, data in packs.items():
            places[pack] = CratePlace(name, offset, len(data))
            offset += len(data)
        tail = encode_tail(name, [*places.items()])
        self._objects.put(keys.crate(name), [*packs.values(), tail])
        return name, places

    def _neighbours(self, now: CrateTable, packs: Collection[PackId]) -> dict[PackId, Buffer]:
        """What else lies in the crates of packs, as it is."""
        crates = {now.places[pack].crate for pack in packs if pack in now.places}
        found: dict[PackId, Buffer] = {}
        for pack, place in now.places.items():
            if place.crate in crates and pack not in packs:
                key = keys.crate(place.crate)
                try:
                    part = self._objects.get(key, offset=place.offset, size=place.size_bytes)
                except NotFound:  # it is lost, for who repairs it
                    continue
                found[pack] = part.data
        return found

    def _change(self, is_done: Callable[[CrateTable], bool], without: Collection[PackId]) -> None:
        for _ in range(TRIES):
            now = self.newest()
            if is_done(now):
                return
            places = {pack: at for pack, at in now.places.items() if pack not in without}
            if self._append(CrateTable(now.number + 1, places), now):
                return
        raise self._conflict()

    def _append(self, table: CrateTable, before: CrateTable) -> bool:
        """Whether this table is now the newest. Then what it makes superfluous is deleted."""
        if len(table.places) > TABLE_PACKS_MAX:
            raise TooLarge(
                f"{self._objects.url} would have {len(table.places)} packs in crates, and no table "
                f"takes more than {TABLE_PACKS_MAX}: nothing was merged"
            )
        key = keys.crate_table(table.number)
        try:
            self._objects.put(key, [encode_table(table)], if_absent=True)
        except AlreadyExists:
            return False
        self._known = table
        if before.number >= 0:
            self._supersede(before.number)
        left = {place.crate for place in table.places.values()}
        for name in sorted({place.crate for place in before.places.values()} - left):
            self._objects.delete(keys.crate(name))
        return True

    def _supersede(self, number: int) -> None:
        data = encode_table(CrateTable(number, is_superseded=True))
        self._objects.put(keys.crate_table(number), [data])

    def _conflict(self) -> Conflict:
        return Conflict(
            f"others change the table of crates of {self._objects.url} all the time: try again"
        )

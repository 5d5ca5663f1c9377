"""Pins: parts of snapshots that are not evicted for some time, and the cache files that hold them.

Pins hold whole files of the cache, since eviction removes whole files. A pin's rows outlive the
process. A damaged file is removed even if it is pinned. A pin may have several owners: it holds
until the last of them releases it, or until its time is over.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache import layout as layout
from lodefs.chunkstore.nodecache.kv import Row
from lodefs.chunkstore.nodecache.layout import PinRow
from lodefs.proxy.cache.cache_file import CacheFile
from lodefs.proxy.cache.tables import CacheTables
from lodefs.proxy.metrics.counters import Counter

log = logging.getLogger("lodefs.cache")

ROWS_MAX = 4096  # in one write


@dataclass(slots=True)
class Pin:
    """A pin, and the numbers of the cache files that it holds."""

    row: PinRow
    numbers: set[int] = field(default_factory=set)


class PinScope(NamedTuple):
    """A scope of pins: those at or below a path of a repository, in one commit or, if ``commit`` is
    None, in all; those of all repositories if ``repo`` is None."""

    repo: str | None
    commit: str | None
    path: bytes

    def covers(self, repo: str, commit: str, path: bytes) -> bool:
        """Whether the scope contains everything that a pin of this path holds."""
        if self.repo is None:
            return True
        if repo != self.repo or self.commit not in (None, commit):
            return False
        return not self.path or path == self.path or path.startswith(self.path + b"/")


class Pins:
    """The pins of one cache, and until when they hold its files. Blocking, for any thread. Writes
    raise: NoSpace, Unavailable."""

    def __init__(self, cache: CacheTables) -> None:
        self._cache = cache
        self._lock = threading.Lock()  # guards the fields below; taken before the cache's
        self._pins: dict[bytes, Pin] = {}
        self._was_full = False
        self._load()

    def _load(self) -> None:
        kv = self._cache.kv
        for key, value in kv.scan(layout.PINS):
            try:
                self._pins[key[1:]] = Pin(layout.decode_pin_row(value))
            except LodefsError as error:
                log.warning("dropped a pin: %s", error)
                kv.write([(key, None)])
        for key, _ in kv.scan(layout.HELD):
            pin_id, number = layout.held_of_key(key)
            pin = self._pins.get(pin_id)
            if pin is not None and number in self._cache.files:
                pin.numbers.add(number)
        self._update_deadlines()

    # --- queries

    def listed(self) -> dict[bytes, Pin]:
        """Returns the pins that still hold, by id."""
        files, now_s = self._cache.files, self._cache.now_s()
        with self._lock:
            return {
                pin_id: Pin(pin.row, {number for number in pin.numbers if number in files})
                for pin_id, pin in self._pins.items()
                if pin.row.until_s > now_s
            }

    def pinned_bytes(self, *, but: bytes = b"") -> int:
        """Returns the bytes of the files that pins other than ``but`` hold."""
        files, now_s = self._cache.files, self._cache.now_s()
        with self._lock:
            numbers = {
                number
                for pin_id, pin in self._pins.items()
                if pin_id != but and pin.row.until_s > now_s
                for number in pin.numbers
            }
        found = (files.get(number) for number in numbers)
        return sum(file.present_bytes for file in found if file is not None)

    # --- changes

    def put(self, pin_id: bytes, row: PinRow) -> bool:
        """Adds or extends a pin: the later time of each owner counts, and a complete pin stays
        complete. Returns whether it is new."""
        with self._lock:
            pin = self._pins.get(pin_id)
            new = row
            if pin is not None:
                is_complete = row.is_complete or pin.row.is_complete
                new = msgspec.structs.replace(
                    _owned(row, _later(owners_of(row), owners_of(pin.row))), is_complete=is_complete
                )
            self._cache.kv.write([(layout.pin_key(pin_id), layout.encode_pin_row(new))])
            if pin is None:
                self._pins[pin_id] = Pin(new)
            else:
                pin.row = new
                self._update_deadlines()
            return pin is None

    def hold(self, pin_id: bytes, files: Collection[CacheFile]) -> bool:
        """Makes the pin hold these files. Returns False, with nothing changed, if one of them or
        the pin is gone."""
        with self._lock:
            pin = self._pins.get(pin_id)
            if pin is None:
                return False
            new = {file.number for file in files} - pin.numbers
            if new:  # first, so that the next process holds at least these files
                self._cache.kv.write([(layout.held_key(pin_id, number), b"") for number in new])
            with self._cache.lock:  # an eviction marks its victims under it
                if not all(file.is_alive for file in files):
                    return False
                pin.numbers |= new
                for file in files:
                    file.pinned_until_s = max(file.pinned_until_s, pin.row.until_s)
        return True

    def remove(self, pin_ids: Collection[bytes]) -> None:
        """Removes pins of all owners. Their files may then be evicted."""
        with self._changing():
            for pin_id in pin_ids:
                self._remove(pin_id)

    def release(self, pin_ids: Collection[bytes], owner: str) -> None:
        """Removes an owner from pins. A pin without owners ends."""
        with self._changing():
            for pin_id in pin_ids:
                pin = self._pins.get(pin_id)
                owners = owners_of(pin.row) if pin is not None else {}
                if pin is None or owners.pop(owner, None) is None:
                    continue
                if not owners:
                    self._remove(pin_id)
                    continue
                row = _owned(pin.row, owners)
                self._cache.kv.write([(layout.pin_key(pin_id), layout.encode_pin_row(row))])
                pin.row = row

    def expire(self) -> None:
        """Removes pins whose time is over, and rows that a killed process left."""
        now_s = self._cache.now_s()
        with self._lock:
            over = [pin_id for pin_id, pin in self._pins.items() if pin.row.until_s <= now_s]
            known = set(self._pins)
        for pin_id in over:
            log.info("the pin %s has expired", pin_id.hex())
        self.remove(over)
        seen = {layout.held_of_key(key)[0] for key, _ in self._cache.kv.scan(layout.HELD)}
        for pin_id in seen - known:
            with self._lock:
                if pin_id not in self._pins:
                    self._remove_rows(pin_id)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Holds the lock, and brings the files up to date, even if a write fails half way."""
        with self._lock:
            try:
                yield
            finally:
                self._update_deadlines()

    def _remove(self, pin_id: bytes) -> None:
        self._cache.kv.write([(layout.pin_key(pin_id), None)])
        if self._pins.pop(pin_id, None) is not None:
            self._was_full = False
        self._remove_rows(pin_id)

    def _remove_rows(self, pin_id: bytes) -> None:
        rows: list[Row] = []
        for key, _ in self._cache.kv.scan(layout.held_prefix(pin_id)):
            rows.append((key, None))
            if len(rows) >= ROWS_MAX:
                self._cache.kv.write(rows)
                rows = []
        if rows:
            self._cache.kv.write(rows)

    def _update_deadlines(self) -> None:
        """Sets until when files are held."""
        until_s: defaultdict[int, int] = defaultdict(int)
        for pin in self._pins.values():
            for number in pin.numbers:
                until_s[number] = max(until_s[number], pin.row.until_s)
        for file in self._cache.all_files():
            file.pinned_until_s = until_s[file.number]

    def note_full(self) -> None:
        """Counts chunks that are served without being cached because pins fill the cache, and logs
        that once."""
        now_s = self._cache.now_s()
        if not any(pin.numbers and pin.row.until_s > now_s for pin in list(self._pins.values())):
            return
        self._cache.counts.add(Counter.PINNED_FULL)
        if not self._was_full:
            self._was_full = True
            log.warning(
                "the cache is full of pinned data: other data is served without being cached until "
                "pins end; `lodefs pins` lists them, `lodefs evict` removes them"
            )


def owners_of(row: PinRow) -> dict[str, int]:
    """Returns until when each owner holds a pin; "" is the owner without a name."""
    return dict(row.owners) or {"": row.until_s}


def _owned(row: PinRow, owners: dict[str, int]) -> PinRow:
    """Returns the same pin with these owners; there must be at least one."""
    stored = {} if owners.keys() == {""} else owners
    return msgspec.structs.replace(row, until_s=max(owners.values()), owners=stored)


def _later(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {owner: max(one.get(owner, 0), other.get(owner, 0)) for owner in one | other}

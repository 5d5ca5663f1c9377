"""Scrub: reads a share of a store's packs each day, so that all are read within some weeks.

It reads packs in the order of their ids, from where the previous run ended, and checks each chunk
that the store has: it reads nothing from sources.
One small document in the store itself records the progress, and may be lost. So any machine may do
the next run.

Many machines read at once in one of two ways. A run hands packs in groups to an executor, and keeps
the record itself. Or each machine reads the whole of its own range of ids, and records nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial

import msgspec

from lodefs.chunkstore.errors import UNREADABLE, Corrupt, InvalidInput
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import PackId, parse_id
from lodefs.chunkstore.maintenance.inventory import PackList
from lodefs.chunkstore.objects.interface import ObjectStore, read_whole
from lodefs.chunkstore.repair.packs import PackDamage, examine
from lodefs.chunkstore.system.parallel_map import map_ahead
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.task_share import TaskShare
from lodefs.chunkstore.types import Buffer

VERSION = 1
SIZE_BYTES_MAX = 1024 * 1024
SPOILT_MAX = 8192  # damaged packs that are recorded
WORKERS = 4
NOTED_EVERY_BYTES = 1 << 30  # the ledger is written each time after this much

SizedPack = tuple[PackId, int]  # a pack and its bytes
ExaminePacks = Callable[[Iterable[SizedPack]], Iterator[PackDamage | None]]
"""Returns the damage of each pack, in the order of the packs, which it takes on demand."""

_SHARE = re.compile(r"(\d{1,6})/(\d{1,6})\Z")


@dataclass(frozen=True, slots=True)
class ScrubLedger:
    """The progress. Packs are read in the order of their ids, round after round."""

    after: PackId | None = None  # the last pack read in this round; None: the round begins
    rounds: int = 0  # finished rounds
    began_s: int = 0  # Unix time; this round
    ended_s: int = 0  # the previous round; 0: none
    checked_packs: int = 0  # in this round
    checked_bytes: int = 0
    damaged: tuple[PackId, ...] = ()  # damaged when they were last read


class _LedgerDocument(msgspec.Struct, forbid_unknown_fields=True, rename={"damaged": "spoilt"}):
    after: str | None
    rounds: int
    began_s: int
    ended_s: int
    checked_packs: int
    checked_bytes: int
    damaged: list[str]


def encode_scrub_ledger(ledger: ScrubLedger) -> bytes:
    """Returns the document."""
    body = _LedgerDocument(
        None if ledger.after is None else ledger.after.hex(),
        ledger.rounds,
        ledger.began_s,
        ledger.ended_s,
        ledger.checked_packs,
        ledger.checked_bytes,
        [pack.hex() for pack in ledger.damaged[:SPOILT_MAX]],
    )
    return seal("scrub-ledger", VERSION, body)


def decode_scrub_ledger(data: Buffer, what: str) -> ScrubLedger:
    """Returns the ledger. Raises: Corrupt, UnknownFormat."""
    body = unseal("scrub-ledger", {VERSION: _LedgerDocument}, data, what)
    try:
        after = None if body.after is None else PackId(parse_id(body.after))
        damaged = tuple(PackId(parse_id(pack)) for pack in body.damaged)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    numbers = (body.rounds, body.began_s, body.ended_s, body.checked_packs, body.checked_bytes)
    if min(numbers) < 0:
        raise Corrupt(f"{what} has a negative number")
    return ScrubLedger(after, *numbers, damaged)


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """``share`` of the packs' bytes to read. ``bytes_per_s_max`` None: as fast as possible."""

    share: Fraction
    bytes_per_s_max: int | None = None
    workers: int = WORKERS
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    timer: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class ScrubResult:
    """The amount that a run read, and all packs that are damaged now, whichever run found them. For
    the share of one task ``store_packs`` are those of the share, and there is no ledger."""

    ledger: ScrubLedger | None
    packs: int = 0
    size_bytes: int = 0
    store_packs: int = 0
    store_bytes: int = 0
    damaged: list[PackDamage] = field(default_factory=list)


def parse_share(text: str) -> Fraction:
    """Parses a share such as ``1/30``: over 0, at most 1. Raises: InvalidInput."""
    match = _SHARE.match(text)
    if match is None or not 0 < int(match[1]) <= int(match[2]):
        raise InvalidInput(f"{text!r} is not a share: 1/30 reads all packs in 30 runs, 1/1 in one")
    return Fraction(int(match[1]), int(match[2]))


def read_scrub_ledger(objects: ObjectStore) -> ScrubLedger:
    """Returns the progress of the scrub; the first round if the document is lost or damaged."""
    try:
        part = read_whole(objects, keys.SCRUB, SIZE_BYTES_MAX)
        return decode_scrub_ledger(part.data, keys.SCRUB)
    except UNREADABLE:
        return ScrubLedger()


def scrub(
    objects: ObjectStore,
    options: ScrubOptions,
    progress: Progress | None = None,
    examine_packs: ExaminePacks | None = None,
) -> ScrubResult:
    """Reads the next share, and the packs that were damaged before; by default with threads. After
    an error, what was read counts. Two runs at once read the same packs. Raises: what the store
    raises, and ``examine_packs``."""
    progress = progress or Progress()
    ledger = read_scrub_ledger(objects)
    sizes = _listed(objects, progress)
    result = ScrubResult(ledger, store_packs=len(sizes), store_bytes=sum(s for _, s in sizes))
    chosen = next_packs(sizes, ledger.after, int(result.store_bytes * options.share))
    with _threads(objects, options.workers) as by_threads:
        reading = _Reading(options, progress, result, examine_packs or by_threads)
        reading.again(ledger.damaged)
        notes = _Notes(objects, options.clock, ledger, sizes[-1][0] if sizes else None, result)
        try:
            for pack, size_bytes in reading.read(chosen):
                notes.add(pack, size_bytes)
        finally:
            notes.write()
    return result


def scrub_share(
    objects: ObjectStore,
    share: TaskShare,
    options: ScrubOptions,
    progress: Progress | None = None,
) -> ScrubResult:
    """Reads all packs of a task's share, a range of ids, and writes nothing. The results of all
    tasks together are that of a scrub of the whole store. Raises: what the store raises."""
    progress = progress or Progress()
    sizes = _listed(objects, progress, share)
    result = ScrubResult(None, store_packs=len(sizes), store_bytes=sum(s for _, s in sizes))
    with _threads(objects, options.workers) as by_threads:
        for _ in _Reading(options, progress, result, by_threads).read(sizes):
            pass
    return result


def examine_group(
    objects: ObjectStore, packs: Sequence[PackId], workers: int
) -> list[PackDamage | None]:
    """Returns the damage of each pack of a group. Raises: what the store raises."""
    with _threads(objects, workers) as by_threads:
        return list(by_threads((pack, 0) for pack in packs))


@contextmanager
def _threads(objects: ObjectStore, workers: int) -> Iterator[ExaminePacks]:
    """Examines packs with threads of this process, one for each worker."""
    look = partial(examine, objects, data=True, in_place=False)
    with ThreadPoolExecutor(workers, "lodefs-scrub") as executor:
        yield lambda packs: map_ahead(executor, look, (pack for pack, _ in packs), workers)


def _listed(
    objects: ObjectStore, progress: Progress, share: TaskShare | None = None
) -> list[SizedPack]:
    progress.phase = "listing packs"
    with PackList() as packs:
        packs.fill(objects, share)
        return sorted(packs)


def next_packs(
    sizes: Sequence[tuple[PackId, int]], after: PackId | None, size_bytes: int
) -> list[tuple[PackId, int]]:
    """Returns packs, sorted by id, from the one after ``after`` on, with ``size_bytes`` together,
    but at least one. After the last it goes on with the first; no pack comes twice."""
    first = 0
    if after is not None:
        first = next((n for n, (pack, _) in enumerate(sizes) if pack > after), 0)
    chosen: list[tuple[PackId, int]] = []
    total = 0
    for pack, size in (*sizes[first:], *sizes[:first]):
        if chosen and total >= size_bytes and size:  # an empty pack costs nothing, and is damaged
            break
        chosen.append((pack, size))
        total += size
    return chosen


class _Reading:
    """Reads packs, and adds to a result what was read and what is damaged."""

    def __init__(
        self,
        options: ScrubOptions,
        progress: Progress,
        result: ScrubResult,
        examine_packs: ExaminePacks,
    ) -> None:
        self._options = options
        self._progress = progress
        self._result = result
        self._examine = examine_packs
        self._began = options.timer()

    def again(self, damaged: Iterable[PackId]) -> None:
        """Reads the damaged packs again, since they may have been repaired or deleted."""
        found = self._examine((pack, 0) for pack in damaged)
        self._result.damaged += [one for one in found if one is not None and not one.is_lost]

    def read(self, packs: Sequence[SizedPack]) -> Iterator[SizedPack]:
        """Reads packs at the given rate, and yields each one that was read."""
        self._progress.phase = "scrubbing"
        self._progress.bytes_total = sum(size_bytes for _, size_bytes in packs)
        known = {damage.pack_id for damage in self._result.damaged}
        damages = self._examine(self._paced(packs))
        for (pack, size_bytes), damage in zip(packs, damages, strict=True):
            if damage is not None and not damage.is_lost and pack not in known:
                self._result.damaged.append(damage)
            self._result.packs += 1
            self._result.size_bytes += size_bytes
            self._progress.bytes_done += size_bytes
            yield pack, size_bytes

    def _paced(self, packs: Sequence[SizedPack]) -> Iterator[SizedPack]:
        """Waits before each pack until the rate allows it."""
        sent_bytes = 0
        for pack, size_bytes in packs:
            if self._options.bytes_per_s_max:
                due_s = self._began + sent_bytes / self._options.bytes_per_s_max
                if (early_s := due_s - self._options.timer()) > 0:
                    self._options.sleep(early_s)
            sent_bytes += size_bytes
            yield pack, size_bytes


class _Notes:
    """The record of a run, in the store's ledger."""

    def __init__(
        self,
        objects: ObjectStore,
        clock: Callable[[], float],
        ledger: ScrubLedger,
        last: PackId | None,
        result: ScrubResult,
    ) -> None:
        """``last`` is the pack with which a round ends."""
        self._objects = objects
        self._clock = clock
        self._ledger = ledger
        self._last = last
        self._result = result
        self._unwritten_bytes = 0

    def add(self, pack: PackId, size_bytes: int) -> None:
        """Records a pack that was read, and now and then writes the ledger."""
        ledger, now_s = self._ledger, int(self._clock())
        self._ledger = replace(
            ledger,
            after=pack,
            began_s=ledger.began_s or now_s,
            checked_packs=ledger.checked_packs + 1,
            checked_bytes=ledger.checked_bytes + size_bytes,
        )
        if pack == self._last:
            self._ledger = ScrubLedger(None, ledger.rounds + 1, 0, now_s)
        self._unwritten_bytes += size_bytes
        if self._unwritten_bytes >= NOTED_EVERY_BYTES:
            self.write()

    def write(self) -> None:
        """Writes the ledger."""
        self._unwritten_bytes = 0
        damaged = tuple(damage.pack_id for damage in self._result.damaged)
        self._result.ledger = replace(self._ledger, damaged=damaged)
        self._objects.put(keys.SCRUB, [encode_scrub_ledger(self._result.ledger)])

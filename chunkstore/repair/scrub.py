"""Scrub: reads a share of a store's packs each day, so that all are read within some weeks.

It reads packs in the order of their ids, from where the previous run ended, and checks each chunk
that the store has: it reads nothing from sources.
One small document in the store itself records the progress, and may be lost. So any machine may do
the next run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
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
from lodefs.chunkstore.types import Buffer

VERSION = 1
SIZE_BYTES_MAX = 1024 * 1024
SPOILT_MAX = 8192  # damaged packs that are recorded
WORKERS = 4
NOTED_EVERY_BYTES = 1 << 30  # the ledger is written each time after this much
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
    """The amount that a run read, and all packs that are damaged now, whichever run found them."""

    ledger: ScrubLedger
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
    objects: ObjectStore, options: ScrubOptions, progress: Progress | None = None
) -> ScrubResult:
    """Reads the next share, and the packs that were damaged before. After an error, what was read
    counts. Two runs at once read the same packs. Raises: what the store raises."""
    progress = progress or Progress()
    ledger = read_scrub_ledger(objects)
    progress.phase = "listing packs"
    with PackList() as packs:
        packs.fill(objects)
        sizes = sorted(packs)
    result = ScrubResult(ledger, store_packs=len(sizes), store_bytes=sum(s for _, s in sizes))
    chosen = next_packs(sizes, ledger.after, int(result.store_bytes * options.share))
    progress.phase = "scrubbing"
    progress.bytes_total = sum(size_bytes for _, size_bytes in chosen)
    with ThreadPoolExecutor(options.workers, "lodefs-scrub") as executor:
        run = _Scrub(objects, options, progress, executor, result, last=sizes[-1:])
        run.again()
        try:
            run.read(chosen)
        finally:
            run.note()
    return result


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


class _Scrub:
    """One run."""

    def __init__(
        self,
        objects: ObjectStore,
        options: ScrubOptions,
        progress: Progress,
        executor: Executor,
        result: ScrubResult,
        last: Sequence[tuple[PackId, int]],
    ) -> None:
        self._objects = objects
        self._options = options
        self._progress = progress
        self._executor = executor
        self._result = result
        self._last = last[0][0] if last else None
        self._began = options.timer()
        self._unnoted_bytes = 0

    def again(self) -> None:
        """Reads the damaged packs again, since they may have been repaired or deleted."""
        for damage in self._examined(self._result.ledger.damaged):
            if damage is not None and not damage.is_lost:
                self._result.damaged.append(damage)

    def read(self, packs: Sequence[tuple[PackId, int]]) -> None:
        """Reads packs at the given rate, and records the last one."""
        known = {damage.pack_id for damage in self._result.damaged}
        damages = self._examined(self._paced(packs))
        for (pack, size_bytes), damage in zip(packs, damages, strict=True):
            if damage is not None and not damage.is_lost and pack not in known:
                self._result.damaged.append(damage)
            self._count(pack, size_bytes)
            if self._unnoted_bytes >= NOTED_EVERY_BYTES:
                self.note()

    def note(self) -> None:
        """Writes the ledger."""
        self._unnoted_bytes = 0
        damaged = tuple(damage.pack_id for damage in self._result.damaged)
        self._result.ledger = replace(self._result.ledger, damaged=damaged)
        self._objects.put(keys.SCRUB, [encode_scrub_ledger(self._result.ledger)])

    def _count(self, pack: PackId, size_bytes: int) -> None:
        ledger, now_s = self._result.ledger, int(self._options.clock())
        ledger = replace(
            ledger,
            after=pack,
            began_s=ledger.began_s or now_s,
            checked_packs=ledger.checked_packs + 1,
            checked_bytes=ledger.checked_bytes + size_bytes,
        )
        if pack == self._last:
            ledger = ScrubLedger(None, ledger.rounds + 1, 0, now_s)
        self._result.ledger = ledger
        self._result.packs += 1
        self._result.size_bytes += size_bytes
        self._unnoted_bytes += size_bytes
        self._progress.bytes_done += size_bytes

    def _paced(self, packs: Sequence[tuple[PackId, int]]) -> Iterator[PackId]:
        """Waits before each pack until the rate allows it."""
        sent_bytes = 0
        for pack, size_bytes in packs:
            if self._options.bytes_per_s_max:
                due_s = self._began + sent_bytes / self._options.bytes_per_s_max
                if (early_s := due_s - self._options.timer()) > 0:
                    self._options.sleep(early_s)
            sent_bytes += size_bytes
            yield pack

    def _examined(self, packs: Iterable[PackId]) -> Iterator[PackDamage | None]:
        """Yields the damage of each pack, in order. As many are under way as there are workers."""
        look = partial(examine, self._objects, data=True, in_place=False)
        return map_ahead(self._executor, look, packs, self._options.workers)

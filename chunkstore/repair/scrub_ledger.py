"""How far the scrub of a store is: one small document, which may be lost."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import PackId, parse_id
from lodefs.chunkstore.types import Buffer

VERSION = 1
SIZE_BYTES_MAX = 1024 * 1024
SPOILT_MAX = 8192  # that are remembered


@dataclass(frozen=True, slots=True)
class ScrubLedger:
    """Packs are read in the order of their ids, round after round."""

    after: PackId | None = None  # the last one that was read in this round; None: it begins
    rounds: int = 0  # that are over
    began_s: int = 0  # Unix; this round
    ended_s: int = 0  # the one before it; 0: none
    checked_packs: int = 0  # in this round
    checked_bytes: int = 0
    spoilt: tuple[PackId, ...] = ()  # when they were last read


class _LedgerDocument(msgspec.Struct, forbid_unknown_fields=True):
    after: str | None
    rounds: int
    began_s: int
    ended_s: int
    checked_packs: int
    checked_bytes: int
    spoilt: list[str]


def encode_scrub_ledger(ledger: ScrubLedger) -> bytes:
    """The document."""
    body = _LedgerDocument(
        None if ledger.after is None else ledger.after.hex(),
        ledger.rounds,
        ledger.began_s,
        ledger.ended_s,
        ledger.checked_packs,
        ledger.checked_bytes,
        [pack.hex() for pack in ledger.spoilt[:SPOILT_MAX]],
    )
    return seal("scrub-ledger", VERSION, body)


def decode_scrub_ledger(data: Buffer, what: str) -> ScrubLedger:
    """The ledger. Raises: Corrupt, UnknownFormat."""
    body = unseal("scrub-ledger", {VERSION: _LedgerDocument}, data, what)
    try:
        after = None if body.after is None else PackId(parse_id(body.after))
        spoilt = tuple(PackId(parse_id(pack)) for pack in body.spoilt)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error
    numbers = (body.rounds, body.began_s, body.ended_s, body.checked_packs, body.checked_bytes)
    if min(numbers) < 0:
        raise Corrupt(f"{what} holds a negative number")
    return ScrubLedger(after, *numbers, spoilt)

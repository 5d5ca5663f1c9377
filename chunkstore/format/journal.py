"""The journal of a store: the writers that are about to write refs, and the tombstones of gc runs.

The numbers of its entries order all writers and gc runs (docs/format.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format.envelope import seal, unseal
from lodefs.chunkstore.format.names import CommitId, PackId, check_ref_name, check_repo, parse_id
from lodefs.chunkstore.format.pack import PACK_CHUNKS_LIMIT
from lodefs.chunkstore.types import Buffer

VERSION = 1
VERSION_CHUNKS = 2  # of an entry or outcome whose garbage has chunks of packs in use
CHUNK_PACKS_MAX = 32  # packs in one entry with tombstoned chunks: at most 16 KB of hex digits each
IDS_MAX = 1024  # ids that one entry tombstones
SIZE_BYTES_MAX = 1024 * 1024  # of any document but the ledger: IDS_MAX commits take 300 KB
LEDGER_SIZE_BYTES_MAX = 64 * 1024 * 1024  # enough for 200,000 refs with the longest names

T = TypeVar("T")


class RefName(NamedTuple):
    """A branch or tag of a store."""

    repo: str
    kind: str
    name: str


class DeadChunks(NamedTuple):
    """Chunks of a pack: bits of their numbers."""

    pack: PackId
    chunks: int


@dataclass(frozen=True, slots=True)
class Garbage:
    """Packs and commits (with their repositories) to which no ref leads, and such chunks of other
    packs."""

    packs: tuple[PackId, ...] = ()
    commits: tuple[tuple[str, CommitId], ...] = ()
    chunks: tuple[DeadChunks, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.packs or self.commits or self.chunks)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A writer of a ref begins; or, with ``tombstoned``, a gc run has found garbage."""

    number: int
    previous: int | None  # the previous entry with tombstones
    time_s: int  # Unix time
    token: str  # 32 random hex characters, so that no two entries have the same bytes
    tombstoned: Garbage | None = None


@dataclass(frozen=True, slots=True)
class Intent:
    """The entry of a ref that a writer is about to put."""

    ref: RefName
    sequence: int
    commit: CommitId


@dataclass(frozen=True, slots=True)
class End:
    """The end of a writer: with an intent, or (None) without a ref."""

    number: int
    intent: Intent | None


@dataclass(frozen=True, slots=True)
class DeletionOutcome:
    """The outcome of an entry's garbage: all is kept (None), or this part is deleted."""

    number: int
    deleted: Garbage | None


class LastHeartbeat(NamedTuple):
    """The number of a writer's heartbeats, and since when (Unix time) there was no further one."""

    beats: int
    since_s: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state of the journal as a gc run leaves it, so that the next run need not read all of
    it."""

    before: int = 0  # all writers with lower numbers have ended, and ``refs`` has their refs
    refs: Mapping[RefName, int] = field(default_factory=dict)  # an existing sequence of each
    last_heartbeats: Mapping[int, LastHeartbeat] = field(
        default_factory=dict
    )  # for the other writers


class _Garbage(msgspec.Struct, forbid_unknown_fields=True):
    packs: list[str]
    commits: list[tuple[str, str]]


class _GarbageChunks(_Garbage, forbid_unknown_fields=True):
    chunks: list[tuple[str, str]]


class _EntryBody(msgspec.Struct, forbid_unknown_fields=True, rename={"tombstoned": "condemned"}):
    number: int
    previous: int | None
    time_s: int
    token: str
    tombstoned: _Garbage | None


class _EntryBodyChunks(
    msgspec.Struct, forbid_unknown_fields=True, rename={"tombstoned": "condemned"}
):
    number: int
    previous: int | None
    time_s: int
    token: str
    tombstoned: _GarbageChunks


class _Intent(msgspec.Struct, forbid_unknown_fields=True):
    repo: str
    kind: str
    name: str
    sequence: int
    commit: str


class _EndBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    intent: _Intent | None


class _OutcomeBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    deleted: _Garbage | None


class _OutcomeBodyChunks(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    deleted: _GarbageChunks


_ENTRIES: dict[int, type[_EntryBody | _EntryBodyChunks]] = {
    VERSION: _EntryBody,
    VERSION_CHUNKS: _EntryBodyChunks,
}
_OUTCOMES: dict[int, type[_OutcomeBody | _OutcomeBodyChunks]] = {
    VERSION: _OutcomeBody,
    VERSION_CHUNKS: _OutcomeBodyChunks,
}


class _BeatBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    beats: int


class _DoneBody(msgspec.Struct, forbid_unknown_fields=True):
    number: int


class _LedgerBody(
    msgspec.Struct, forbid_unknown_fields=True, rename={"last_heartbeats": "silences"}
):
    before: int
    refs: list[tuple[str, str, str, int]]
    last_heartbeats: list[tuple[int, int, int]]


def encode_entry(entry: JournalEntry) -> bytes:
    """Returns the document. Raises: InvalidInput for more garbage than an entry may tombstone."""
    if entry.tombstoned is not None:
        count = len(entry.tombstoned.packs) + len(entry.tombstoned.commits)
        if count > IDS_MAX:
            raise InvalidInput(f"an entry of the journal cannot have {count} ids (limit {IDS_MAX})")
        if len(entry.tombstoned.chunks) > CHUNK_PACKS_MAX:
            raise InvalidInput(
                f"an entry of the journal tombstones chunks of at most {CHUNK_PACKS_MAX} packs"
            )
    head = entry.number, entry.previous, entry.time_s, entry.token
    if entry.tombstoned is not None and entry.tombstoned.chunks:
        with_chunks = _EntryBodyChunks(*head, _packed_chunks(entry.tombstoned))
        return seal("journal-entry", VERSION_CHUNKS, with_chunks)
    return seal("journal-entry", VERSION, _EntryBody(*head, _packed(entry.tombstoned)))


def decode_entry(data: Buffer, number: int, what: str) -> JournalEntry:
    """Returns the entry with that number. Raises: Corrupt, UnknownFormat; ``what`` names it in
    these."""
    body = _unsealed("journal-entry", _ENTRIES, data, number, what)
    if body.previous is not None and not 0 <= body.previous < number:
        raise Corrupt(f"{what} cannot follow entry {body.previous}")
    tombstoned = _unpacked(body.tombstoned, what)
    return JournalEntry(number, body.previous, body.time_s, body.token, tombstoned)


def encode_end(end: End) -> bytes:
    """Returns the document."""
    intent = None
    if end.intent is not None:
        intent = _Intent(*end.intent.ref, end.intent.sequence, end.intent.commit.hex())
    return seal("journal-end", VERSION, _EndBody(end.number, intent))


def decode_end(data: Buffer, number: int, what: str) -> End:
    """Returns the end of the writer with that number. Raises: Corrupt, UnknownFormat."""
    body = _unsealed("journal-end", {VERSION: _EndBody}, data, number, what)
    if body.intent is None:
        return End(number, None)
    ref = _ref_name(body.intent.repo, body.intent.kind, body.intent.name, what)
    commit = CommitId(_id(body.intent.commit, what))
    return End(number, Intent(ref, body.intent.sequence, commit))


def encode_outcome(outcome: DeletionOutcome) -> bytes:
    """Returns the document."""
    if outcome.deleted is not None and outcome.deleted.chunks:
        with_chunks = _OutcomeBodyChunks(outcome.number, _packed_chunks(outcome.deleted))
        return seal("journal-fate", VERSION_CHUNKS, with_chunks)
    return seal("journal-fate", VERSION, _OutcomeBody(outcome.number, _packed(outcome.deleted)))


def decode_outcome(data: Buffer, number: int, what: str) -> DeletionOutcome:
    """Returns the outcome of that entry's garbage. Raises: Corrupt, UnknownFormat."""
    body = _unsealed("journal-fate", _OUTCOMES, data, number, what)
    return DeletionOutcome(number, _unpacked(body.deleted, what))


def encode_beat(number: int, beats: int) -> bytes:
    """Returns the document with the number of heartbeats of a writer."""
    return seal("journal-beat", VERSION, _BeatBody(number, beats))


def decode_beat(data: Buffer, number: int, what: str) -> int:
    """Returns that number. Raises: Corrupt, UnknownFormat."""
    return _unsealed("journal-beat", {VERSION: _BeatBody}, data, number, what).beats


def encode_done(number: int) -> bytes:
    """Returns the document which says that the outcome of an entry was carried out."""
    return seal("journal-done", VERSION, _DoneBody(number))


def encode_ledger(ledger: Ledger) -> bytes:
    """Returns the document."""
    refs = sorted((*ref, sequence) for ref, sequence in ledger.refs.items())
    last_heartbeats = sorted(
        (number, *last_heartbeat) for number, last_heartbeat in ledger.last_heartbeats.items()
    )
    body = _LedgerBody(ledger.before, refs, last_heartbeats)
    return seal("journal-ledger", VERSION, body)


def decode_ledger(data: Buffer, what: str) -> Ledger:
    """Returns the ledger. Raises: Corrupt, UnknownFormat."""
    body = unseal("journal-ledger", {VERSION: _LedgerBody}, data, what)
    refs = {_ref_name(repo, kind, name, what): last for repo, kind, name, last in body.refs}
    last_heartbeats = {
        number: LastHeartbeat(beats, since_s) for number, beats, since_s in body.last_heartbeats
    }
    if min((body.before, *refs.values(), *last_heartbeats)) < 0:
        raise Corrupt(f"{what} has a negative number")
    return Ledger(body.before, refs, last_heartbeats)


def _unsealed(kind: str, bodies: Mapping[int, type[T]], data: Buffer, number: int, what: str) -> T:
    body = unseal(kind, bodies, data, what)
    if (found := getattr(body, "number", None)) != number:
        raise Corrupt(f"{what} belongs to entry {found} of the journal, not to {number}")
    return body


def _packed(garbage: Garbage | None) -> _Garbage | None:
    if garbage is None:
        return None
    commits = [(repo, commit.hex()) for repo, commit in garbage.commits]
    return _Garbage([pack.hex() for pack in garbage.packs], commits)


def _packed_chunks(garbage: Garbage) -> _GarbageChunks:
    packed = _packed(garbage)
    assert packed is not None
    chunks = [(dead.pack.hex(), _hex_of(dead.chunks)) for dead in garbage.chunks]
    return _GarbageChunks(packed.packs, packed.commits, chunks)


def _hex_of(bits: int) -> str:
    """Returns hex digits of bytes; the first byte has the bits of chunks 0 to 7."""
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little").hex()


def _bits_of(text: str, what: str) -> int:
    try:
        bits = int.from_bytes(bytes.fromhex(text), "little")
    except ValueError as error:
        raise Corrupt(f"{what}: {text[:20]!r} names no chunks") from error
    if not 0 < bits.bit_length() <= PACK_CHUNKS_LIMIT or _hex_of(bits) != text:
        raise Corrupt(f"{what}: {text[:20]!r} names no chunks of a pack")
    return bits


def _unpacked(garbage: _Garbage | None, what: str) -> Garbage | None:
    if garbage is None:
        return None
    packs = tuple(PackId(_id(pack, what)) for pack in garbage.packs)
    commits = tuple((_repo(repo, what), CommitId(_id(id_, what))) for repo, id_ in garbage.commits)
    chunks: tuple[DeadChunks, ...] = ()
    if isinstance(garbage, _GarbageChunks):
        chunks = tuple(
            DeadChunks(PackId(_id(pack, what)), _bits_of(bits, what))
            for pack, bits in garbage.chunks
        )
    return Garbage(packs, commits, chunks)


def _ref_name(repo: str, kind: str, name: str, what: str) -> RefName:
    if kind not in ("branches", "tags"):
        raise Corrupt(f"{what} names the ref {kind}/{name}")
    try:
        return RefName(_repo(repo, what), kind, check_ref_name(name))
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error


def _repo(name: str, what: str) -> str:
    try:
        return check_repo(name)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error


def _id(text: str, what: str) -> bytes:
    try:
        return parse_id(text)
    except InvalidInput as error:
        raise Corrupt(f"{what}: {error}") from error

"""Repairs lost or damaged entries of branches and tags.

The journal (the intent of the writer) or another store has what they said. A lost entry is noticed
if later ones exist or the journal names it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from lodefs.chunkstore.errors import Corrupt, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import Intent, RefName
from lodefs.chunkstore.format.names import CommitId
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.repair.sources.source import RepairSource
from lodefs.chunkstore.repo.refs import RefEntry, Refs, singular
from lodefs.chunkstore.system.parallel_map import map_ahead

REQUESTS_MAX = 16  # concurrent requests
LOST = "lost"
ANNOUNCED = "lost, unless its writer was killed right before it wrote it"


class RefPlace(NamedTuple):
    """One entry of a ref's log."""

    ref: RefName
    sequence: int


@dataclass(frozen=True, slots=True)
class RefDamage:
    """A lost or damaged entry. ``is_found``: ``commit`` (None: a deletion) is what it said, or a
    substitute; ``source`` says from where."""

    ref: RefName
    sequence: int
    what: str
    is_found: bool = False
    commit: CommitId | None = None
    source: str = ""

    @property
    def key(self) -> str:
        """The key of the object."""
        return keys.ref_entry(*self.ref, self.sequence)

    def __str__(self) -> str:
        return f"{singular(self.ref.kind)} {self.ref.name} of {self.ref.repo}"


def ref_damages(
    objects: ObjectStore,
    intents: Sequence[Intent],
    collected: Mapping[RefName, int],
    sources: Sequence[RepairSource],
) -> tuple[dict[RefName, int], list[RefDamage]]:
    """Returns all refs with the newest sequence of each, and what is wrong with their entries.
    ``collected`` are refs that gc runs have seen, each with an existing sequence. Raises:
    UnknownFormat for an entry of a newer lodefs."""
    logs: dict[RefName, set[int]] = defaultdict(set)
    for info in objects.list(keys.REPOS):
        found = keys.ref_of_entry(info.key)
        if found is not None and found[1] in ("branches", "tags"):
            logs[RefName(*found[:3])].add(found[3])
    told = {(intent.ref, intent.sequence): intent.commit for intent in intents}
    lost = {RefPlace(*place): commit for place, commit in told.items()}
    there = {ref: set(sequences) for ref, sequences in logs.items()}
    for ref, sequence in (*lost, *collected.items()):
        logs[ref].add(sequence)
    newest = {ref: max(sequences) for ref, sequences in sorted(logs.items())}
    places = (RefPlace(ref, at) for ref, last in newest.items() for at in range(last + 1))
    with ThreadPoolExecutor(REQUESTS_MAX, "lodefs-refs") as executor:
        entries = _read_all(objects, executor, places, there)
        damages = [
            damage
            for ref, last in newest.items()
            for damage in _of_log(ref, islice(entries, last + 1), last, lost, sources)
        ]
    return newest, damages


def repair_refs(objects: ObjectStore, damages: Sequence[RefDamage]) -> None:
    """Puts the entries whose content is known."""
    for damage in damages:
        if damage.is_found:
            refs = Refs(objects, damage.ref.repo)
            refs.restore(damage.ref.kind, damage.ref.name, damage.commit, damage.sequence)


def _read_all(
    objects: ObjectStore,
    executor: Executor,
    places: Iterator[RefPlace],
    there: Mapping[RefName, Container[int]],
) -> Iterator[RefEntry | str]:
    """Yields entries in the order of their places, or what is wrong with them. It reads several at
    once, since each takes a round trip."""

    def read(place: RefPlace) -> RefEntry | str:
        ref, sequence = place
        if sequence not in there.get(ref, ()):
            return LOST
        try:
            return Refs(objects, ref.repo).entry(ref.kind, ref.name, sequence)
        except (NotFound, Corrupt) as error:
            return f"damaged: {error}"

    return map_ahead(executor, read, places)


def _of_log(
    ref: RefName,
    entries: Iterable[RefEntry | str],
    newest: int,
    told: Mapping[RefPlace, CommitId],
    sources: Sequence[RepairSource],
) -> Iterator[RefDamage]:
    """Yields what is wrong with a log, whose ``entries`` begin with the first one that is known."""
    before: RefEntry | None = None
    for sequence, entry in enumerate(entries):
        if isinstance(entry, RefEntry):
            before = entry
            continue
        damage = RefDamage(ref, sequence, entry)
        is_newest = sequence == newest
        # writers of versions without the journal announced nothing
        is_announcing = any(place.ref == ref for place in told)
        yield _found(
            damage, before, told, sources, is_newest=is_newest, is_announcing=is_announcing
        )


def _found(
    damage: RefDamage,
    before: RefEntry | None,
    told: Mapping[RefPlace, CommitId],
    sources: Sequence[RepairSource],
    *,
    is_newest: bool,
    is_announcing: bool,
) -> RefDamage:
    """Returns the damage with what the entry said, if that can be known. An older unknown entry
    repeats the one before it, since it is only history. If a writer announced the newest entry, it
    may never have existed, since the writer may have been killed in between. If no writer announced
    it and no other store has the ref, it was a deletion, since deletions are not announced
    (docs/decisions/0036)."""
    commit = told.get(RefPlace(damage.ref, damage.sequence))
    if commit is not None:
        what = ANNOUNCED if is_newest and damage.what == LOST else damage.what
        return replace(damage, what=what, is_found=True, commit=commit, source="the journal")
    if not is_newest:
        commit = None if before is None else before.commit
        return replace(damage, is_found=True, commit=commit, source="the entry before it")
    for source in sources:
        commit = source.head(*damage.ref)
        if commit is not None:
            return replace(damage, is_found=True, commit=commit, source=source.url)
    if is_announcing and damage.sequence:
        return replace(damage, is_found=True, source="the journal: it was a deletion")
    return damage

"""Checks what a store keeps besides data: journal, purges, settings, locations of merged packs.

It only reads. ``lodefs repair`` restores what is found here, so each finding names the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lodefs.chunkstore.errors import Corrupt, NotFound, UnknownFormat
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.journal.removed_shards import is_damaged
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.pack_locations import locations_of
from lodefs.chunkstore.repair.journal_repair import JournalRepair
from lodefs.chunkstore.repair.purge_repair import listed_purges, purge_problems
from lodefs.chunkstore.repair.ref_repair import ref_damages
from lodefs.chunkstore.repo.repo_settings import SettingsLog

REPAIR = "`lodefs repair` restores it"


@dataclass(frozen=True, slots=True)
class StateProblem:
    """One lost or damaged document. ``remedy`` says what restores it, and from where."""

    key: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.what}; {self.remedy}"


def check_state(objects: ObjectStore, clock: Callable[[], float]) -> Iterator[StateProblem]:
    """Yields what is wrong. Raises: Unavailable, Denied."""
    parts: dict[str, Callable[[], Iterator[StateProblem]]] = {
        "journal, branches and tags": lambda: _refs(objects, clock),
        "purges": lambda: _purges(objects),
        "where packs lie": lambda: _locations(objects),
    }
    for what, check in parts.items():
        try:
            yield from check()
        except UnknownFormat as error:
            yield StateProblem(what, str(error), "verify and repair the store with that version")
    if is_damaged(objects):
        yield StateProblem(keys.REMOVED_SHARDS, "damaged", "`lodefs repair index` deletes it")


def _refs(objects: ObjectStore, clock: Callable[[], float]) -> Iterator[StateProblem]:
    journal = JournalRepair(objects, dry_run=True, clock=clock)
    journal.look()
    for key, what in sorted(journal.problems.items()):
        yield StateProblem(key, what, f"{REPAIR} from the rest of the journal")
    refs, damages = ref_damages(objects, journal.intents, journal.refs, [])
    for damage in damages:
        whence = f"from {damage.source}" if damage.is_found else "--from another store that has it"
        yield StateProblem(damage.key, f"{damage.what}, of {damage}", f"{REPAIR} {whence}")
    for repo in sorted({ref.repo for ref in refs}):
        yield from _settings(objects, repo)


def _purges(objects: ObjectStore) -> Iterator[StateProblem]:
    for key, what in sorted(purge_problems(listed_purges(objects)).items()):
        yield StateProblem(key, what, f"{REPAIR} from the packs")


def _settings(objects: ObjectStore, repo: str) -> Iterator[StateProblem]:
    log = SettingsLog(objects, repo)
    for info in list(objects.list(keys.settings(repo))):
        sequence = keys.settings_sequence(info.key)
        try:
            if sequence >= 0:
                log.entry(sequence)
        except NotFound:
            continue
        except Corrupt as error:
            remedy = "`lodefs repair` replaces it by empty settings: set retention and quota again"
            yield StateProblem(info.key, f"damaged: {error}", remedy)


def _locations(objects: ObjectStore) -> Iterator[StateProblem]:
    """Checks that the locations of merged packs are known, and that the packs exist."""
    return (StateProblem(*problem) for problem in locations_of(objects).tables.problems())

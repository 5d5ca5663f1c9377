"""A repository that somebody removed in the bucket itself, behind the back of lodefs.

A collection knows of its branches and tags, and stops: their logs may only be lost for now, and
what they lead to with them. That they were removed on purpose somebody has to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.maintenance.writers import WriterCheck, newest_of
from lodefs.chunkstore.repo.store import Store, require_there

WORKERS = 16


def forget_removed(
    store: Store, repo: str, name: str | None = None, clock: Callable[[], float] = time.time
) -> list[RefName]:
    """Says of all branches and tags of a repository (or those of one name) whose logs are gone that
    they are deleted, by an entry each, and gives them; none, if no collection and no writer knows
    of any."""
    require_there(store.objects)
    store.ensure_writable()
    journal = StoreJournal(store.objects, clock)
    ledger = journal.ledger()
    with ThreadPoolExecutor(WORKERS, "lodefs-rm") as executor:
        found = WriterCheck(store, journal, executor).look(ledger, *newest_of(journal))
    known = {**ledger.refs, **found.refs}
    for intent in found.intents:
        known[intent.ref] = max(intent.sequence, known.get(intent.ref, -1))
    refs = store.refs(repo)
    gone: list[RefName] = []
    for ref, sequence in sorted(known.items()):
        is_meant = ref.repo == repo and name in (None, ref.name)
        if is_meant and not refs.has(ref.kind, ref.name, sequence):
            refs.delete_at(ref.kind, ref.name, sequence)
            gone.append(ref)
    return gone

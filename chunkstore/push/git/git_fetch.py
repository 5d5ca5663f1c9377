"""A process that imports one commit of Git into a store, for a node.

Standard input has a StorePlace and a GitOrder, standard output gets a GitOutcome.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from lodefs.chunkstore.errors import Conflict
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign import git
from lodefs.chunkstore.protocol.orders.git_orders import GitOrder, GitOutcome
from lodefs.chunkstore.protocol.wire import failure_of
from lodefs.chunkstore.push.git.git_process import MEMORY_BYTES_MAX, GitLimits
from lodefs.chunkstore.push.git.git_repository import GitAccess, GitRepository
from lodefs.chunkstore.push.git.import_git import GitSource, import_git, imported
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.push.store_process import store_of_parent, tell
from lodefs.chunkstore.repo.store import Store, open_store
from lodefs.chunkstore.system.processes import limit_memory

ATTEMPTS_MAX = 5  # while other nodes import commits of the same repository


def main() -> None:
    limit_memory(MEMORY_BYTES_MAX)
    try:
        with store_of_parent() as (objects, place):
            order = from_json(sys.stdin.buffer.readline(), GitOrder)
            outcome = GitOutcome(fetch(open_store(objects), Path(place.index_dir), order))
    except Exception as error:  # noqa: BLE001 - the proxy must hear of it
        outcome = GitOutcome(failure=failure_of(error))
    tell(outcome)


def fetch(store: Store, index_dir: Path, order: GitOrder) -> str:
    """Imports what an order names, unless the store has it, and returns the id of Git. Raises: as
    ``import_git``."""
    credentials = Path(order.credentials_file) if order.credentials_file is not None else None
    limits = GitLimits(size_bytes_max=order.size_bytes_max)
    access = GitAccess(Path(order.directory), limits, credentials)
    commit = GitRepository(order.url, access).resolve(order.rev)
    source = GitSource(order.url, commit, order.lfs_repos)
    options = PushOptions(message="", author="", time_s=int(time.time()), index_dir=index_dir)
    last: Conflict | None = None
    for _ in range(ATTEMPTS_MAX):
        if imported(store, order.repo, commit, submodules=False) is not None:
            return commit
        try:
            return import_git(store, source, access, order.repo, git.BRANCH, options).git_commit
        except Conflict as error:
            last = error
    assert last is not None
    raise last

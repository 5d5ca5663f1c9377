"""``lodefs.du``: what repositories and revisions take in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lodefs.api.sessions import opened
from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.names import Target, parse_target
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.maintenance.accounts import RevisionAccount, StoreAccount


def du(
    target: str | Target | None = None,
    *,
    progress: Progress | None = None,
    store: str | None = None,
    session: Session | None = None,
) -> StoreAccount | RevisionAccount:
    """What the store's repositories take, the one first whose deletion would free most; with
    ``REPO`` that one alone; of ``REPO@REV`` what that revision takes. Sizes are in bytes.

    ``progress`` is counted up meanwhile. ``store`` and ``session``: as of ``push``. It reads all
    commits and directories of the store, and no data. Raises: NotFound, Corrupt, InvalidInput.
    """
    from lodefs.chunkstore.maintenance.accounts import revision_account, store_account

    found = parse_target(target) if isinstance(target, str) else target
    with opened(session, store=store) as settings:
        if found is None:
            return store_account(settings.store, progress)
        settings.store.require_repo(found.repo)
        if found.rev is not None:
            return revision_account(settings.store, found.repo, found.rev, progress)
        account = store_account(settings.store, progress)
        account.repos[:] = [one for one in account.repos if one.repo == found.repo]
        if not account.repos:
            raise NotFound(f"{found.repo} has no branches and tags")
        return account

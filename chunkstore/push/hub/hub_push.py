"""A push from the Hugging Face Hub: one commit of it, which keeps the hub's id and ETags.

The files are read as from any file system of fsspec. The tags are symlinks of a second commit
(chunkstore/format/foreign/hub.py, docs/decisions/0091).
"""

from __future__ import annotations

from contextlib import closing

from lodefs.chunkstore.errors import Denied
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.format.names import CommitId, parse_id
from lodefs.chunkstore.push.hub.growing_branch import delete_branch
from lodefs.chunkstore.push.hub.hub_listing import (
    HubCommit,
    files_of,
    has_tags,
    keep_tags,
    options_of,
    parse_commit,
    store_listing,
)
from lodefs.chunkstore.push.push import PushResult, push
from lodefs.chunkstore.push.remote.remote_files import open_remote
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress


def push_hub(
    store: Store,
    url: str,
    repo: str,
    branch: str,
    options: PushOptions,
    progress: Progress | None = None,
) -> PushResult:
    """Commits the repository of the hub at ``hf://ORG/NAME@REV``, at the commit of that revision
    now, to a branch. The commit keeps the hub's id and ETags if it has the whole repository.
    Raises: as ``push``."""
    pinned = _pinned(url)
    of_hub = parse_commit(pinned)
    named = options_of(of_hub, options, options.message or f"{url} as of {of_hub.sha[:12]}")
    result = push(store, pinned, repo, branch, named, progress)
    is_whole = not (of_hub.path or result.excluded or result.skipped)
    if is_whole and not options.dry_run:
        _tag(store, of_hub, repo, CommitId(parse_id(result.commit)), options)
    return result


def _pinned(url: str) -> str:
    """Returns the URL of the commit that a revision is now. Raises: NotFound, Denied,
    Unavailable."""
    try:
        with closing(open_remote(url)) as remote:
            return remote.location
    except Denied as error:  # the hub says the same of what does not exist
        raise type(error)(
            f"{error}: check the name; HF_TOKEN or `hf auth login` gives a token, and access to "
            "what is gated is asked for on the hub"
        ) from error


def _tag(
    store: Store, of_hub: HubCommit, repo: str, commit: CommitId, options: PushOptions
) -> None:
    """Keeps the tags of a commit, unless an equal commit has them already."""
    if not has_tags(store, repo, of_hub.sha):
        listing = store_listing(store, of_hub, repo, files_of(of_hub), options)
        keep_tags(store, of_hub, repo, commit, listing, options)
        delete_branch(store, repo, hub.listing_branch_of(of_hub.sha))

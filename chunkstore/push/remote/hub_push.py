"""A push from the Hugging Face Hub: one commit of it, which keeps the hub's id and ETags.

The files are read as from any file system of fsspec. The tags are symlinks of a second commit
(chunkstore/format/hub.py, docs/decisions/0091).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.format import hub
from lodefs.chunkstore.format.names import CommitId, parse_id
from lodefs.chunkstore.push.changes.change import PutLink
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.push import PushResult, push
from lodefs.chunkstore.push.remote.fsspec_files import error_of
from lodefs.chunkstore.push.remote.remote_files import open_remote
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store
from lodefs.chunkstore.system.progress import Progress

SCHEME = "hf://"
_PINNED = re.compile(
    rf"{SCHEME}(?:(datasets|spaces|models)/)?([\w.-]+(?:/[\w.-]+)?)@([0-9a-f]{{40}})(?:/(.*))?\Z"
)


class HubCommit(NamedTuple):
    """A place at one commit of a repository of the hub. ``kind`` is model, dataset or space."""

    kind: str
    repo_id: str
    sha: str
    path: str

    @property
    def repo_url(self) -> str:
        """The URL of the repository, without the commit."""
        return f"{SCHEME}{'' if self.kind == 'model' else f'{self.kind}s/'}{self.repo_id}"


def parse_commit(url: str) -> HubCommit:
    """Parses ``hf://[datasets/|spaces/][ORG/]NAME@COMMIT[/PATH]``. Raises: InvalidInput."""
    found = _PINNED.match(url)
    if found is None:
        raise InvalidInput(f"{url} names no commit of a repository on the Hugging Face Hub")
    return HubCommit((found[1] or "models")[:-1], found[2], found[3], found[4] or "")


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
    metadata = {**dict(options.metadata), hub.SOURCE: of_hub.repo_url, hub.COMMIT: of_hub.sha}
    named = replace(
        options,
        message=options.message or f"{url} as of {of_hub.sha[:12]}",
        metadata=tuple(sorted(metadata.items())),
    )
    result = push(store, pinned, repo, branch, named, progress)
    is_whole = not (of_hub.path or result.excluded or result.skipped)
    if is_whole and not options.dry_run:
        keep_tags(store, of_hub, repo, result.commit, options)
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


def keep_tags(
    store: Store, of_hub: HubCommit, repo: str, commit: str, options: PushOptions
) -> None:
    """Keeps the hub's ETags of a commit that was made from ``of_hub``, unless an equal commit has
    them already. Raises: as ``commit_changes``; errors of the hub."""
    base = CommitId(parse_id(commit))
    branch = hub.branch_of(of_hub.sha)
    head = store.refs(repo).latest(BRANCHES, branch)
    if head is not None and head.commit is not None and head.commit != base:
        return
    tags = [PutLink(path, etag.encode()) for path, etag in etags(of_hub)]
    named = replace(
        options, message=f"ETags of {of_hub.repo_url}@{of_hub.sha}", metadata=(), exclude=()
    )
    commit_changes(store, repo, branch, tags, named, base=base)


def etags(of_hub: HubCommit) -> Iterator[tuple[str, str]]:
    """Yields the paths of all files of a commit, and their ETags on the hub. Raises: Unavailable,
    Denied, NotFound."""
    from huggingface_hub import HfApi, HfFileSystem  # an extra installs it

    filesystem = HfFileSystem(skip_instance_cache=True)  # it knows the settings of fsspec
    api = HfApi(endpoint=filesystem.endpoint, token=filesystem.token)
    try:
        for one in api.list_repo_tree(
            of_hub.repo_id, recursive=True, revision=of_hub.sha, repo_type=of_hub.kind
        ):
            if hasattr(one, "blob_id"):
                yield one.path, one.lfs.sha256 if one.lfs is not None else one.blob_id
    except Exception as error:
        raise error_of(error, f"{of_hub.repo_url}@{of_hub.sha}") from error

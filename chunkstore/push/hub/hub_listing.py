"""What the Hugging Face Hub lists of a commit: its files with their tags, and a tree of these.

The tree has a symlink for each file (chunkstore/format/foreign/hub.py). It is made in batches, so
that the memory does not grow with the number of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.format.foreign.hub import Tag
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.push.changes.change import CopyFrom, names_of
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.hub.growing_branch import growing_branch
from lodefs.chunkstore.push.remote.fsspec_files import error_of
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store

SCHEME = "hf://"
BATCH_FILES = 20_000
# Also directories; a list whose pages lead in a circle has no end
FILES_MAX = 10_000_000
_PINNED = re.compile(
    rf"{SCHEME}(?:(datasets|spaces|models)/)?([\w.-]+(?:/[\w.-]+)?)@([0-9a-f]{{40}})(?:/(.*))?\Z"
)


class HubCommit(NamedTuple):
    """A place at one commit of a repository of the hub. ``kind`` is model, dataset or space."""

    kind: str
    repo_id: str
    sha: str
    path: str = ""

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


class HubFile(NamedTuple):
    """A file as the hub lists it."""

    path: str
    tag: Tag


def files_of(of_hub: HubCommit) -> Iterator[HubFile]:
    """Yields all files of a commit as the hub lists them. Raises: InvalidInput for a list that is
    too long; Unavailable, Denied, NotFound."""
    from huggingface_hub import HfApi, HfFileSystem  # an extra installs it

    filesystem = HfFileSystem(skip_instance_cache=True)  # it knows the settings of fsspec
    api = HfApi(endpoint=filesystem.endpoint, token=filesystem.token)
    try:
        listed = api.list_repo_tree(
            of_hub.repo_id, recursive=True, revision=of_hub.sha, repo_type=of_hub.kind
        )
        for number, one in enumerate(listed):
            if number == FILES_MAX:
                what = f"{of_hub.repo_url} has more than {FILES_MAX:,} files"
                raise InvalidInput(f"{what}, the most that lodefs keeps tags of")
            if hasattr(one, "blob_id"):
                etag = one.lfs.sha256 if one.lfs is not None else one.blob_id
                yield HubFile(one.path, hub.checked_tag(etag, one.size))
    except Exception as error:
        raise error_of(error, f"{of_hub.repo_url}@{of_hub.sha}") from error


def store_listing(
    store: Store, of_hub: HubCommit, repo: str, files: Iterable[HubFile], options: PushOptions
) -> CommitId:
    """Commits the tags of files to the listing branch of a commit, and returns the commit that has
    all. Raises: InvalidInput for paths and tags that cannot be kept; what the store raises."""
    named = replace(
        options,
        message=f"ETags of {of_hub.repo_url}@{of_hub.sha}",
        metadata=((hub.SOURCE, of_hub.repo_url),),
        exclude=(),
    )
    left = iter(files)
    with growing_branch(store, repo, hub.listing_branch_of(of_hub.sha), named) as branch:
        is_first = True
        while (batch := list(islice(left, BATCH_FILES))) or is_first:
            for path, tag in batch:
                branch.staging.put_link(names_of(path), hub.encode_tag(tag))
            commit_id, is_first = branch.commit(), False
    return commit_id


def has_tags(store: Store, repo: str, sha: str) -> bool:
    """Whether a repository has the tags of a commit of the hub. Their branch may end in the commit
    that they are for."""
    head = store.refs(repo).latest(BRANCHES, hub.branch_of(sha))
    if head is None or head.commit is None:
        return False
    return hub.COMMIT not in dict(store.commit(repo, head.commit).metadata)


def options_of(of_hub: HubCommit, options: PushOptions, message: str) -> PushOptions:
    """Returns the options of a commit that keeps the hub's id."""
    metadata = {**dict(options.metadata), hub.SOURCE: of_hub.repo_url, hub.COMMIT: of_hub.sha}
    return replace(options, message=message, metadata=tuple(sorted(metadata.items())))


def keep_tags(
    store: Store,
    of_hub: HubCommit,
    repo: str,
    commit: CommitId,
    listing: CommitId,
    options: PushOptions,
) -> None:
    """Keeps the hub's tags of a commit that was made from ``of_hub``; ``listing`` is a commit that
    has them. Raises: as ``commit_changes``."""
    named = replace(
        options, message=f"ETags of {of_hub.repo_url}@{of_hub.sha}", metadata=(), exclude=()
    )
    tags = [CopyFrom(Spec(repo, listing.hex()), "")]
    commit_changes(store, repo, hub.branch_of(of_hub.sha), tags, named, base=commit)

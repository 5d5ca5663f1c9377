"""``lodefs.import_git`` commits the files of a Git commit."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from lodefs.api.pushing import CommitOptions, opened_for, push_options
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.foreign.git import IMPORT_BYTES_MAX
from lodefs.chunkstore.format.foreign.git_url import (
    HEAD,
    GitUrl,
    check_rev,
    is_git_url,
    parse_git_url,
    split_rev,
)
from lodefs.chunkstore.format.names import Spec, check_repo
from lodefs.chunkstore.system.progress import Progress
from lodefs.chunkstore.system.safe_open import make_own
from lodefs.cli.parameters import option
from lodefs.cli.parsed_type import SIZE
from lodefs.settings.session import Session, revision_of

if TYPE_CHECKING:
    from lodefs.chunkstore.push.git.git_repository import GitAccess, GitRepository
    from lodefs.chunkstore.push.git.import_git import GitResult
    from lodefs.chunkstore.push.limits import AllowRemovals


def import_git(
    url: str | os.PathLike[str],
    repo: str | Spec,
    *,
    recurse_submodules: Annotated[
        bool, option("Import submodules, too, as directories of their commits.", is_flag=True)
    ] = False,
    lfs_repo: Annotated[
        Iterable[str],
        option(
            "Look for objects of Git LFS in the LFS server of REPO [that of the import].",
            multiple=True,
            metavar="REPO",
        ),
    ] = (),
    fetch_lfs: Annotated[
        bool,
        option("Fetch objects of Git LFS that the store lacks from the Git server.", is_flag=True),
    ] = False,
    credentials: Annotated[
        str | os.PathLike[str] | None,
        option("A file with lines https://USER:TOKEN@HOST.", metavar="FILE"),
    ] = None,
    size_max: Annotated[
        int, option("Refuse what has more bytes in Git itself [4GiB].", type=SIZE)
    ] = IMPORT_BYTES_MAX,
    allow_removals: Annotated[
        bool | AllowRemovals,
        option(
            "Commit even if that removes more than half of the files of the branch.",
            is_flag=True,
        ),
    ] = False,
    progress: Progress | None = None,
    **options: Unpack[CommitOptions],
) -> GitResult:
    """Commits the files of a Git commit, ``URL[@REV]`` or ``DIRECTORY[@REV]``, to a branch,
    ``REPO[@BRANCH]``; they become its whole content. ``REPO@git:ID`` finds the commit by Git's id.

    Pointers of Git LFS become files: their objects lie in the store, in the LFS servers of the
    repositories ``lfs_repo`` (by default REPO itself), and no byte of them is read or sent.
    ``fetch_lfs``: fetch the objects that the store lacks from the Git server's own LFS server.
    ``recurse_submodules``: import submodules, too. ``credentials``: a file in the format of
    git-credential-store. ``size_max`` bounds what Git sends. The rest: as for ``push``.

    Raises: NotFound for a revision, or for objects of Git LFS that the store lacks, with their
    paths; Denied, Unavailable for the Git server; TooLarge; Conflict; TooManyRemovals.
    """
    from lodefs.chunkstore.push.git.import_git import GitSource
    from lodefs.chunkstore.push.git.import_git import import_git as import_commit

    spec = revision_of(repo)
    place, rev = place_of(os.fspath(url))
    repos = tuple(check_repo(one) for one in lfs_repo)
    with opened_for(options) as settings:
        core = push_options(settings, options, allow_removals=allow_removals)
        core = replace(core, author=options.get("author") or "")
        access = access_of(settings, size_max, None if credentials is None else Path(credentials))

        def open_submodule(module: GitUrl) -> GitRepository:
            from lodefs.chunkstore.push.git.git_repository import GitRepository

            return GitRepository(str(module), access)

        modules = open_submodule if recurse_submodules else None
        source = GitSource(place, rev, repos, modules, fetch_lfs)
        return import_commit(settings.store, source, access, spec.repo, spec.rev, core, progress)


def place_of(text: str) -> tuple[str, str]:
    """Returns the URL of a repository, or the absolute path of one, and the revision. Raises:
    InvalidInput, NotFound."""
    if is_git_url(text):
        url, rev = split_rev(text)
        return str(parse_git_url(url)), rev
    if "://" in text or text.startswith("-"):
        raise InvalidInput(f"{text[:200]!r}: write https://HOST/PATH, ssh://HOST/PATH or a path")
    directory, rev = (text, HEAD) if os.path.isdir(text) else split_rev(text)
    if not os.path.isdir(directory):
        raise NotFound(f"{directory} is neither a directory nor a URL (ssh://git@HOST/PATH)")
    return os.path.abspath(directory), check_rev(rev)


def access_of(settings: Session, size_bytes_max: int, credentials: Path | None) -> GitAccess:
    """Returns how this user reads Git repositories. Raises: NotFound, Denied for the file of
    credentials."""
    from lodefs.chunkstore.push.git.git_process import GitLimits
    from lodefs.chunkstore.push.git.git_repository import GitAccess
    from lodefs.chunkstore.system.private_file import check_private

    if credentials is not None:
        credentials = credentials.absolute()
        check_private(credentials, f"credentials {credentials}")
    below = settings.make_home_cache() / "git"
    make_own(below)
    return GitAccess(below, GitLimits(size_bytes_max=size_bytes_max), credentials)

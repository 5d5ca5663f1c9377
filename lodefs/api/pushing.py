"""``lodefs.push`` commits a directory; ``commit_changes``, ``merge`` and ``revert`` also commit."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from lodefs.api.parts.executors import EXECUTORS
from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format.names import (
    CommitId,
    Spec,
    check_ref_name,
    check_revision,
    split_path,
)
from lodefs.chunkstore.system.progress import Progress
from lodefs.cli.parameters import option
from lodefs.settings.session import Session, Where, opened, revision_of, spec_of

if TYPE_CHECKING:
    from lodefs.chunkstore.format.commit import Commit
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.changes.change import Change
    from lodefs.chunkstore.push.limits import AllowRemovals
    from lodefs.chunkstore.push.push import PushResult
    from lodefs.chunkstore.push.session import PushOptions


class CommitFields(Where, total=False):
    """The message and metadata of a commit, and the store that it goes to."""

    message: Annotated[str, option("The commit's message.", "-m", "--message", default="")]
    author: Annotated[str | None, option("The commit's author [the user's name].")]
    metadata: Annotated[
        Mapping[str, str] | Iterable[str],
        option(
            "Metadata of the commit; log --meta searches it.",
            "--meta",
            multiple=True,
            metavar="KEY=VALUE",
        ),
    ]


class CommitOptions(CommitFields, total=False):
    """Options of all that commits."""

    dry_run: Annotated[
        bool, option("Write nothing; show what would change.", "-n", "--dry-run")
    ]  # the result says what would change


class ReaderOptions(CommitOptions, total=False):
    """Options for reading local files. ``progress`` is updated during the call."""

    workers: Annotated[int | None, option("Processes that read and compress.", between=(0, 256))]
    progress: Progress | None
    rate_bytes_s: float | None  # limit for reading what is pushed


class ScanOptions(TypedDict, total=False):
    """Options for which files of a source are read."""

    exclude: Annotated[
        Iterable[str | bytes],
        option("Leave out files that match, as in .gitignore.", multiple=True, metavar="PATTERN"),
    ]
    skip_unreadable: Annotated[bool, option("Leave out files that cannot be read or that change.")]
    private: Annotated[
        str,
        option(
            "Push files that others may not read, skip them, or refuse the push [push].",
            choices=("push", "skip", "refuse"),
            default="push",
        ),
    ]


class SourceOptions(ReaderOptions, ScanOptions, total=False):
    """Options for how local files are read."""


class PlanOptions(CommitFields, ScanOptions, total=False):
    """Options for planning a push in parts."""

    progress: Progress | None


def push(
    directory: str | os.PathLike[str],
    repo: str | Spec,
    *,
    allow_removals: Annotated[
        bool | AllowRemovals,
        option(
            "Push even if that removes more than half of the files of the branch, or of PATH.",
            is_flag=True,
        ),
    ] = False,
    check: Annotated[
        bool,
        option("Check that the store has all objects of the commit, and store lost ones again."),
    ] = False,
    executor: Annotated[
        str | Executor | None,
        option(f"Read with {EXECUTORS}"),
    ] = None,
    **options: Unpack[SourceOptions],
) -> PushResult:
    """Commits a directory, or the files of a URL (s3://BUCKET/PREFIX, hf://ORG/NAME@REV), to a
    branch, ``REPO[@BRANCH]``; it becomes the whole content.

    ``allow_removals``: push even if that removes more than half of the branch's files; or a
    function that decides. ``check``: check that the store has all objects of the commit, and store
    lost ones again. ``message``, ``author`` and ``metadata`` (keys and values): of the commit.
    ``exclude``: patterns, as in .gitignore, of files to leave out, besides those in files
    ``.lodefsignore``. ``skip_unreadable``: leave out files that cannot be read. ``private``:
    "push", "skip" or "refuse" files that others may not read. ``dry_run``: write nothing to the
    store; the result says what would change. ``workers``: processes that read. ``executor``: one of
    ``concurrent.futures``, or its name, whose workers read instead (docs/many-machines.md).
    ``rate_bytes_s``: read no faster. ``progress`` is updated during the call. ``store``: a URL, by
    default that of the settings; ``session``: the settings themselves.

    The call commits all or nothing. After an error, repeat it: the data sent so far stays.
    Raises: TooManyRemovals, Conflict, SourceChanged, InvalidInput, NotADirectory, Unavailable.
    """
    from lodefs.chunkstore.push.dvc.dvc_files import dvc_url
    from lodefs.chunkstore.push.push import push as push_directory
    from lodefs.chunkstore.push.remote.remote_files import is_url

    spec = spec_of(repo)
    if spec.path:
        raise InvalidInput(
            f"{spec}: push takes REPO[@BRANCH], without a path: the directory becomes the whole "
            "branch; lodefs.commit_changes puts one at a path (lodefs.changes.PutDirectory)"
        )
    found = dvc_url(directory) or directory
    place = os.fspath(found) if is_url(found) else Path(found)
    if isinstance(place, Path) and place.is_file():
        raise NotADirectory(f"{place} is a file: push takes the directory that contains it")
    if executor is not None:
        from lodefs.api.parts.push_plans import push_with

        return push_with(executor, place, spec, allow_removals, {**options, "check": check})
    with opened_for(options) as settings:
        core = push_options(settings, options, allow_removals=allow_removals, check=check)
        progress = options.get("progress")
        if isinstance(place, str) and place.startswith("hf://"):
            from lodefs.chunkstore.push.hub.hub_push import push_hub

            return push_hub(settings.store, place, spec.repo, spec.rev, core, progress)
        return push_directory(settings.store, place, spec.repo, spec.rev, core, progress)


def commit_changes(
    repo: str | Spec,
    changes: Iterable[Change],
    *,
    base: str | None = None,
    allow_removals: bool | AllowRemovals = True,
    **options: Unpack[SourceOptions],
) -> ChangesResult:
    """Commits changes (``lodefs.changes``: Put, PutLink, PutDirectory, MakeDirectory, Remove,
    Rename, CopyFrom) to a branch, ``REPO[@BRANCH]``, in their order. Files that do not change are
    not read. A missing branch is created.

    ``base``: the revision that the changes are meant for; by default the head of the branch. What
    others have committed since is kept, if the paths are disjoint. ``dry_run``: write nothing; the
    result says what would change. The rest: as for ``push``.

    The call commits all or nothing. Raises: Conflict, with the paths that others changed too;
    NotFound, NotADirectory, InvalidInput for impossible changes; TooManyRemovals, Unavailable.
    """
    from lodefs.chunkstore.push.changes.commit_changes import commit_changes as commit

    spec = revision_of(repo)
    with opened_for(options) as settings:
        core = push_options(settings, options, allow_removals=allow_removals)
        found, progress = settings.store, options.get("progress")
        at = None if base is None else found.locate(Spec(spec.repo, base))[1]
        return commit(found, spec.repo, spec.rev, [*changes], core, base=at, progress=progress)


def merge(
    spec: str | Spec,
    branch: str,
    *,
    ours: Annotated[
        Iterable[str | bytes],
        option("Decide conflicts below PATH in favour of BRANCH.", multiple=True, metavar="PATH"),
    ] = (),
    theirs: Annotated[
        Iterable[str | bytes],
        option("Decide conflicts below PATH in favour of REV.", multiple=True, metavar="PATH"),
    ] = (),
    **options: Unpack[CommitOptions],
) -> ChangesResult:
    """Merges the changes of ``REPO@REV`` into a branch of REPO: moves the branch to REV if REV
    follows it, else commits a merge of both. Contents of a file are never merged.

    A path that was changed differently on each side stays as in the branch if it is one of
    ``ours`` or below one, and becomes as in REV with ``theirs``. The nearest path counts; "" is
    everything. The rest: as for ``push``.

    Raises: Diverged, with conflicting paths that neither decides; InvalidInput; NotFound.
    """
    from lodefs.chunkstore.push.changes.merge_branch import merge_branch

    source = revision_of(spec)
    check_ref_name(branch)
    choices = choices_of(ours, theirs)
    message = options.get("message") or f"merge {source.rev} into {branch}"
    with opened_for(options) as settings:
        core = push_options(settings, {**options, "message": message})
        source, other = settings.store.locate(source)
        return merge_branch(settings.store, source.repo, branch, other, core, choices=choices)


def revert(
    repo: str | Spec,
    rev: str,
    *,
    parent: Annotated[
        int | None,
        option("For a merge: the parent that BRANCH goes back to, from 1.", between=(1, None)),
    ] = None,
    **options: Unpack[CommitOptions],
) -> ChangesResult:
    """Undoes the commit ``rev`` of REPO by a commit to a branch, ``REPO[@BRANCH]``: each path that
    ``rev`` changed becomes as it was before. Undoing the first commit removes all its files.
    ``parent``: for a merge, the number of the parent to go back to, from 1. The rest: as for
    ``push``.

    Raises: Diverged, with the paths that were changed since; InvalidInput for a merge without
    ``parent``; NotFound.
    """
    from lodefs.chunkstore.push.changes.revert_commit import revert_commit

    spec = revision_of(repo)
    with opened_for(options) as settings:
        found = settings.store
        source, at = found.locate(Spec(spec.repo, check_revision(rev)))
        message = options.get("message") or _revert_message(found.commit(source.repo, at), at)
        core = push_options(settings, {**options, "message": message})
        return revert_commit(found, source.repo, spec.rev, at, core, parent=parent)


def _revert_message(commit: Commit, commit_id: CommitId) -> str:
    subject = next(iter(commit.message.splitlines()), "")
    return f"revert {commit_id.hex()[:12]}{f': {subject}' if subject else ''}"


def opened_for(options: Where) -> AbstractContextManager[Session]:
    """Returns a session for the settings that options name, for a block."""
    return opened(options.get("session"), store=options.get("store"))


def push_options(
    settings: Session,
    options: SourceOptions | CommitOptions | Where,
    *,
    allow_removals: bool | AllowRemovals = True,
    check: bool = False,
) -> PushOptions:
    """Returns the push options of the core library. Raises: InvalidInput."""
    from lodefs.chunkstore.format.metadata import new_metadata
    from lodefs.chunkstore.push.ignore_rules import check_patterns
    from lodefs.chunkstore.push.scanner import Private
    from lodefs.chunkstore.push.session import PushOptions

    given: Mapping[str, Any] = options
    author, private = given.get("author"), given.get("private", "push")
    exclude = tuple(map(os.fsencode, given.get("exclude", ())))
    check_patterns(exclude)
    if private not in set(Private):
        raise InvalidInput(f'private is "push", "skip" or "refuse", not {private!r}')
    return PushOptions(
        message=given.get("message", ""),
        author=user_name() if author is None else author,
        time_s=int(time.time()),
        index_dir=settings.make_home_cache() / "push",
        metadata=new_metadata(given.get("metadata", ())),
        skip_unreadable=given.get("skip_unreadable", False),
        workers=given.get("workers"),
        check_packs=check,
        allow_removals=allow_removals if callable(allow_removals) else lambda _: allow_removals,
        exclude=exclude,
        private=Private(private),
        rate_bytes_s=given.get("rate_bytes_s"),
        dry_run=given.get("dry_run", False),
    )


def choices_of(
    ours: Iterable[str | bytes], theirs: Iterable[str | bytes]
) -> dict[tuple[bytes, ...], bool]:
    """Returns, by path, whether it is one of ``theirs``. Raises: InvalidInput for a path that is in
    both."""
    found: dict[tuple[bytes, ...], bool] = {}
    for paths, is_theirs in ((ours, False), (theirs, True)):
        for path in paths:
            names = tuple(split_path(os.fsencode(path)))
            if found.setdefault(names, is_theirs) != is_theirs:
                shown = os.fsdecode(path)
                raise InvalidInput(f"{shown!r} is in both ours and theirs: name it in one of them")
    return found


def is_directory(
    branch: Spec, path: bytes, *, store: str | None = None, session: Session | None = None
) -> bool:
    """Whether a branch has a directory at a path now; False if there is no such branch."""
    from lodefs.chunkstore.repo.history import has_directory

    with opened(session, store=store) as settings:
        try:
            return has_directory(settings.store, Spec(branch.repo, branch.rev, path))
        except NotFound:
            return False


def user_name() -> str:
    """Returns the user's name; "unknown" for a user id without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"

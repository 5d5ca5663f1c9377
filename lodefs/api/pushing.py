"""``lodefs.push``: a commit from a directory; ``lodefs.commit_changes``: one from changes."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lodefs.api.sessions import opened, revision_of, spec_of
from lodefs.chunkstore.errors import InvalidInput, NotADirectory, NotFound
from lodefs.chunkstore.format.names import Spec, check_ref_name, split_path
from lodefs.chunkstore.system.progress import Progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.change_counts import AllowRemovals
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.changes.change import Change
    from lodefs.chunkstore.push.push import PushResult
    from lodefs.chunkstore.push.scanner import Private


def push(
    directory: str | os.PathLike[str],
    repo: str | Spec,
    *,
    message: str = "",
    author: str | None = None,
    skip_unreadable: bool = False,
    allow_removals: bool | AllowRemovals = False,
    check: bool = False,
    exclude: Iterable[str | bytes] = (),
    private: str = "push",
    dry_run: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
    store: str | None = None,
    session: Session | None = None,
) -> PushResult:
    """Commits a directory to a branch, ``REPO[@BRANCH]``; it becomes all of the branch.

    ``allow_removals``: also if that removes more than half of the branch's files; or a function
    that is asked. ``check``: look for all that the commit names, and store again what the store
    has lost. ``exclude``: patterns of gitignore(5) of what is left out, as is what files
    ``.lodefsignore`` name. ``private``: "push", "skip" or "refuse" files that others may not read.
    ``dry_run``: nothing is written to the store; the result says what would be. ``workers``:
    processes that read. ``progress`` is counted up meanwhile. ``store``: its URL, else that of the
    settings; ``session``: the settings themselves.

    All or nothing is committed; after an error, repeat it: what was sent stays.
    Raises: TooManyRemovals, Conflict, SourceChanged, InvalidInput, NotADirectory, Unavailable.
    """
    from lodefs.chunkstore.push.push import PushOptions
    from lodefs.chunkstore.push.push import push as push_directory

    spec = spec_of(repo)
    if spec.path:
        raise InvalidInput(
            f"{spec}: push takes REPO[@BRANCH], without a path: the directory becomes the whole "
            "branch; lodefs.commit_changes puts one into a place (lodefs.changes.PutDirectory)"
        )
    place = Path(directory)
    if place.is_file():
        raise NotADirectory(f"{place} is a file: push takes the directory that it is in")
    with opened(session, store=store) as settings:
        options = PushOptions(
            message=message,
            author=author if author is not None else user_name(),
            time_s=int(time.time()),
            skip_unreadable=skip_unreadable,
            workers=workers,
            index_dir=_index_dir(settings),
            check_packs=check,
            allow_removals=_consent(allow_removals),
            exclude=_patterns(exclude),
            private=_private(private),
            dry_run=dry_run,
        )
        return push_directory(
            settings.store, place, spec.repo, spec.rev, options, progress or Progress()
        )


def commit_changes(
    repo: str | Spec,
    changes: Iterable[Change],
    *,
    message: str = "",
    author: str | None = None,
    base: str | None = None,
    exclude: Iterable[str | bytes] = (),
    private: str = "push",
    dry_run: bool = False,
    skip_unreadable: bool = False,
    allow_removals: bool | AllowRemovals = True,
    workers: int | None = None,
    progress: Progress | None = None,
    store: str | None = None,
    session: Session | None = None,
) -> ChangesResult:
    """Commits changes (``lodefs.changes``: Put, PutLink, PutDirectory, Remove, Rename, CopyFrom) to
    a branch, ``REPO[@BRANCH]``, in their order. What did not change is not read. A branch that does
    not exist is created.

    ``base``: the revision that the changes are meant for; by default where the branch is. What
    others have committed since is kept, as long as the paths are disjoint. ``dry_run``: nothing is
    written; the result says what would be. The rest: as of ``push``.

    All or nothing is committed. Raises: Conflict that names paths which others changed too;
    NotFound, NotADirectory, InvalidInput for what cannot be applied; TooManyRemovals, Unavailable.
    """
    from lodefs.chunkstore.push.changes.commit_changes import commit_changes as commit
    from lodefs.chunkstore.push.session import PushOptions

    spec = revision_of(repo)
    with opened(session, store=store) as settings:
        options = PushOptions(
            message=message,
            author=author if author is not None else user_name(),
            time_s=int(time.time()),
            skip_unreadable=skip_unreadable,
            workers=workers,
            index_dir=_index_dir(settings),
            allow_removals=_consent(allow_removals),
            exclude=_patterns(exclude),
            private=_private(private),
            dry_run=dry_run,
        )
        found = settings.store
        at = None if base is None else found.resolve(spec.repo, base)
        return commit(found, spec.repo, spec.rev, [*changes], options, base=at, progress=progress)


def merge(
    spec: str | Spec,
    branch: str,
    *,
    message: str = "",
    author: str | None = None,
    ours: Iterable[str | bytes] = (),
    theirs: Iterable[str | bytes] = (),
    dry_run: bool = False,
    store: str | None = None,
    session: Session | None = None,
) -> ChangesResult:
    """Brings what ``REPO@REV`` has changed into a branch of REPO: moves the branch there if REV
    follows it, else commits on both. Contents of a file are never merged.

    A path that was changed differently on each side is as the branch has it if it is one of
    ``ours``, or below one; as REV has it with ``theirs``. The nearest counts; "" is all of them.

    Raises: Diverged that names such paths which are in neither; InvalidInput; NotFound.
    """
    from lodefs.chunkstore.push.changes.merge_branch import merge_branch
    from lodefs.chunkstore.push.session import PushOptions

    source = revision_of(spec)
    check_ref_name(branch)
    choices = _choices(ours, theirs)
    with opened(session, store=store) as settings:
        options = PushOptions(
            message=message or f"merge {source.rev} into {branch}",
            author=author if author is not None else user_name(),
            time_s=int(time.time()),
            index_dir=_index_dir(settings),
            dry_run=dry_run,
        )
        other = settings.store.resolve(source.repo, source.rev)
        return merge_branch(settings.store, source.repo, branch, other, options, choices=choices)


def _choices(
    ours: Iterable[str | bytes], theirs: Iterable[str | bytes]
) -> dict[tuple[bytes, ...], bool]:
    found: dict[tuple[bytes, ...], bool] = {}
    for paths, is_theirs in ((ours, False), (theirs, True)):
        for path in paths:
            names = tuple(split_path(os.fsencode(path)))
            if found.setdefault(names, is_theirs) != is_theirs:
                shown = os.fsdecode(path)
                raise InvalidInput(f"{shown!r} is in both ours and theirs: one side can stay")
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


def _patterns(patterns: Iterable[str | bytes]) -> tuple[bytes, ...]:
    from lodefs.chunkstore.push.ignore_rules import check_patterns

    found = tuple(os.fsencode(pattern) for pattern in patterns)
    check_patterns(found)
    return found


def _private(word: str) -> Private:
    from lodefs.chunkstore.push.scanner import Private

    try:
        return Private(word)
    except ValueError:
        raise InvalidInput(f'private is "push", "skip" or "refuse", not {word!r}') from None


def _index_dir(settings: Session) -> Path:
    return settings.make_home_cache() / "push"


def _consent(allowed: bool | AllowRemovals) -> AllowRemovals:
    return (lambda _removals: bool(allowed)) if isinstance(allowed, bool) else allowed


def user_name() -> str:
    """The user's name; "unknown" for a user id without one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"

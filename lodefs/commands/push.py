"""``lodefs push``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from lodefs.api.push_places import STDIN, FileList, PushPlace, changes_for, changes_of_list
from lodefs.api.pushing import commit_changes, is_directory
from lodefs.api.pushing import push as push_directory
from lodefs.chunkstore.errors import TooManyRemovals
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.cli import push_report, text
from lodefs.cli.options import (
    examples,
    json_option,
    reject,
    session_command,
    spec_from,
    write_json,
)
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.change_counts import Removals
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.push import PushResult


EPILOG = examples(
    'lodefs push ./flickr30k vision/flickr30k -m "corrected captions"',
    "lodefs push ./flickr30k vision/flickr30k@experiment --dry-run",
    "lodefs push captions.csv vision/flickr30k:captions.csv    # one file; all else stays",
    "lodefs push ./new-images vision/flickr30k:images/2024     # a directory into a place",
    "lodefs push a.csv b.csv vision/flickr30k:tables/          # each under its name",
    "lodefs push ./flickr30k vision/flickr30k --exclude '*.tmp' --exclude /cache/",
    "make-captions | lodefs push - vision/flickr30k:captions.csv",
)


@dataclass(frozen=True, slots=True)
class _Words:
    """Options of one push."""

    message: str
    author: str | None
    skip_unreadable: bool
    check: bool
    workers: int | None
    dry_run: bool
    private: str
    exclude: list[bytes]


@click.command(epilog=EPILOG)
@click.argument("sources", metavar="SRC...", nargs=-1)
@click.argument("repo", metavar="REPO[@BRANCH][:PATH]")
@click.option("-m", "--message", default="", help="The commit's message.")
@click.option("--author", default=None, help="The commit's author [the user's name].")
@click.option("-n", "--dry-run", is_flag=True, help="Write nothing; say what would change.")
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Leave out what matches, as in .gitignore."
)
@click.option(
    "--exclude-from",
    multiple=True,
    type=click.File("rb"),
    metavar="FILE",
    help="Leave out what matches the patterns in FILE, one a line.",
)
@click.option(
    "--from-list",
    type=click.File("rb"),
    metavar="FILE",
    help="Push only the paths in FILE (-: standard input), one a line, below SRC.",
)
@click.option("--null", is_flag=True, help="The paths in --from-list end with NUL.")
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Leave out what cannot be read or changes.",
)
@click.option(
    "--private",
    type=click.Choice(["push", "skip", "refuse"]),
    default="push",
    help="Of files that others may not read: push, leave out, or do not push at all [push].",
)
@click.option(
    "--allow-removals",
    is_flag=True,
    help="Push also if that removes more than half of the files of the branch, or of PATH.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Look for all that the commit names, and store again what the store has lost.",
)
@click.option("--workers", type=click.IntRange(0, 256), help="Processes that read and compress.")
@json_option
@session_command(store=True)
def push(
    session: Session,
    sources: tuple[str, ...],
    repo: str,
    from_list: BinaryIO | None,
    null: bool,
    exclude: tuple[str, ...],
    exclude_from: tuple[BinaryIO, ...],
    allow_removals: bool,
    as_json: bool,
    **words: Any,
) -> None:
    """Commit SRC to a branch of REPO (default: main).

    One directory, without PATH, becomes the whole content of the branch: files that are not in it
    are removed from the branch. With PATH all other files stay: a directory becomes PATH, a file
    is put at PATH. Several sources, or one before a PATH that ends with a slash, go into PATH
    under their names ("REPO:" is the top). "-" is standard input.

    Files named .lodefsignore, and --exclude, name what is left out of directories, in the grammar
    of .gitignore. What matches is not in the commit, and an excluded directory is not looked into.

    A commit keeps names, contents, symlinks and one executable bit. Files that others may not read
    (mode 0600, or in a directory of mode 0700) can be read by all who may read the repository: a
    push says how many there are, and --private leaves them out or refuses them.

    Reads only what changed since the last push from here, and sends only what the store does not
    have. A push commits all or nothing; after Ctrl-C, repeat it: what was sent stays.
    """
    if not sources:
        raise click.UsageError(
            f"{repo} is the only argument: name what to push and where, SRC... REPO[@BRANCH][:PATH]"
        )
    _check_order(sources, repo)
    options = _Words(**words, exclude=_patterns(exclude, exclude_from))
    spec = spec_from(repo)
    is_into = ":" in repo or from_list is not None
    _check_form(sources, repo, is_into=is_into, from_list=from_list, null=null, check=options.check)
    branch = Spec(spec.repo, spec.rev)
    consent = _Consent(branch, is_given=allow_removals)
    gc.disable()  # millions of objects and no cycles: looking for some takes a tenth of the time
    try:
        push_once = partial(_push_all, session, sources[0], spec, options, consent)
        if is_into:
            names = None if from_list is None else FileList(from_list, b"\0" if null else b"\n")
            place = PushPlace(spec, is_inside=repo.endswith((":", "/")))
            into = _Into(sources, place, None if names is None else names.names())
            push_once = partial(_push_into, session, into, options, consent)
        while True:
            try:
                result = push_once()
                break
            except TooManyRemovals:
                if not consent.ask():
                    raise  # else again: what was sent or read is not sent or read again
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("what was sent stays: repeat the command to go on")
        raise
    finally:
        gc.freeze()  # what is left is not looked through before the end
        gc.enable()
    if as_json:
        write_json(push_report.json_of(result, dry_run=options.dry_run))
    else:
        push_report.show(result, branch, dry_run=options.dry_run)


@dataclass(frozen=True, slots=True)
class _Into:
    """What is pushed into a place. ``names``: only these paths below the one source."""

    sources: tuple[str, ...]
    place: PushPlace
    names: list[bytes] | None


def _push_all(
    session: Session, directory: str, spec: Spec, words: _Words, consent: _Consent
) -> PushResult | ChangesResult:
    with show_progress() as progress:
        return push_directory(
            Path(directory),
            spec,
            message=words.message,
            author=words.author,
            skip_unreadable=words.skip_unreadable,
            allow_removals=consent.allows,
            check=words.check,
            exclude=words.exclude,
            private=words.private,
            dry_run=words.dry_run,
            workers=words.workers,
            progress=progress,
            session=session,
        )


def _push_into(
    session: Session, into: _Into, words: _Words, consent: _Consent
) -> PushResult | ChangesResult:
    branch = Spec(into.place.spec.repo, into.place.spec.rev)
    if into.names is None:
        is_there = partial(is_directory, branch, session=session)
        changes = changes_for(into.sources, into.place, is_there)
    else:
        changes = changes_of_list(into.sources[0], into.names, into.place)
    with show_progress() as progress:
        return commit_changes(
            branch,
            changes,
            message=words.message,
            author=words.author,
            skip_unreadable=words.skip_unreadable,
            allow_removals=consent.allows,
            exclude=words.exclude,
            private=words.private,
            dry_run=words.dry_run,
            workers=words.workers,
            progress=progress,
            session=session,
        )


def _patterns(words: Sequence[str], files: Sequence[BinaryIO]) -> list[bytes]:
    """Those of the files, and behind them, since the last one that matches counts, the others."""
    lines = [line.removesuffix(b"\r") for file in files for line in file.read().split(b"\n")]
    written = [line for line in lines if line.strip() and not line.startswith(b"#")]
    return written + [os.fsencode(word) for word in words]


def _check_order(sources: Sequence[str], repo: str) -> None:
    """Raises UsageError if SRC and REPO were swapped."""
    if len(sources) == 1 and not os.path.lexists(sources[0]) and Path(repo).is_dir():
        raise click.UsageError(f"SRC comes first: lodefs push {repo} {sources[0]}")


def _check_form(
    sources: Sequence[str],
    repo: str,
    *,
    is_into: bool,
    from_list: BinaryIO | None,
    null: bool,
    check: bool,
) -> None:
    """Raises UsageError for what does not go together."""
    reject({"--null": null and from_list is None}, "needs --from-list")
    reject({"--check": check and is_into}, "is for pushes of a whole branch, without a path")
    if from_list is not None and (len(sources) > 1 or not Path(sources[0]).is_dir()):
        raise click.UsageError("--from-list takes one directory, and paths below it")
    if not is_into and len(sources) > 1:
        raise click.UsageError(
            f"several sources go into a place: push SRC... {repo}:PATH/, or {repo}: (the top)"
        )
    if not is_into and (sources[0] == STDIN or Path(sources[0]).is_file()):
        name = "PATH" if sources[0] == STDIN else Path(sources[0]).name
        raise click.UsageError(
            f"{sources[0]} is one file, and a directory becomes a branch: name its place, as in "
            f"lodefs push {sources[0]} {repo}:{name}"
        )


class _Consent:
    """Whether a push may remove most of a branch: an option or the answer to a question."""

    def __init__(self, spec: Spec, *, is_given: bool) -> None:
        self._spec = spec
        self._is_given = is_given
        self._refused: Removals | None = None
        self._allowed: set[tuple[CommitId, bytes]] = set()  # of which most may be removed

    def allows(self, removals: Removals) -> bool:
        """Answers without a question: during a push the progress bar has the terminal."""
        self._refused = removals
        return self._is_given or (removals.head, removals.path) in self._allowed

    def ask(self) -> bool:
        """Asks about what was refused, if there is a terminal. The answer is for that head: if the
        branch moves meanwhile, it may have other files."""
        refused = self._refused
        if refused is None or not _has_terminal():
            return False
        where = Spec(self._spec.repo, self._spec.rev, refused.path)
        question = (
            f"This removes {refused.removed_files:,} of the {text.count(refused.files, 'file')} of "
            f"{where} (files that moved count as removed). Push?"
        )
        if not click.confirm(question, err=True):
            return False
        self._allowed.add((refused.head, refused.path))
        return True


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()

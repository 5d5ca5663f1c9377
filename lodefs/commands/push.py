"""``lodefs push``."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lodefs.api.pushing import push as push_directory
from lodefs.chunkstore.errors import TooManyRemovals
from lodefs.chunkstore.format.names import CommitId, Spec, is_commit_prefix
from lodefs.cli import text
from lodefs.cli.options import (
    examples,
    json_option,
    session_command,
    spec_from,
    write_json,
    write_line,
)
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes import Removals
    from lodefs.chunkstore.push.push import PushResult


EPILOG = examples(
    'lodefs push ./flickr30k vision/flickr30k -m "corrected captions"',
    "lodefs push ./flickr30k vision/flickr30k@experiment",
)


@click.command(epilog=EPILOG)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repo", metavar="REPO[@BRANCH]")
@click.option("-m", "--message", default="", help="The commit's message.")
@click.option("--author", default=None, help="The commit's author [the user's name].")
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Leave out what cannot be read or changes.",
)
@click.option(
    "--allow-removals",
    is_flag=True,
    help="Push also if that removes more than half of the branch's files.",
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
    directory: Path,
    repo: str,
    message: str,
    author: str | None,
    skip_unreadable: bool,
    allow_removals: bool,
    check: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Commit the directory DIR to a branch of REPO (default: main).

    Reads only what changed since the last push from here, and sends only what the store does not
    have. DIR becomes the whole content of the branch: files that are not in DIR are removed from
    it. A push commits all or nothing; after Ctrl-C, repeat it: what was sent stays.
    """
    _check_order(directory, repo)
    gc.disable()  # millions of objects and no cycles: looking for some takes a tenth of the time
    try:
        spec = spec_from(repo)
        consent = _Consent(spec, is_given=allow_removals)

        def push_once() -> PushResult:
            with show_progress() as progress:
                return push_directory(
                    directory,
                    spec,
                    message=message,
                    author=author,
                    skip_unreadable=skip_unreadable,
                    allow_removals=consent.allows,
                    check=check,
                    workers=workers,
                    progress=progress,
                    session=session,
                )

        try:
            result = push_once()
        except TooManyRemovals:
            if not consent.ask():
                raise
            result = push_once()  # what was sent or read is not sent or read again
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("what was sent stays: repeat the command to go on")
        raise
    finally:
        gc.freeze()  # what is left is not looked through before the end
        gc.enable()
    if as_json:
        write_json(_json_of(result))
    else:
        _show(result, spec)


def _check_order(directory: Path, repo: str) -> None:
    """Raises UsageError if DIR and REPO were swapped."""
    if not directory.is_dir() and Path(repo).is_dir():
        raise click.UsageError(f"DIR comes first: lodefs push {repo} {directory}")


class _Consent:
    """Whether a push may remove most of a branch: an option or the answer to a question."""

    def __init__(self, spec: Spec, *, is_given: bool) -> None:
        self._spec = spec
        self._is_given = is_given
        self._refused: Removals | None = None
        self._head: CommitId | None = None  # of which most may be removed

    def allows(self, removals: Removals) -> bool:
        """Answers without a question: during a push the progress bar has the terminal."""
        self._refused = removals
        return self._is_given or removals.head == self._head

    def ask(self) -> bool:
        """Asks about what was refused, if there is a terminal. The answer is for that head: if the
        branch moves meanwhile, it may have other files."""
        refused = self._refused
        if refused is None or not _has_terminal():
            return False
        question = (
            f"This removes {refused.removed_files:,} of the {text.count(refused.files, 'file')} of "
            f"{self._spec} (files that moved count as removed). Push?"
        )
        if not click.confirm(question, err=True):
            return False
        self._head = refused.head
        return True


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _json_of(result: PushResult) -> dict[str, object]:
    return {
        "commit": result.commit,
        "unchanged": result.unchanged,
        "created_branch": result.created_branch,
        "files": result.files,
        "symlinks": result.symlinks,
        "directories": result.directories,
        "size_bytes": result.size_bytes,
        **_changes_of(result),
        "new_bytes": result.new_bytes,
        "stored_bytes": result.stored_bytes,
        "files_read": result.files_read,
        "lost_packs": result.lost_packs,
        "skipped": [
            {"path": text.percent_encoded(one.path), "message": one.reason}
            for one in result.skipped
        ],
    }


def _changes_of(result: PushResult) -> dict[str, int | None]:
    """Files and bytes that were added, changed and removed; None if that is not known."""
    return {
        f"{what}_{unit}": getattr(result.changes, f"{what}_{unit}", None)
        for what in ("added", "changed", "removed")
        for unit in ("files", "bytes")
    }


def _show(result: PushResult, spec: Spec) -> None:
    for item in result.skipped:
        click.echo(f"lodefs: skipped: {text.escaped(str(item))}", err=True)
    if result.skipped:
        count = text.count(len(result.skipped), "path")
        click.echo(
            f"lodefs: left out of the commit: {count}, named above (an older version is not kept "
            "either)",
            err=True,
        )
    links = f", {text.count(result.symlinks, 'symlink')}" if result.symlinks else ""
    write_line(f"files   {result.files:,} ({result.files_read:,} read){links}")
    write_line(f"bytes   {text.size(result.size_bytes)}")
    changes = _changes_of(result)
    for what in ("added", "changed", "removed"):
        files, size_bytes = changes[f"{what}_files"], changes[f"{what}_bytes"]
        amount = "unknown: the branch's trees cannot be read"
        if files is not None and size_bytes is not None:
            amount = f"{text.count(files, 'file')}, {text.size(size_bytes)}"
        write_line(f"{what:<8}{amount}")
    write_line(f"new     {text.size(result.new_bytes)}")
    write_line(f"stored  {text.size(result.stored_bytes)}")
    if result.lost_packs:
        packs = text.count(result.lost_packs, "pack")
        write_line(f"lost    {packs}: missing in the store, and stored again")
    if result.unchanged:
        write_line(f"nothing changed: {spec} stays at {result.commit}")
    else:
        if result.created_branch:
            write_line(f"created branch {spec.rev}")
            if _looks_like_a_commit(spec.rev):
                click.echo(
                    f"lodefs: note: {_BRANCH_NOT_COMMIT.format(spec.rev, spec.repo)}", err=True
                )
        write_line(f"commit  {result.commit}")


_BRANCH_NOT_COMMIT = (
    "{0} is the name of a new branch, though it looks like a commit; to remove it: "
    "lodefs branch --delete {1} {0}"
)


def _looks_like_a_commit(name: str) -> bool:
    """Whether a reader would take a branch's name for a commit: hex digits, but not a date."""
    return is_commit_prefix(name) and not name.isdigit() and not name.isalpha()

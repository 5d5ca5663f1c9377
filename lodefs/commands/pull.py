"""``lodefs pull``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lodefs.api.pulling import pull as pull_into
from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.pull.pull import PullResult

KEPT_NAMED_MAX = 10


@cli.command(
    "lodefs pull vision/flickr30k@v1.0 ./flickr30k",
    "lodefs pull vision/flickr30k:images ./images",
    "lodefs pull vision/flickr30k@v1.1 ./flickr30k          # brings the copy to v1.1",
    "lodefs pull vision/flickr30k:images/1.jpg ./first.jpg  # one file",
    store=True,
    of=pull_into,
)
def pull(
    session: Session,
    spec: Spec = cli.argument("REPO[@REV][:PATH]"),
    directory: str = cli.argument("DIR"),
    no_sync: bool = cli.option("Do not wait until all data is on disk."),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Copy a revision, or what is at PATH in it, into the directory DIR.

    DIR must be missing, empty, or a finished copy. A copy of another revision is updated: only the
    differences are fetched, and files that you have changed are not overwritten. A copy of this
    revision is compared with it. A single file goes to the file DIR or, if DIR is a directory or
    ends with a slash, into DIR.

    After an interruption, repeat the command: it continues where it stopped. A file that was
    changed in the meantime is kept as NAME.lodefs-kept. Every byte is verified.

    Files that are lost or damaged do not stop the others. They are named on standard error, and the
    exit code is 8. When the data is back, repeat the command: it brings what is missing.

    If bytes of a file were purged (lodefs purge), the pull ends with exit code 8. With
    --skip-purged such files are left out and named on standard error, and the exit code is 0.
    """
    try:
        with show_progress() as progress:
            options |= {"sync": not no_sync, "progress": progress, "session": session}
            result = pull_into(spec, directory, **options)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("repeat the command to go on")
        raise
    except Corrupt as error:
        _show_incomplete(error, as_json=as_json)
        raise
    if as_json:
        cli.write_json(_json_of(result))
        return
    _show_kept(result)
    _show_purged(result)
    links = f"{text.count(result.symlinks, 'symlink')}, " if result.symlinks else ""
    what = f"{text.count(result.files, 'file')}, {links}{text.size(result.size_bytes)}"
    if result.unchanged:
        place = text.escaped(directory)
        cli.write_line(f"nothing to pull: {place} is already {text.escaped(str(spec))}: {what}")
        return
    if result.updated_from is not None:
        cli.write_line(
            f"updated from {result.updated_from.hex()[:12]} to {text.escaped(str(spec))} "
            f"({result.commit.hex()[:12]}): {what} written, {result.removed:,} removed"
        )
        return
    cli.write_line(f"pulled {text.escaped(str(spec))} ({result.commit.hex()[:12]}): {what}")
    if result.fetched_bytes < result.size_bytes:
        kept = result.size_bytes - result.fetched_bytes
        cli.write_line(f"{text.size(kept)} of it were not fetched: already there, or shared")


def _json_of(result: PullResult) -> dict[str, object]:
    counts = "files", "symlinks", "directories", "size_bytes", "fetched_bytes"
    return {
        **cli.fields(result, "commit", "unchanged", *counts, "updated_from", "removed"),
        "kept": [text.percent_encoded(path) for path in result.kept],
        "skipped": [
            {"path": text.percent_encoded(path), "message": "purged"}
            for path in sorted(result.purged)
        ],
        "lost": [
            {"path": text.percent_encoded(path), "message": str(error)}
            for path, error in sorted(result.lost.items())
        ],
    }


def _show_incomplete(error: Corrupt, *, as_json: bool) -> None:
    """Names the files that a pull could not copy; the error itself is shown later."""
    from lodefs.chunkstore.pull.pull import Incomplete

    if not isinstance(error, Incomplete):
        return
    if as_json:
        cli.write_json(_json_of(error.result))
        return
    lost = sorted(error.result.lost.items())
    for path, reason in lost if len(lost) > 1 else ():  # the error has one with its reason
        shown = text.escaped(path)
        click.echo(f"lodefs: not copied: {shown}: {text.escaped(str(reason))}", err=True)
    _show_kept(error.result)
    _show_purged(error.result)


def _show_purged(result: PullResult) -> None:
    for path in sorted(result.purged):
        shown = text.escaped(path)
        click.echo(f"lodefs: skipped: {shown}: purged", err=True)
    if result.purged:
        count = text.count(len(result.purged), "file")
        click.echo(f"lodefs: left out of the copy: {count}, named above", err=True)


def _show_kept(result: PullResult) -> None:
    if not result.kept:
        return
    paths = sorted(result.kept)[:KEPT_NAMED_MAX]
    names = ", ".join(text.escaped(path) for path in paths)
    more = f" and {len(result.kept) - len(paths):,} more" if len(result.kept) > len(paths) else ""
    click.echo(
        f"lodefs: changed since the interruption, and kept: {names}{more}",
        err=True,
    )

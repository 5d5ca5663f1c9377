"""``lodefs pull``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lodefs.api.pulling import WORKERS
from lodefs.api.pulling import pull as pull_into
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.pull.pull import PullResult

KEPT_NAMED_MAX = 10
EPILOG = examples(
    "lodefs pull vision/flickr30k@v1.0 ./flickr30k",
    "lodefs pull vision/flickr30k:images ./images",
    "lodefs pull vision/flickr30k@v1.1 ./flickr30k          # brings the copy to v1.1",
    "lodefs pull vision/flickr30k:images/1.jpg ./first.jpg  # one file",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="REPO[@REV][:PATH]", type=SPEC)
@click.argument("directory", metavar="DIR")
@click.option("--workers", type=click.IntRange(1, 256), default=WORKERS, help="Parallel reads [8].")
@click.option("--from", "since", metavar="REV", help="DIR is a copy of REV: update it.")
@click.option("--skip-purged", is_flag=True, help="Leave out files whose bytes were purged.")
@click.option("--no-sync", is_flag=True, help="Do not wait until all is on disk.")
@json_option
@session_command(store=True)
def pull(
    session: Session,
    spec: Spec,
    directory: str,
    workers: int,
    since: str | None,
    skip_purged: bool,
    no_sync: bool,
    as_json: bool,
) -> None:
    """Copy a revision, or what is at PATH in it, into the directory DIR.

    DIR must be missing or empty, or a finished copy. A copy of another revision is brought to this
    one: only what differs is fetched, and nothing is overwritten that was changed in it. A copy of
    this revision is compared with it. A single file goes to the file DIR, unless that is a
    directory or ends with a slash.

    After an interruption, repeat the command: it goes on where it stopped. A file that was changed
    in the meantime stays, as NAME.lodefs-kept. Every byte is verified.

    A file of which bytes were purged (lodefs purge) ends the pull with exit code 8. With
    --skip-purged it is left out, and named on standard error; the exit code is 0 then.
    """
    try:
        with show_progress() as progress:
            result = pull_into(
                spec,
                directory,
                workers=workers,
                sync=not no_sync,
                since=since,
                skip_purged=skip_purged,
                progress=progress,
                session=session,
            )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("repeat the command to go on")
        raise
    if as_json:
        write_json(_json_of(result))
        return
    _show_kept(result)
    _show_purged(result)
    links = f"{text.count(result.symlinks, 'symlink')}, " if result.symlinks else ""
    what = f"{text.count(result.files, 'file')}, {links}{text.size(result.size_bytes)}"
    if result.unchanged:
        place = text.escaped(directory)
        write_line(f"nothing to pull: {place} is {text.escaped(str(spec))} already: {what}")
        return
    if result.updated_from is not None:
        write_line(
            f"updated from {result.updated_from.hex()[:12]} to {text.escaped(str(spec))} "
            f"({result.commit.hex()[:12]}): {what} written, {result.removed:,} removed"
        )
        return
    write_line(f"pulled {text.escaped(str(spec))} ({result.commit.hex()[:12]}): {what}")
    if result.fetched_bytes < result.size_bytes:
        kept = result.size_bytes - result.fetched_bytes
        write_line(f"{text.size(kept)} of it were not fetched: there already, or shared")


def _json_of(result: PullResult) -> dict[str, object]:
    return {
        "commit": result.commit.hex(),
        "unchanged": result.unchanged,
        "files": result.files,
        "symlinks": result.symlinks,
        "directories": result.directories,
        "size_bytes": result.size_bytes,
        "fetched_bytes": result.fetched_bytes,
        "updated_from": result.updated_from.hex() if result.updated_from else None,
        "removed": result.removed,
        "kept": [text.percent_encoded(path) for path in result.kept],
        "skipped": [
            {"path": text.percent_encoded(path), "message": "purged"}
            for path in sorted(result.purged)
        ],
    }


def _show_purged(result: PullResult) -> None:
    for path in sorted(result.purged):
        shown = text.escaped(path.decode("utf-8", "surrogateescape"))
        click.echo(f"lodefs: skipped: {shown}: purged", err=True)
    if result.purged:
        count = text.count(len(result.purged), "file")
        click.echo(f"lodefs: left out of the copy: {count}, named above", err=True)


def _show_kept(result: PullResult) -> None:
    if not result.kept:
        return
    paths = sorted(result.kept)[:KEPT_NAMED_MAX]
    names = ", ".join(text.escaped(path.decode("utf-8", "surrogateescape")) for path in paths)
    more = f" and {len(result.kept) - len(paths):,} more" if len(result.kept) > len(paths) else ""
    click.echo(
        f"lodefs: not as they were pulled before the interruption, and kept: {names}{more}",
        err=True,
    )

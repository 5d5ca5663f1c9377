"""``lodefs pull``."""

from __future__ import annotations

from pathlib import Path

import click

from lodefs.api.pulling import WORKERS
from lodefs.api.pulling import pull as pull_into
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs pull vision/flickr30k@v1.0 ./flickr30k",
    "lodefs pull vision/flickr30k:images ./images",
    "lodefs cat vision/flickr30k:images/1.jpg > 1.jpg      # a single file",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="REPO[@REV][:PATH]", type=SPEC)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--workers", type=click.IntRange(1, 256), default=WORKERS, help="Parallel reads [8].")
@click.option("--no-sync", is_flag=True, help="Do not wait until all is on disk.")
@json_option
@session_command(store=True)
def pull(
    session: Session, spec: Spec, directory: Path, workers: int, no_sync: bool, as_json: bool
) -> None:
    """Copy a revision, or what is at PATH in it, into the directory DIR.

    DIR must be missing or empty. After an interruption, repeat the command: it goes on where it
    stopped. If DIR is a finished copy, it is compared with the revision and not changed. Every
    byte is verified.
    """
    try:
        with show_progress() as progress:
            result = pull_into(
                spec,
                directory,
                workers=workers,
                sync=not no_sync,
                progress=progress,
                session=session,
            )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note("repeat the command to go on")
        raise
    if as_json:
        write_json(
            {
                "commit": result.commit.hex(),
                "unchanged": result.unchanged,
                "files": result.files,
                "symlinks": result.symlinks,
                "directories": result.directories,
                "size_bytes": result.size_bytes,
                "fetched_bytes": result.fetched_bytes,
            }
        )
        return
    links = f"{text.count(result.symlinks, 'symlink')}, " if result.symlinks else ""
    what = f"{text.count(result.files, 'file')}, {links}{text.size(result.size_bytes)}"
    if result.unchanged:
        place = text.escaped(str(directory))
        write_line(f"nothing to pull: {place} is {text.escaped(str(spec))} already: {what}")
        return
    write_line(f"pulled {text.escaped(str(spec))} ({result.commit.hex()[:12]}): {what}")
    if result.fetched_bytes < result.size_bytes:
        kept = result.size_bytes - result.fetched_bytes
        write_line(f"{text.size(kept)} of it were not fetched: there already, or shared")

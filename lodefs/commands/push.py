"""``lodefs push``."""

from __future__ import annotations

import gc
import getpass
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkstore.errors import InvalidInput
from chunkstore.names import Spec, parse_spec
from lodefs import text
from lodefs.meter import metered
from lodefs.options import json_option, session_command, write_json, write_line
from lodefs.session import Session

if TYPE_CHECKING:
    from chunkstore.push import PushResult


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("repo", metavar="REPO[@BRANCH]")
@click.option("-m", "--message", default="", help="The commit's message.")
@click.option("--author", default=None, help="The commit's author [the user's name].")
@click.option(
    "--skip-unreadable",
    is_flag=True,
    help="Leave out what cannot be read or changes.",
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
    workers: int | None,
    as_json: bool,
) -> None:
    """Commit the directory DIR to a branch of REPO (default: main).

    Reads only what changed since the last push from here, and sends only what the store does not
    have.
    """
    gc.disable()  # millions of objects and no cycles: looking for some takes a tenth of the time
    try:
        from chunkstore.push import PushOptions
        from chunkstore.push import push as push_directory

        spec = parse_spec(repo)
        if spec.path:
            raise InvalidInput(f"{spec}: push takes REPO[@BRANCH], without a path")
        options = PushOptions(
            message=message,
            author=author if author is not None else user_name(),
            time_s=int(time.time()),
            skip_unreadable=skip_unreadable,
            workers=workers,
            index_dir=session.home_cache() / "push",
        )
        with metered() as progress:
            result = push_directory(
                session.store, directory, spec.repo, spec.rev, options, progress
            )
    finally:
        gc.freeze()  # what is left is not looked through before the end
        gc.enable()
    if as_json:
        write_json(_json_of(result))
    else:
        _show(result, spec)


def user_name() -> str:
    """Who pushes; "unknown" for a user id without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return "unknown"


def _json_of(result: PushResult) -> dict[str, object]:
    return {
        "commit": result.commit,
        "unchanged": result.unchanged,
        "created_branch": result.created_branch,
        "files": result.files,
        "symlinks": result.symlinks,
        "directories": result.directories,
        "size_bytes": result.size_bytes,
        "new_bytes": result.new_bytes,
        "stored_bytes": result.stored_bytes,
        "files_read": result.files_read,
        "skipped": [
            {"path": text.percent_encoded(one.path), "message": one.reason}
            for one in result.skipped
        ],
    }


def _show(result: PushResult, spec: Spec) -> None:
    for item in result.skipped:
        click.echo(f"lodefs: skipped: {text.shown(str(item))}", err=True)
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
    write_line(f"new     {text.size(result.new_bytes)}")
    write_line(f"stored  {text.size(result.stored_bytes)}")
    if result.unchanged:
        write_line(f"nothing changed: {spec} stays at {result.commit}")
    else:
        if result.created_branch:
            write_line(f"created branch {spec.rev}")
        write_line(f"commit  {result.commit}")

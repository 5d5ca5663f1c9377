"""``lodefs log``."""

from __future__ import annotations

from itertools import islice

import click

from lodefs.api.history import log as commits
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import text
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.settings.session import Session


@click.command(epilog=examples("lodefs log -n 10 vision/flickr30k"))
@click.argument("spec", metavar="REPO[@REV]", type=SPEC)
@click.option("-n", "limit", type=click.IntRange(1), help="At most this many commits.")
@click.option("--first-parent", is_flag=True, help="Leave out what merges brought.")
@json_option
@session_command(store=True)
def log(session: Session, spec: Spec, limit: int | None, first_parent: bool, as_json: bool) -> None:
    """Show the commits of a revision, newest first."""
    no_path(spec)
    shown, parents = set[str](), set[str]()
    found = commits(spec, first_parent=first_parent, session=session)
    for commit_id, commit in islice(found, limit):
        shown.add(commit_id)
        parents.update(parent.hex() for parent in commit.parents[: 1 if first_parent else None])
        if as_json:
            write_json(_json_of(commit_id, commit))
        else:
            write_line(_shown(commit_id, commit))
    if parents - shown and len(shown) != limit:
        click.echo(f"older commits of {spec.repo} have expired: see `lodefs retain`", err=True)


def no_path(spec: Spec) -> None:
    """Raises InvalidInput if a command for whole revisions was given a path."""
    if spec.path:
        raise InvalidInput(f"{spec}: this command takes REPO[@REV], without a path")


def _json_of(commit_id: str, commit: Commit) -> dict[str, object]:
    return {
        "commit": commit_id,
        "parents": [parent.hex() for parent in commit.parents],
        "author": commit.author,
        "time_s": commit.time_s,
        "message": commit.message,
        "files": commit.files,
        "directories": commit.directories,
        "size_bytes": commit.size_bytes,
    }


def _shown(commit_id: str, commit: Commit) -> str:
    lines = [
        f"commit {commit_id}",
        f"author {text.escaped(commit.author)}",
        f"time   {text.time(commit.time_s)}",
        f"holds  {text.count(commit.files, 'file')}, {text.size(commit.size_bytes)}",
        "",
        *(f"    {line}" for line in text.escaped_lines(commit.message)),
    ]
    return "\n".join(lines) + ("\n" if commit.message else "")

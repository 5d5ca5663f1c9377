"""``lodefs merge``."""

from __future__ import annotations

import click

from lodefs.api.pushing import merge as merge_into
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import push_report
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json
from lodefs.commands.log import no_path
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs merge vision/flickr30k@labels main           # what labels changed comes into main",
    "lodefs merge vision/flickr30k@labels main --dry-run",
    "lodefs merge vision/flickr30k@labels main --theirs tables --ours tables/old.csv",
)


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="REPO@REV", type=SPEC)
@click.argument("branch", metavar="BRANCH")
@click.option("-m", "--message", default="", help="The commit's message [merge REV into BRANCH].")
@click.option("--author", default=None, help="The commit's author [the user's name].")
@click.option("--ours", multiple=True, metavar="PATH", help="In a conflict there BRANCH's stays.")
@click.option("--theirs", multiple=True, metavar="PATH", help="In a conflict there REV's is taken.")
@click.option("-n", "--dry-run", is_flag=True, help="Write nothing; say what would change.")
@json_option
@session_command(store=True)
def merge(
    session: Session,
    spec: Spec,
    branch: str,
    message: str,
    author: str | None,
    ours: tuple[str, ...],
    theirs: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring what REV has changed into BRANCH.

    If REV follows BRANCH, BRANCH moves there. Else a commit has both as parents: paths that one
    side alone has changed since their common ancestor are as that side has them. A path that was
    changed differently on each side is a conflict: nothing is committed, and it is named (exit code
    15). The contents of a file are never merged.

    --ours and --theirs, which may be repeated, say who wins such conflicts at PATH or below it;
    the nearest PATH counts, and . is everything.
    """
    no_path(spec)
    result = merge_into(
        spec,
        branch,
        message=message,
        author=author,
        ours=ours,
        theirs=theirs,
        dry_run=dry_run,
        session=session,
    )
    if as_json:
        write_json(push_report.json_of(result, dry_run=dry_run))
    else:
        push_report.show(result, Spec(spec.repo, branch), dry_run=dry_run)

"""``lodefs revert``."""

from __future__ import annotations

from typing import Any

import click

from lodefs.api.pushing import revert as revert_in
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import commit_report
from lodefs.cli import options as cli
from lodefs.settings.session import Session


@cli.command(
    "lodefs revert vision/flickr30k main              # what the last commit did is taken back",
    "lodefs revert vision/flickr30k main~3 --dry-run",
    'lodefs revert vision/flickr30k@labels 9c2f01ab77de -m "wrong captions"',
    store=True,
    of=revert_in,
)
def revert(
    session: Session,
    spec: Spec = cli.argument("REPO[@BRANCH]"),
    rev: str | None = cli.argument("REV", shell_complete=cli.revision_items),
    message: str = cli.option(
        "The commit's message [revert COMMIT: its message].", "-m", "--message", default=""
    ),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Undo the changes of the commit REV of REPO by a new commit to BRANCH (default: main).

    Each path that REV changed is restored to its earlier state, and all others stay. A path that
    was changed since is a conflict: nothing is committed, and it is named (exit code 15). To revert
    the first commit removes all its files.

    No bytes move, since the earlier files are in the store.
    """
    cli.no_path(spec)
    if rev is None:
        raise click.UsageError(
            f"{spec} is the only argument: name the commit to undo after the repository, as in "
            f"lodefs revert {spec.repo} {spec.rev}"
        )
    result = revert_in(spec, rev, message=message, session=session, **options)
    commit_report.show(result, spec, dry_run=options["dry_run"], as_json=as_json)

"""``lodefs fork``."""

from __future__ import annotations

from lodefs.api.repos import fork as make_fork
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session


@cli.command(
    "lodefs fork vision/flickr30k vision/flickr30k-clean",
    "lodefs fork vision/flickr30k@v1.0 team/flickr30k",
    store=True,
)
def fork(
    session: Session,
    spec: Spec = cli.argument("REPO[@REV]"),
    new: str = cli.argument("NEW"),
    as_json: bool = cli.JSON,
) -> None:
    """Make the repository NEW, whose branch main is at REV, with all of its history.

    No bytes are read or sent: commits keep their ids, and chunks are shared. From then on the two
    are independent of each other: what is deleted in one, or expires there, stays in the other. A
    purge removes a file from both. NEW has no retention policy and no quota.
    """
    cli.no_path(spec)
    with show_progress() as progress:
        made = make_fork(spec, new, progress=progress, session=session)
    if as_json:
        cli.write_json(made._asdict())
        return
    commits = text.count(made.commits, "commit")
    cli.write_line(f"{made.repo}@main is at {made.commit[:12]}, with {commits}")

"""``lodefs fork`` and ``lodefs repo``: repositories under other names."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import click

from lodefs.api.repos import OLD_NAME_S
from lodefs.api.repos import fork as make_fork
from lodefs.api.repos import rename as rename_repo
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.system.durations import duration_text
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import DURATION
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


@click.group(epilog=cli.examples("lodefs repo rename vision/flickr30k vision/flickr"))
def repo() -> None:
    """Repositories as a whole."""


@cli.command(
    "lodefs repo rename vision/flickr30k vision/flickr",
    "lodefs repo rename vision/flickr30k vision/flickr --old-name-for 7d",
    group=repo,
    store=True,
)
def rename(
    session: Session,
    old: str = cli.argument("OLD"),
    new: str = cli.argument("NEW"),
    old_name_for: int = cli.option(
        "For so long OLD leads to NEW.", type=DURATION, default=duration_text(OLD_NAME_S)
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Give the repository OLD the name NEW, with its branches, tags, retention policy and quota.

    No bytes are read or sent. For 90 days, or as long as you say, OLD leads to NEW for everybody
    who reads, mounts or pushes; commands on branches, tags and policies name NEW. Reflogs begin
    anew (`lodefs reflog OLD` shows the earlier ones), and deleted branches stay behind.

    After an interruption, repeat the command. A push beside it loses nothing. A later repetition
    changes how long OLD leads to NEW. `lodefs repo rename NEW OLD` takes it back.
    """
    with show_progress() as progress:
        done = rename_repo(old, new, old_name_s=old_name_for, progress=progress, session=session)
    rules = _rules_that_change(session.config.access, old, new)
    if as_json:
        refs = [{"kind": ref.kind, "name": ref.name} for ref in done.refs]
        found = {"repo": done.repo, "refs": refs, "until_s": done.until_s, "access_rules": rules}
        cli.write_json(found)
        return
    cli.write_line(f"{old} is {new} now, with {text.count(len(done.refs), 'ref')}")
    cli.write_line(f"the old name leads there until {text.time(done.until_s)}")
    cli.write_line(f"undo: lodefs repo rename {new} {old}")
    for rule in rules:
        cli.warn(f"the rule {rule!r} of [access] on this machine covers only one of the names")
    click.echo(
        f"where nodes have rules of [access], tokens or S3 aliases for {old}, name {new} there",
        err=True,
    )


def _rules_that_change(patterns: Iterable[str], old: str, new: str) -> list[str]:
    """Returns the patterns that decide about one of the names, and not about the other."""
    patterns = list(patterns)
    deciding = [
        max((one for one in patterns if fnmatchcase(name, one)), key=len, default=None)
        for name in (old, new)
    ]
    if deciding[0] == deciding[1]:
        return []
    return [one for one in deciding if one is not None]

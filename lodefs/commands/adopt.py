"""``lodefs adopt``."""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session


@cli.command(
    "lodefs adopt vision/flickr30k             # the newest version of main",
    "lodefs adopt vision/flickr30k@v1.0 --dry-run",
    "lodefs adopt --all                        # every version of every repository",
    store=True,
)
def adopt(
    session: Session,
    spec: Spec | None = cli.argument("[REPO[@REV]]"),
    every: bool = cli.option("Adopt all data that the store has in place.", "--all"),
    dry_run: bool = cli.option("Only report how many bytes would be copied.", "-n", "--dry-run"),
    as_json: bool = cli.JSON,
) -> None:
    """Copy the bytes that a version has in place, by lodefs import, into the store.

    Afterwards the version needs no other bucket. Its names, contents and commit stay; other
    versions with the same bytes profit too. Objects that are changed or gone are named, and the
    command exits with 1; everything else is adopted. After an interruption repeat it: it goes on
    with what is left.
    """
    from lodefs.chunkstore.maintenance.adopt import adopt as bring

    if (spec is None) != every:
        raise InvalidInput("name the version to adopt: REPO[@REV], or --all")
    if spec is not None:
        cli.no_path(spec)
    with show_progress() as progress:
        result = bring(session.store, spec, progress, dry_run=dry_run)
    if as_json:
        found = cli.fields(result, "packs", "size_bytes", "stored_bytes", "lost")
        cli.write_json({**found, "dry_run": dry_run})
    else:
        for line in result.lost:
            cli.write_line(f"lost    {text.escaped(line)}")
        what = text.count(result.packs, "pack")
        verb = "adopts " if dry_run else "adopted"
        cli.write_line(f"{verb} {what}, {text.size(result.size_bytes)}")
        if not dry_run:
            cli.write_line(f"stored  {text.size(result.stored_bytes)}")
    if result.lost:
        session.exit_code = exit_codes.FAILURE

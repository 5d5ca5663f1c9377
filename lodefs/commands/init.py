"""``lodefs init``."""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.objects.schemes import scheme_of
from lodefs.cli import exit_codes
from lodefs.cli import options as cli
from lodefs.settings.session import Session, absolute


@cli.command(
    "lodefs init s3://bucket/datasets",
    "lodefs init gs://bucket/datasets",
    "lodefs init /srv/lodefs",
    "lodefs init --dry-run s3://bucket/datasets     # may a store be there?",
)
def init(
    session: Session,
    store: str = cli.argument("STORE"),
    dry_run: bool = cli.option("Only say what the server does, and what it lacks."),
    as_json: bool = cli.JSON,
) -> None:
    """Probe STORE (s3://, gs://, az://, or a new directory), and create a store there.

    Small objects are written and removed again, to see whether conditions are honoured, ranges are
    answered, and listings complete. A place that lacks one of these is refused: data could be lost.
    """
    from lodefs.chunkstore.format import keys
    from lodefs.chunkstore.objects.interface import exists
    from lodefs.chunkstore.objects.open_url import check_empty
    from lodefs.chunkstore.repo.checks.place_check import require_place
    from lodefs.chunkstore.repo.store import create_store

    url = absolute(store)
    if dry_run:
        _show_place(session, url, as_json=as_json)
        return
    check_empty(url)
    objects = session.objects(url)
    if scheme_of(url) and not exists(objects, keys.STORE):
        require_place(objects)
    made = create_store(objects)
    if as_json:
        cli.write_json({"store": made.url, "store_id": made.settings.store_id})
    else:
        cli.write_line(f"created the store {url}")
        cli.write_line(f"next: lodefs --store {url} push DIR REPO")


def _show_place(session: Session, url: str, *, as_json: bool) -> None:
    """Writes one line for each requirement; the exit code is 1 if one does not hold. Raises:
    InvalidInput."""
    from lodefs.chunkstore.repo.checks.place_check import check_place

    if not scheme_of(url):
        raise InvalidInput(f"--dry-run tries servers, and {url} is a directory: leave it out")
    for result in check_place(session.objects(url)):
        if as_json:
            cli.write_json(
                {
                    "requirement": result.requirement,
                    "holds": result.holds,
                    "problem": result.problem or None,
                }
            )
        else:
            problem = f": {result.problem}" if result.problem else ""
            cli.write_line(f"{'ok' if result.holds else 'fault':<6}{result.requirement}{problem}")
        if not result.holds:
            session.exit_code = exit_codes.FAILURE

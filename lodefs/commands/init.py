"""``lodefs init``."""

from __future__ import annotations

from lodefs.cli import options as cli
from lodefs.settings.session import Session, absolute


@cli.command(
    "lodefs init s3://bucket/datasets",
    "lodefs init gs://bucket/datasets",
    "lodefs init /srv/lodefs",
)
def init(session: Session, store: str = cli.argument("STORE"), as_json: bool = cli.JSON) -> None:
    """Probe STORE (s3://, gs://, az://, or a new directory), and create a store there."""
    from lodefs.chunkstore.objects.open_url import check_empty
    from lodefs.chunkstore.repo.store import create_store

    url = absolute(store)
    check_empty(url)
    made = create_store(session.objects(url))
    if as_json:
        cli.write_json({"store": made.url, "store_id": made.settings.store_id})
    else:
        cli.write_line(f"created the store {url}")
        cli.write_line(f"next: lodefs --store {url} push DIR REPO")

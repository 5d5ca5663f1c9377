"""``lodefs init``."""

from __future__ import annotations

import click

from lodefs.cli.options import examples, json_option, session_command, write_json, write_line
from lodefs.settings.session import Session, absolute


@click.command(epilog=examples("lodefs init s3://bucket/datasets", "lodefs init /srv/lodefs"))
@click.argument("store", metavar="STORE")
@json_option
@session_command()
def init(session: Session, store: str, as_json: bool) -> None:
    """Create a store at STORE (s3://BUCKET/PREFIX or a new directory), after probing it."""
    from lodefs.chunkstore.objects.open_url import check_empty
    from lodefs.chunkstore.repo.store import create_store

    url = absolute(store)
    check_empty(url)
    made = create_store(session.objects(url))
    if as_json:
        write_json({"store": made.url, "store_id": made.settings.store_id})
    else:
        write_line(f"created the store {url}")
        write_line(f"next: lodefs --store {url} push DIR REPO")

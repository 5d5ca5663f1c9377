"""``lodefs version``."""

from __future__ import annotations

import click

from lodefs.chunkstore.installed_version import installed_version
from lodefs.cli.options import examples, json_option, session_command, write_json, write_line
from lodefs.settings.session import Session


@click.command(epilog=examples("lodefs version --json"))
@json_option
@session_command()
def version(session: Session, as_json: bool) -> None:  # noqa: ARG001
    """Show the version."""
    if as_json:
        write_json({"version": number()})
    else:
        write_line(f"lodefs {number()}")


def number() -> str:
    """The installed version; "unknown" in a checkout that is not installed."""
    return installed_version() or "unknown"

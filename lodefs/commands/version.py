"""``lodefs version``."""

from __future__ import annotations

import click

from lodefs.options import json_option, session_command, write_json, write_line
from lodefs.session import Session


@click.command()
@json_option
@session_command
def version(session: Session, as_json: bool) -> None:  # noqa: ARG001
    """Show the version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        number = installed("lodefs")
    except PackageNotFoundError:  # run from a checkout that was not installed
        number = "unknown"
    if as_json:
        write_json({"version": number})
    else:
        write_line(f"lodefs {number}")

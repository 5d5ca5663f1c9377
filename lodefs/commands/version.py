"""``lodefs version``."""

from __future__ import annotations

from lodefs.chunkstore.installed_version import installed_version
from lodefs.cli import options as cli
from lodefs.settings.session import Session


@cli.command("lodefs version --json")
def version(
    session: Session,  # noqa: ARG001
    as_json: bool = cli.JSON,
) -> None:
    """Show the version."""
    if as_json:
        cli.write_json({"version": number()})
    else:
        cli.write_line(f"lodefs {number()}")


def number() -> str:
    """Returns the installed version; "unknown" in a checkout that is not installed."""
    return installed_version() or "unknown"

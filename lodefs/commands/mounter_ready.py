"""``lodefs mounter-ready``."""

from __future__ import annotations

from pathlib import Path

import click

from lodefs.cli.options import examples, session_command
from lodefs.settings.session import Session

TIMEOUT_S = 5.0


@click.command("mounter-ready", epilog=examples("lodefs mounter-ready"))
@click.option(
    "--socket",
    "path",
    metavar="PATH",
    type=click.Path(path_type=Path),
    envvar="LODEFS_MOUNTER_SOCKET",
    default=Path("/run/lodefs/mounter/mounter.sock"),
    help="Where drivers find it [/run/lodefs/mounter/mounter.sock].",
)
@session_command()
def mounter_ready(session: Session, path: Path) -> None:
    """Exit with 0 when the mounter of this container answers, for Kubernetes' probes.

    While an upgrade goes on, the mounter of the old pod may answer at the same socket: that does
    not count, so that the old pod is not ended before its mounts are taken over.
    """
    del session
    from lodefs.mount.service.client import check_own_service

    check_own_service(path, TIMEOUT_S)

"""``lodefs health``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lodefs.chunkstore.errors import LodefsError
from lodefs.cli import exit_codes
from lodefs.cli.options import examples, session_command, write_line
from lodefs.settings.session import Session

TIMEOUT_S = 2.0  # of each question


@click.command(epilog=examples("lodefs health", "lodefs health --mounter || drain_this_node"))
@click.option("--mounter", is_flag=True, help="The node must have a `lodefs mounter`, too.")
@click.option(
    "--mounter-socket",
    "socket",
    metavar="PATH",
    type=click.Path(path_type=Path),
    envvar="LODEFS_MOUNTER_SOCKET",
    default=Path("/run/lodefs/mounter/mounter.sock"),
    help="[/run/lodefs/mounter/mounter.sock]",
)
@session_command(proxy=True)
def health(session: Session, mounter: bool, socket: Path) -> None:
    """Tell in a few seconds whether this node can mount: nothing and 0, or the reasons and 1.

    For Slurm's HealthCheckProgram and the like. `lodefs doctor` looks at more, and takes longer.
    """
    from lodefs.mount.service.client import RemoteMounts
    from lodefs.proxies.own_proxy import node_proxy, ready

    problems = []
    if not os.path.exists("/dev/fuse"):
        problems.append("/dev/fuse is missing: modprobe fuse")
    url = node_proxy(session)
    if not ready(url, TIMEOUT_S):
        problems.append(f"the proxy at {url} is not ready")
    if mounter:
        try:
            RemoteMounts(socket).ping(TIMEOUT_S)
        except LodefsError as error:
            problems.append(str(error))
    for problem in problems:
        write_line(problem)
    if problems:
        session.exit_code = exit_codes.FAILURE
